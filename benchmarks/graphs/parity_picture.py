"""Draws what was recorded; ``python -m benchmarks.graphs.parity_picture`` (needs matplotlib)."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ringproof.errors import InputError

ROOT = Path(__file__).parents[2]
RECORD = Path(__file__).parent / "results" / "parity.json"
PICTURE = ROOT / "docs" / "images" / "graphs-parity.png"
COLUMNS = 5
EDGE = 1e-15
"""Of the axis of differences: the last bit of a loss of 4 is 9e-16."""
COLOURS = ("#c6d8ec", "#7fa8d1", "#3b6ea5", "#1d3a5f")
"""Of CP 1, 2, 4 and 8."""


def draw(record: Mapping[str, Any], path: Path) -> None:
    """Loss of both sides and their difference for each row, and replays by CP size.

    Raises:
        InputError: matplotlib is missing.
    """
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise InputError(
            "matplotlib", None, "is not installed", "pip install matplotlib"
        ) from error
    rows = record["rows"]
    lines = -(-len(rows) // COLUMNS)
    figure = pyplot.figure(figsize=(14, 3.0 * lines + 3.2), layout="constrained")
    heights = [3.0, 1.2] * lines + [0.34 * len(rows) + 0.8]
    grid = figure.add_gridspec(len(heights), COLUMNS, height_ratios=heights)
    for number, row in enumerate(rows):
        line, column = divmod(number, COLUMNS)
        above = figure.add_subplot(grid[2 * line, column])
        below = figure.add_subplot(grid[2 * line + 1, column], sharex=above)
        _draw_row(row, above, below, first=column == 0)
    _draw_replays(rows, figure.add_subplot(grid[-1, :]))
    figure.savefig(path, dpi=110)


def _draw_row(row: Mapping[str, Any], above: Any, below: Any, *, first: bool) -> None:
    steps = range(1, 1 + row["steps"])
    static, bank = row["static"]["loss"], row["bank"]["loss"]
    above.plot(steps, static, color="#e0a458", lw=4.5, label="eager, at capacity")
    above.plot(steps, bank, "--", color="#1d3a5f", lw=1.2, label="by the graph bank")
    above.set_title(f"{row['preset']}\n{row['name']}, {row['scope']}", fontsize=9)
    above.tick_params(labelbottom=False)
    found = [one - other for one, other in zip(bank, static, strict=True)]
    edge = max(EDGE, *map(abs, found))
    below.plot(steps, found, color="#b85c5c", lw=1.4)
    below.set(ylim=(-1.1 * edge, 1.1 * edge), yticks=(-edge, 0, edge))
    below.set_yticklabels((f"{-edge:.0e}", "0", f"{edge:.0e}"))
    below.set_xlabel("step")
    for axes in (above, below):
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    if first:
        above.set_ylabel("loss")
        below.set_ylabel("difference")
        above.legend(fontsize=8, frameon=False, loc="upper right")


def _draw_replays(rows: Sequence[Mapping[str, Any]], axes: Any) -> None:
    """A bar of each row, a part for each CP size."""
    names = [f"{row['preset']}, {row['name']}, {row['scope']}" for row in rows]
    left = [0] * len(rows)
    for size, colour in zip((1, 2, 4, 8), COLOURS, strict=True):
        counts = [row["replays"].get(str(size), 0) for row in rows]
        bars = axes.barh(names, counts, left=left, color=colour, label=f"CP {size}")
        dark = colour in COLOURS[2:]
        axes.bar_label(
            bars,
            [f"{count:,}" if count else "" for count in counts],
            label_type="center",
            fontsize=8,
            color="white" if dark else "black",
        )
        left = [sum(pair) for pair in zip(left, counts, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel("microbatches taken through a stage by graphs, on all ranks")
    axes.tick_params(labelsize=8)
    axes.legend(fontsize=8, frameon=False, ncols=4, loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)


def main() -> int:
    """Draw the record, or another one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", type=Path, default=RECORD)
    parser.add_argument("--png", type=Path, default=PICTURE)
    arguments = parser.parse_args()
    draw(json.loads(arguments.json.read_text(encoding="utf-8")), arguments.png)
    return 0


if __name__ == "__main__":
    sys.exit(main())
