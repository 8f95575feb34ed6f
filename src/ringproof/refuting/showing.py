"""Shows on a terminal what became of refutations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.markup import escape

from ringproof.errors import printable
from ringproof.refuting.outcomes import Fate, Refuted


def print_refuted(found: Mapping[str, Sequence[Refuted]], console: Console) -> None:
    """Print what became of the refutations of each skill, and how many of each outcome."""
    rows = [row for own in found.values() for row in own]
    for fate in Fate:
        if any(row.outcome is fate for row in rows):
            console.print(f"[{fate.style}]{fate.value}[/]: {fate.meaning}", soft_wrap=True)
    for skill, own in found.items():
        console.print(f"[bold]{escape(skill)}[/]")
        for row in own:
            words = f"{row.proof}: {row.failure}" if row.proof else row.why
            head = f"  [{row.outcome.style}]{row.outcome.value}[/] {escape(row.statement)}"
            console.print(f"{head} {escape(printable(words))}", soft_wrap=True, highlight=False)
    counts = Counter(row.outcome for row in rows)
    told = ", ".join(f"{counts[fate]} {fate.value}" for fate in Fate if counts[fate])
    console.print(f"[bold]{len(rows)} statements: {told or 'none'}[/]")
