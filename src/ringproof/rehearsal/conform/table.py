"""The table that ``ringproof conform`` prints: this upstream beside known ones."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ringproof.rehearsal.conform.cases import CASES, VERL_CASES
from ringproof.rehearsal.conform.record import CaseResult, ConformanceRecord, Status
from ringproof.styles import BAD, GOOD


def print_record(
    record: ConformanceRecord, known: Sequence[ConformanceRecord], console: Console
) -> None:
    """Print a record, what known upstreams did with the same cases, and every message."""
    others = [one.by_id for one in known]
    bad = any(result.status.bad for result in record.cases) or nothing_agrees(record)
    console.print(summary(record), style=BAD if bad else f"bold {GOOD}")
    for line in _legend(record, others):
        console.print(line, soft_wrap=True)
    title = f"{record.name} with Transformer Engine {record.engine}, {record.iterations} steps"
    table = Table(title=escape(title), title_justify="left")
    table.add_column("case", no_wrap=True)
    table.add_column("this", no_wrap=True)
    for one in known:
        table.add_column(escape(one.short), overflow="fold")
    group = ""
    groups = {case.id: case.group for case in (*CASES, *VERL_CASES)}
    for result in record.cases:
        if groups[result.id] != group:
            group = groups[result.id]
            table.add_section()
        difference = result.largest_difference
        number = "" if difference is None else f" {difference:.1e}"
        cells = (other.get(result.id) for other in others)
        table.add_row(
            result.id,
            _styled(result, f"{result.status.value}{number}"),
            *("" if cell is None else _styled(cell, cell.status.label) for cell in cells),
        )
    console.print(table)
    for result in record.cases:
        if result.message:
            where = f" ({result.place})" if result.place else ""
            console.print(escape(f"{result.id}: {result.status.value}: {result.message}{where}"))
        if result.located:
            console.print(escape(f"{result.id}: {result.located}"))


def _legend(record: ConformanceRecord, others: Sequence[Mapping[str, CaseResult]]) -> Iterator[str]:
    """Yield what each verdict in the table means."""
    ids = [result.id for result in record.cases]
    shown = {
        cases[name].status for cases in (record.by_id, *others) for name in ids if name in cases
    }
    for status in Status:
        if status in shown:
            words = dict.fromkeys((status.value, status.label))
            yield f"{' or '.join(words)}: {status.meaning}"


def _styled(result: CaseResult, text: str) -> str:
    style = result.status.style
    return f"[{style}]{text}[/]" if style else text


def summary(record: ConformanceRecord) -> str:
    """Return one line: how many cases have which verdict, and the time."""
    counts = Counter(result.status for result in record.cases)
    parts = [f"{status.value}: {counts[status]}" for status in Status if counts[status]]
    return f"{len(record.cases)} cases in {record.seconds:.0f} s. {', '.join(parts)}"


def failing(record: ConformanceRecord, against: ConformanceRecord | None) -> list[str]:
    """Return the cases for which the command fails.

    Without ``against`` these are the cases that differ, take another path or hang; with it, those
    that agreed there and do not agree here.
    """
    if against is None:
        return [result.id for result in record.cases if result.status.bad]
    agreed = {case.id for case in against.cases if case.status is Status.AGREES}
    return [
        result.id
        for result in record.cases
        if result.id in agreed and result.status is not Status.AGREES
    ]


def nothing_agrees(record: ConformanceRecord) -> str:
    """Say that no case agrees, and whose fault the first error is; empty where one agrees."""
    if any(result.status is Status.AGREES for result in record.cases):
        return ""
    first = next((one for one in record.cases if one.message), None)
    why = "" if first is None else f" ({first.id}: {first.status.value}: {first.message[:200]})"
    remedy = (
        "this machine lacks what upstream needs, or torch or the rehearsal fails, see the message"
        if ours(record)
        else "the cause is in upstream: name a checkout that trains, or other cases"
    )
    return f"no case agrees{why}; {remedy}"


def ours(record: ConformanceRecord) -> bool:
    """Return whether the first error is not upstream's."""
    first = next((one for one in record.cases if one.message), None)
    return first is not None and first.status is Status.CANNOT_RUN


def against(record: ConformanceRecord, known: ConformanceRecord) -> str:
    """Return in words how many verdicts are those of a known upstream, and where they part."""
    parted: dict[str, list[str]] = defaultdict(list)
    same, others = 0, known.by_id
    for result in record.cases:
        other = others.get(result.id)
        if other is not None and other.status is result.status:
            same += 1
        elif other is not None:
            verdicts = f"{other.status.value} there and {result.status.value} here"
            parted[verdicts].append(result.id)
    differences = [f" {verdicts}: {', '.join(ids)}." for verdicts, ids in parted.items()]
    return (
        f"Against {known.name} with Transformer Engine {known.engine}: {same} of "
        f"{len(record.cases)} cases have the same verdict.{''.join(differences)}"
    )
