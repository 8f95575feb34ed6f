"""Two training logs compared, for a reader at a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ringproof.harness.logs.training.comparison import (
    Comparison,
    cautions,
    readings,
)
from ringproof.harness.logs.training.log import TrainingLog
from ringproof.harness.logs.training.verdict import Kind
from ringproof.harness.reports.printable import showable

COLUMNS = ("series", "verdict", "difference", "step", "A", "B", "relative")
_WIDTH = 118


def print_comparison(result: Comparison, console: Console) -> None:
    """Print the verdict, one table, and the remarks."""
    colour = "bold green" if result.within else "bold red"
    _line(console, Text(f"verdict: {headline(result)}", colour))
    for log in (result.a, result.b):
        _line(console, Text(f"  {log.role}  {described(log)}", "dim"))
    console.print()
    wide = Console(file=console.file, width=max(console.width, _WIDTH), no_color=console.no_color)
    wide.print(_table(result), highlight=False)
    console.print()
    for kind, text in remarks(result):
        _line(console, Text(f"{kind}: {text}"))


def headline(result: Comparison) -> str:
    """The verdict in one line: ``jump in grad_norm at step 37, beyond 1e-09``."""
    decides = result.deciding
    kind = decides.judgement.kind.value
    steps = f"{len(decides.common.steps):,} common steps"
    if result.within:
        return f"{_agreement(result)} over {steps}"
    if decides.first is None:
        return f"{kind} in {decides.name}"
    if decides.judgement.kind is Kind.START:
        return (
            f"{decides.name} is {kind} (step {decides.first.step:,}), beyond {result.tolerance:g}"
        )
    return f"{kind} in {decides.name} at step {decides.first.step:,}, beyond {result.tolerance:g}"


def _agreement(result: Comparison) -> str:
    decides = result.deciding
    hidden = max(one.resolution[1] for one in result.series)
    if decides.judgement.kind is Kind.EQUAL:
        return "equal to the last printed digit" if hidden else "equal"
    shown_so = ", as far as the logs show," if hidden > result.tolerance else ""
    apart = f" (at most {decides.largest.relative:.2g})" if decides.largest else ""
    return f"within {result.tolerance:g}{apart}{shown_so}"


def described(log: TrainingLog) -> str:
    """A log in one line: its path, format and steps."""
    one = next(iter(log.series.values()))
    every = f" every {one.interval:,}" if one.interval > 1 else ""
    names = ", ".join(
        name if series.column == name else f"{name} as {series.column}"
        for name, series in log.series.items()
    )
    span = f"{one.steps[0]:,} to {one.steps[-1]:,}{every}"
    return showable(f"{log.path}: {log.format}, {len(one):,} steps, {span} ({names})", 300)


def remarks(result: Comparison) -> Iterator[tuple[str, str]]:
    """Findings and cautions, each with the word that begins it."""
    yield from (("finding", showable(text, 400)) for text in readings(result))
    yield from (("caution", showable(text, 400)) for text in cautions(result))


def rows(result: Comparison) -> Iterator[tuple[str, ...]]:
    """The points of each series that are worth a line, as the cells of `COLUMNS`."""
    for one in result.series:
        said = showable(one.name), one.judgement.kind.value
        points = [("first beyond", one.first), ("largest", one.largest)]
        found = [(what, point) for what, point in points if point is not None]
        if not found:
            yield (*said, "none", "", "", "", "")
        for what, point in found:
            values = repr(point.a), repr(point.b), f"{point.relative:.3g}"
            yield (*said, what, f"{point.step:,}", *values)


def _table(result: Comparison) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for place, name in enumerate(COLUMNS):
        table.add_column(name, no_wrap=True, justify="left" if place < 3 else "right")
    before: tuple[str, ...] = ()
    for row in rows(result):
        shown = ("", "", *row[2:]) if row[:2] == before else row
        table.add_row(*map(Text, shown))
        before = row[:2]
    return table


def _line(console: Console, text: Text) -> None:
    console.print(text, soft_wrap=True, highlight=False)
