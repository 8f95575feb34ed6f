"""Rehearse the training steps of frameworks with CP and without, and record the verdicts.

``python -m benchmarks.rehearsal.steps --folder NAME=PATH ...`` runs each launch of ``steps.toml``
whose folders are given, and writes ``results/steps.json``. A launch that was recorded is not run
again unless it is named. `NAME` stands in braces in a launch; `programs` is this folder.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.records import environment
from benchmarks.rehearsal.frameworks import rehearsed
from ringproof.files import write_atomically
from ringproof.tables import read_table

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "steps.json"
STEPS = 5
KEPT = (
    "exit", "seconds", "message", "headline", "starts", "agrees", "largest_relative_difference",
    "grad_norm", "first", "memory_bytes", "megatron", "transformer_engine",
)  # fmt: skip


def launches() -> dict[str, dict[str, Any]]:
    """Return the launches of ``steps.toml`` by the names of their rows."""
    table = read_table("benchmarks.rehearsal", "steps.toml")["launch"]
    return {f"{one['of']}: {one['what']}": one for one in table}


def row_of(launch: str, options: list[str]) -> dict[str, Any]:
    """Rehearse a launch and return its verdict, with the load of the machine before it."""
    load = round(os.getloadavg()[0], 1)
    with tempfile.TemporaryDirectory(prefix="steps-") as name:
        row = rehearsed(["--", *launch.split()], options, Path(name).resolve(), STEPS)
    refused = row.get("refused_by") or {}
    place = {"place": f"{refused['file']}:{refused['line']}"} if refused.get("file") else {}
    return {**{one: row[one] for one in KEPT if one in row}, **place, "load": load}


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--only", nargs="*", default=[], help="run these alone, also again")
    given = parser.parse_args()
    folders = {"programs": str(HERE), **dict(each.split("=", 1) for each in given.folder)}
    record = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    rows: dict[str, Mapping[str, Any]] = record.get("rows", {})
    here = {name: environment()[name] for name in ("python", "torch", "cores")}
    for name, entry in launches().items():
        launch = entry["launch"]
        for folder, path in folders.items():
            launch = launch.replace(f"{{{folder}}}", path)
        again = name in given.only
        if "{" in launch or (name in rows and not again) or (given.only and not again):
            continue
        rows[name] = {"ranks": entry["ranks"], **here, **row_of(launch, entry.get("options", []))}
        text = json.dumps({"steps": STEPS, "rows": rows}, indent=1)
        write_atomically(RESULTS, text + "\n", field="--json")
        row = rows[name]
        print(name, row["exit"], row["seconds"], row.get("headline", row.get("message")))


if __name__ == "__main__":
    main()
