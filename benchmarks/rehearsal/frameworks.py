"""Rehearse launch scripts that verl and Megatron-Bridge publish, and record verdicts.

``python -m benchmarks.rehearsal.frameworks --clone verl=PATH --clone bridge=PATH`` reads the
scripts that ``frameworks.toml`` names from clones, bare or not, and runs ``ringproof rehearse`` on
each. Nothing of a script is kept: a row of ``results/frameworks.json`` has its path, the verdict
and which settings were changed, with both values where one is a number. A script that was recorded
is not run again unless it is named.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.records import environment
from ringproof.tables import read_table

TABLE = "frameworks.toml"
RESULTS = Path(__file__).parent / "results" / "frameworks.json"
KEPT = (
    "headline", "starts", "agrees", "largest_relative_difference", "megatron", "refused_by",
    "transformer_engine",
)  # fmt: skip


def written(clone: Path, commit: str, path: str, folder: Path) -> Path:
    """Write a script of a clone into a folder, at the path that it has in its repository."""
    text = subprocess.run(
        ["git", "-C", str(clone), "show", f"{commit}:{path}"], capture_output=True, check=True
    ).stdout
    script = folder / path
    script.parent.mkdir(parents=True)
    script.write_bytes(text)
    return script


def split_changes(changes: Sequence[Mapping[str, str]]) -> tuple[dict[str, str], list[str]]:
    """Return the changes with a number before or after, with both, and the names of the others."""
    numbers = {
        one["what"]: f"{one['before']} to {one['after']}"
        for one in changes
        if one["before"][:1].isdigit() or one["after"][:1].isdigit()
    }
    return numbers, sorted({one["what"] for one in changes} - numbers.keys())


def rehearsed(
    launch: Sequence[str], options: Sequence[str], folder: Path, steps: int = 2
) -> dict[str, Any]:
    """Rehearse a script or ``--`` with a command, and return the row of its verdict.

    Args:
        folder: Where the script's path begins, and logs are written.
    """
    target = folder / "result.json"
    command = [sys.executable, "-m", "ringproof", "rehearse", *options, "--steps", str(steps)]
    command += ["--json", str(target), "--out", str(folder / "out"), *launch]
    started = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    row = {"exit": done.returncode, "seconds": round(time.monotonic() - started, 1)}
    if not target.is_file():
        last = (done.stderr.strip().splitlines() or [""])[-1]
        return row | {"message": last.replace(f"{folder}/", "")}
    result = json.loads(target.read_text())
    numbers, others = split_changes(result["shrunk"])
    return row | {
        **{name: result[name] for name in KEPT},
        "grad_norm": result["agreement"]["largest_relative_difference_of_grad_norm"],
        "first": result["agreement"]["first_difference"],
        "memory_bytes": (result["program"] or {}).get("memory_bytes"),
        "ranks": [result["launch"]["ranks"], (result["program"] or {}).get("ranks")],
        "taken": result["path"]["taken"],
        "shrunk": numbers,
        "left_out": others,
    }


def row_of(
    entry: Mapping[str, Any], repository: Mapping[str, Any], clone: Path, more: Sequence[str]
) -> dict[str, Any]:
    """Rehearse an entry of the table."""
    given = list(entry.get("set", ()))
    options = [*entry.get("options", repository["options"]), *more]
    with tempfile.TemporaryDirectory(prefix="frameworks-") as name:
        folder = Path(name).resolve()
        script = written(clone, repository["commit"], entry["path"], folder)
        words = [word for value in given for word in ("--set", value)]
        row = rehearsed([str(script)], [*options, *words], folder)
    return {"of": entry["of"], "set": given, "options": options[: len(options) - len(more)], **row}


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--clone", action="append", required=True, metavar="verl|bridge=PATH")
    parser.add_argument("--only", nargs="*", default=[], help="run these again (parts of paths)")
    parser.add_argument("--offline", action="store_true", help="take releases from the cache")
    given = parser.parse_args()
    clones = dict(each.split("=", 1) for each in given.clone)
    table = read_table("benchmarks.rehearsal", TABLE)
    commits = {name: one["commit"] for name, one in table["repository"].items()}
    record = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    here = {name: environment()[name] for name in ("python", "torch")}
    if record.get("commits") != commits:
        record = {"commits": commits, "launches": {}}
    for entry in table["launch"]:
        path, of = entry["path"], entry["of"]
        again = any(word in path for word in given.only)
        if of not in clones or (path in record["launches"] and not again):
            continue
        more = ["--offline"] if given.offline else []
        row = here | row_of(entry, table["repository"][of], Path(clones[of]), more)
        record["launches"][path] = row
        RESULTS.write_text(json.dumps(record, indent=1) + "\n")
        print(row["exit"], row["seconds"], path, row.get("headline", row.get("message")))


if __name__ == "__main__":
    main()
