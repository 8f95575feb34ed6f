"""Input that graphs cannot be made of, and the line that a user reads.

    python -m benchmarks.graphs.refusals --json benchmarks/graphs/results/refusals.json
    python -m benchmarks.graphs.tables

Each runs `ringproof train`, a minute in all. Exit 1 where one is not refused with exit code 2.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringproof.files import write_atomically

COMMON = (
    "--schedule=dynamic --dtype=float64 --data=synthetic:mean=32 --max-length=64 "
    "--max-tokens-per-rank=64 --global-batch=8 --steps=2"
)


@dataclass(frozen=True)
class Wrong:
    """Input that is refused.

    Args:
        what: Is wrong about it.
        options: Of the command, beside :data:`COMMON`.
    """

    what: str
    options: str


WRONG = (
    Wrong("no GPU", "--cp 2 --graphs bank --graph-backend cuda"),
    Wrong("capacity below the longest sequence", "--cp 2 --graphs bank --graph-rows 16"),
    Wrong("capacity below the fullest pack", "--cp 2 --graphs bank --graph-sequences 1"),
    Wrong("more microbatches than slots", "--pp 2 --cp 2 --graphs bank --graph-slots 1"),
    Wrong("a layer that reads back", "--preset moonlight-tiny --cp 2 --graphs bank"),
    Wrong("nothing to capture", "--cp 2 --graphs bank --graph-scope router"),
    Wrong("a part that is run twice", "--cp 2 --graphs bank --graph-scope attn --recompute"),
    Wrong("parameters that move", "--cp 2 --graphs bank --fsdp"),
    Wrong("an option without effect", "--cp 2 --graphs static --graph-scope attn"),
)


def refuse(wrong: Wrong) -> dict[str, Any]:
    """What the command says, and its exit code."""
    command = [sys.executable, "-m", "ringproof", "train"]
    command += [*COMMON.split(), *wrong.options.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stderr.strip().splitlines()
    return {
        "what": wrong.what,
        "options": wrong.options,
        "said": lines[-1] if lines else "",
        "lines": len(lines),
        "exit_code": done.returncode,
    }


def holds(row: dict[str, Any]) -> bool:
    """Whether it was refused in one line."""
    return bool(row["exit_code"] == 2 and row["lines"] == 1)


def main() -> int:
    """Try all of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", default="")
    arguments = parser.parse_args()
    rows = []
    for wrong in WRONG:
        rows.append(refuse(wrong))
        print(f"{'ok ' if holds(rows[-1]) else 'RED'} {wrong.what:<36} {rows[-1]['said']}")
    if arguments.json:
        content = {"common": COMMON, "refusals": rows}
        text = json.dumps(content, indent=1) + "\n"
        write_atomically(Path(arguments.json), text, field="--json")
    return 0 if all(holds(row) for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
