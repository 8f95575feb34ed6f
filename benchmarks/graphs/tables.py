"""Tables of `docs/graphs.md` from what was recorded; ``python -m benchmarks.graphs.tables``.

A check compares the page with the records, so that neither can change alone.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.graphs import pitfalls
from ringproof.files import write_atomically

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "graphs.md"
RESULTS = Path(__file__).parent / "results"
_BLOCK = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

Record = Mapping[str, Any]


def parity_table(record: Record) -> str:
    """Each training by graphs against the same without."""
    head = (
        "model",
        "layout",
        "scope",
        "ranks",
        "largest difference",
        "microbatches replayed, by CP size",
        "eager",
        "seconds eager",
        "seconds replayed",
        "against unpadded packs",
    )
    return _table(head, (_parity_cells(row) for row in record["rows"]))


def control_table(record: Record) -> str:
    """What the same comparison says where a replay is broken."""
    head = ("what is broken", "largest difference", "first in step", "loss, first to last step")
    return _table(
        head,
        (
            (
                control["broken"],
                _difference(control["difference"]),
                str(control["first_step"]) if control["seen"] else "**not seen**",
                " to ".join(f"{loss:.2f}" for loss in control["losses"]),
            )
            for control in record["controls"]
        ),
    )


def memory_table(record: Record) -> str:
    """What was captured, and what it holds."""
    head = (
        "model",
        "layout",
        "scope",
        "slots",
        "entries a rank",
        "captured in",
        "MiB of an entry, by CP size",
        "MiB of a rank",
    )
    return _table(head, (_memory_cells(row) for row in record["rows"]))


def cost_table(record: Record) -> str:
    """What the tape costs."""
    head = (
        "layer of",
        "operations",
        "eager, ms",
        "replay / eager",
        "without poison",
        "capture / eager",
    )
    return _table(
        head,
        (
            (
                layer["model"],
                " + ".join(map(str, layer["operations"])),
                f"{layer['milliseconds']['eager']:.2f}",
                *(f"{ratio:.1f}" for ratio in layer["replay_over_eager"].values()),
                f"{layer['capture_over_eager']:.0f}",
            )
            for layer in record["layers"]
        ),
    )


def pitfall_table(record: Record) -> str:
    """Every pitfall: what a device does of it, and what a user reads here."""
    head = ("pitfall", "what is broken", "what a device does", "message", "proof")
    return _table(head, (_pitfall_cells(row) for row in record["pitfalls"]))


def refusal_table(record: Record) -> str:
    """Input that is refused, with the line that a user reads."""
    head = ("input", "options", "message")
    rows = record["refusals"]
    return _table(head, ((r["what"], f"`{r['options']}`", f"`{r['said']}`") for r in rows))


def page(text: str) -> str:
    """The page with every table as the records have it."""
    return _BLOCK.sub(lambda found: f"{found[1]}\n{_recorded(found[2])}\n{found[3]}", text)


def _parity_cells(row: Record) -> tuple[str, ...]:
    never = [size for size in row["sizes"] if not row["replays"].get(str(size))]
    replays = ", ".join(f"{size}: {count:,}" for size, count in row["replays"].items())
    return (
        row["preset"],
        _layout(row),
        row["scope"],
        str(row["ranks"]),
        "0" if row["bitwise"] and row["finite"] else f"**{_difference(row['difference'])}**",
        f"{replays}; **never {', '.join(map(str, never))}**" if never else replays,
        f"**{row['eager']}**" if row["eager"] else "0",
        f"{row['seconds']['static']:.0f}",
        f"{row['seconds']['bank']:.0f}",
        f"{row['off_difference']:.0e}",
    )


def _memory_cells(row: Record) -> tuple[str, ...]:
    graphs = row["graphs"]
    entries = (
        f"{size}: {_mebibytes(held['per_entry'])}" for size, held in graphs["memory"].items()
    )
    return (
        row["preset"],
        _layout(row),
        row["scope"],
        str(graphs["slots"]),
        str(graphs["entries_of_rank"]),
        f"{graphs['capture_seconds']:.1f} s",
        ", ".join(entries),
        _mebibytes(graphs["total"]),
    )


def _pitfall_cells(row: Record) -> tuple[str, ...]:
    silent, message = row["silent"], f"`` {row['said']} ``" if row["said"] else "none"
    if row["difference"] is not None:
        silent += f" (off by {row['difference']:.0%})"
    if row["silent"] == "hang":
        message += f"; gone on without graphs, {row['note']}"
    elif row["note"]:
        silent += f"; {row['note']}"
    return (
        f"`{row['id']}`",
        row["broken"],
        silent if pitfalls.holds(row) else f"**missed**: {silent}",
        message,
        f"`{row['proof'].partition('::')[2]}`",
    )


def _layout(row: Record) -> str:
    """With the CP sizes, where the name does not say them."""
    sizes = ", ".join(map(str, row["sizes"]))
    return row["name"] if "CP" in row["name"] else f"{row['name']}, CP {sizes}"


def _difference(value: float | None) -> str:
    return "not a number" if value is None else f"{value:.0e}"


def _mebibytes(count: float) -> str:
    return f"{count / 2**20:.2f}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def _recorded(name: str) -> str:
    file, make = TABLES[name]
    return make(json.loads((RESULTS / file).read_text(encoding="utf-8")))


TABLES: Mapping[str, tuple[str, Callable[[Record], str]]] = MappingProxyType(
    {
        "parity": ("parity.json", parity_table),
        "controls": ("parity.json", control_table),
        "memory": ("parity.json", memory_table),
        "cost": ("tape.json", cost_table),
        "pitfalls": ("pitfalls.json", pitfall_table),
        "refusals": ("refusals.json", refusal_table),
    }
)


def main() -> int:
    """Rewrite the page."""
    write_atomically(PAGE, page(PAGE.read_text(encoding="utf-8")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
