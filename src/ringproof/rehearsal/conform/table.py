"""The table that ``ringproof conform`` prints: this upstream beside known ones."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from types import MappingProxyType

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ringproof.rehearsal.conform.cases import CASES
from ringproof.rehearsal.conform.result import (
    LABELS,
    MEANINGS,
    WORSE,
    CaseResult,
    Known,
    Record,
    Status,
)

STYLES = MappingProxyType(
    {
        Status.AGREES: "green",
        Status.DIFFERS: "bold red",
        Status.OTHER_PATH: "red",
        Status.RACES: "bold red",
        Status.HUNG: "bold red",
        Status.NOT_OFFERED: "dim",
    }
)


def print_record(record: Record, known: Sequence[Known], console: Console) -> None:
    """Print a record, what known upstreams did with the same cases, and every message."""
    for line in _legend(record, known):
        console.print(line, soft_wrap=True)
    title = f"{record.name} with Transformer Engine {record.engine}, {record.iterations} steps"
    table = Table(title=escape(title), title_justify="left")
    table.add_column("case", no_wrap=True)
    table.add_column("this", no_wrap=True)
    for one in known:
        table.add_column(escape(one.short), overflow="fold")
    group = ""
    by_id = {case.id: case for case in CASES}
    for result in record.cases:
        if by_id[result.id].group != group:
            group = by_id[result.id].group
            table.add_section()
        table.add_row(result.id, _cell(result), *(_known_cell(one, result.id) for one in known))
    console.print(table)
    for result in record.cases:
        if result.message:
            where = f" ({result.place})" if result.place else ""
            console.print(escape(f"{result.id}: {result.status.value}: {result.message}{where}"))
    console.print(summary(record))


def _legend(record: Record, known: Sequence[Known]) -> Iterator[str]:
    """Yield what each verdict in the table means."""
    shown = {result.status for result in record.cases}
    shown |= {
        one.cases[result.id].status
        for one in known
        for result in record.cases
        if result.id in one.cases
    }
    for status, meaning in MEANINGS.items():
        if status in shown:
            words = dict.fromkeys((status.value, LABELS[status]))
            yield f"{' or '.join(words)}: {meaning}"


def _cell(result: CaseResult) -> str:
    difference = result.largest_difference
    text = result.status.value if difference is None else f"{result.status.value} {difference:.1e}"
    style = STYLES.get(result.status)
    return f"[{style}]{text}[/]" if style else text


def _known_cell(known: Known, name: str) -> str:
    case = known.cases.get(name)
    if case is None:
        return ""
    style = STYLES.get(case.status)
    return f"[{style}]{LABELS[case.status]}[/]" if style else LABELS[case.status]


def summary(record: Record) -> str:
    """Return one line: how many cases have which verdict, and the time."""
    counts = Counter(result.status for result in record.cases)
    parts = [f"{status.value}: {counts[status]}" for status in MEANINGS if counts[status]]
    return f"{len(record.cases)} cases in {record.seconds:.0f} s. {', '.join(parts)}"


def failing(record: Record, against: Known | None) -> list[str]:
    """Return the cases for which the command fails.

    Without ``against`` these are the cases that differ, take another path or hang; with it, those
    that agreed there and do not agree here.
    """
    if against is None:
        return [result.id for result in record.cases if result.status in WORSE]
    agreed = {name for name, case in against.cases.items() if case.status is Status.AGREES}
    return [
        result.id
        for result in record.cases
        if result.id in agreed and result.status is not Status.AGREES
    ]


def against(record: Record, known: Known) -> str:
    """Return in words how many verdicts are those of a known upstream, and where they part."""
    parted: dict[str, list[str]] = defaultdict(list)
    same = 0
    for result in record.cases:
        other = known.cases.get(result.id)
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
