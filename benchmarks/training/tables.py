"""Tables of `docs/training.md` from what was recorded; ``python -m benchmarks.training.tables``.

A check compares the page with the records, so that neither can change alone.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ringproof.files import write_atomically

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "training.md"
RESULTS = Path(__file__).parent / "results"
_BLOCK = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def matrix_table(result: Mapping[str, Any]) -> str:
    """Largest relative difference of every layout, a column for each model."""
    models = list(dict.fromkeys((row["preset"], row["mtp"]) for row in result["rows"]))
    spreads = list(dict.fromkeys(row["spread"] for row in result["rows"]))
    cells = {(row["spread"], row["preset"], row["mtp"]): row for row in result["rows"]}
    ranks = {row["spread"]: row["ranks"] for row in result["rows"]}
    names = [f"{preset}{f' +MTP {mtp}' if mtp else ''}" for preset, mtp in models]
    lines = [
        f"| layout | ranks | {' | '.join(names)} |",
        f"|---|---|{'---|' * len(names)}",
    ]
    for spread in spreads:
        found = [_difference(cells[(spread, *model)], result["tolerance"]) for model in models]
        lines.append(f"| {spread} | {ranks[spread]} | {' | '.join(found)} |")
    return "\n".join(lines) + "\n"


def schedule_table(result: Mapping[str, Any]) -> str:
    """What each schedule costs."""
    lines = [
        "| schedule | tokens/s | rounds from to | padding share | mean CP size | microbatches |",
        "|---|---|---|---|---|---|",
    ]
    for name, curve in result["curves"].items():
        speed = result["speed"][name]
        lines.append(
            f"| {name} | {speed['tokens_per_second']:,.0f} "
            f"| {speed['slowest']:,.0f} to {speed['fastest']:,.0f} "
            f"| {curve['padding_fraction']:.1%} | {curve['mean_cp_size']:.2f} "
            f"| {curve['microbatches']:.1f} |"
        )
    return "\n".join(lines) + "\n"


def page(text: str) -> str:
    """The page with every table as the records have it."""
    return _BLOCK.sub(lambda found: f"{found[1]}\n{_table(found[2])}\n{found[3]}", text)


def _table(name: str) -> str:
    file, make = TABLES[name]
    return make(json.loads((RESULTS / file).read_text(encoding="utf-8")))


def _difference(row: Mapping[str, Any], tolerance: float) -> str:
    difference = row["difference"]
    if difference is None:
        return f"**{row['error'] or 'not a number'}**"
    text = f"{difference:.0e}" if difference else "0"
    return text if difference <= tolerance else f"**{text}**"


TABLES: Mapping[str, tuple[str, Callable[[Mapping[str, Any]], str]]] = MappingProxyType(
    {"matrix": ("matrix.json", matrix_table), "schedules": ("convergence.json", schedule_table)}
)


def main() -> int:
    """Rewrite the page."""
    write_atomically(PAGE, page(PAGE.read_text(encoding="utf-8")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
