"""Tables of `docs/faults.md` from what was recorded; ``python -m benchmarks.training.fault_page``.

A check compares the page with the record and the record with the list of faults.
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
PAGE = ROOT / "docs" / "faults.md"
RECORD = Path(__file__).parent / "results" / "faults.json"
_BLOCK = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_LONGEST = 140

Rows = list[dict[str, Any]]


def rate_table(record: Mapping[str, Any]) -> str:
    """How many faults each check sees, the weakest first; the first four look at a training."""
    rows: Rows = record["faults"]
    trained = [row for row in rows if row["falls"] is not None]
    steps, loose = record["steps"], f"{record['loose']:.0e}".replace("e-0", "e-")
    checks = (
        (f"the loss is a number and falls within {steps} steps", trained, lambda r: not r["falls"]),
        (f"the loss is that of one rank within {loose}", trained, lambda r: not r["close"]),
        ("the loss is that of one rank within 1e-9", trained, lambda r: bool(r["loss"])),
        (
            "loss and gradient norm are those of one rank within 1e-9",
            trained,
            lambda r: bool(r["loss"] or r["grad_norm"]),
        ),
        ("all proofs", rows, lambda r: r["detected"]),
    )
    lines = ["| check | faults | seen | missed |", "|---|---|---|---|"]
    for name, met, sees in checks:
        missed = [row["id"] for row in met if not sees(row)]
        shown = ", ".join(f"`{name}`" for name in missed) if len(missed) <= 4 else str(len(missed))
        lines.append(f"| {name} | {len(met)} | {len(met) - len(missed)} | {shown or 'none'} |")
    return "\n".join(lines) + "\n"


def fault_table(record: Mapping[str, Any]) -> str:
    """Every fault: what is broken, what it looks like, what sees it."""
    lines = [
        "| fault | what is broken | stands for | proof that turns red | what it looks like "
        "| loss falls anyway |",
        "|---|---|---|---|---|---|",
    ]
    for row in record["faults"]:
        cells = (
            f"`{row['id']}`",
            row["broken"],
            row["stands_for"],
            row["proof"] if row["detected"] else f"**{row['proof']}: missed**",
            symptom(row),
            {None: "", True: "yes", False: "no"}[row["falls"]],
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def setup_table(record: Mapping[str, Any]) -> str:
    """The same runs without a fault."""
    rows: Rows = record["faults"]
    lines = ["| run | faults | largest difference without a fault |", "|---|---|---|"]
    for name, clean in record["clean"].items():
        count = sum(row["setup"] == name for row in rows)
        difference = "only planned" if name.startswith("plans") else f"{clean['largest']:.0e}"
        said = f"**red: {', '.join(clean['red'])}**" if clean["red"] else difference
        lines.append(f"| {name} | {count} | {said} |")
    return "\n".join(lines) + "\n"


def symptom(row: Mapping[str, Any]) -> str:
    """What a fault looks like, in a few words."""
    if row["said"]:
        text = row["said"].split("; every")[0].split(" (got")[0]
        return f"stops: {text[:_LONGEST]}{'…' if len(text) > _LONGEST else ''}"
    if row["problem"]:
        return row["problem"]
    if row["proof"] == "evaluation":
        return f"evaluation {row['evaluation']:.0e} off, training as it should be"
    if row["proof"] == "checkpoint":
        return f"the resumed loss is up to {row['resumed']:.0e} off"
    parts = [
        f"{name} {_course(row[key])}"
        for name, key in (("loss", "loss"), ("norm", "grad_norm"))
        if row[key]
    ]
    return "; ".join(parts)


def _course(quantity: Mapping[str, Any]) -> str:
    there, largest, first = quantity["there"], quantity["largest"], quantity["first"]
    if there is None:
        return f"is NaN from step {first}"
    start = f"{there:.0e} off in step {first}"
    kind = {"jump": " (jump)", "drift": " (drift)"}.get(quantity["kind"], "")
    return f"{start}{kind}, {'then NaN' if largest is None else f'at most {largest:.0e}'}"


def page(text: str, record: Mapping[str, Any]) -> str:
    """The page with every table as the record has it."""

    def block(found: re.Match[str]) -> str:
        return f"{found[1]}\n{TABLES[found[2]](record)}\n{found[3]}"

    return _BLOCK.sub(block, text)


TABLES: Mapping[str, Callable[[Mapping[str, Any]], str]] = MappingProxyType(
    {"rates": rate_table, "faults": fault_table, "setups": setup_table}
)


def read_record() -> dict[str, Any]:
    """What was recorded."""
    content: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
    return content


def main() -> int:
    """Rewrite the page."""
    write_atomically(PAGE, page(PAGE.read_text(encoding="utf-8"), read_record()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
