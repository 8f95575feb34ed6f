"""The record of a run of ``run.sh``: what passed on which card, from the files that it left.

Started as ``python -m benchmarks.gpu.record build/gpu --json benchmarks/gpu/results/h200.json``.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ringproof.files import write_atomically

_TEST = re.compile(r"^(\S+::.+?) (PASSED|FAILED|ERROR|SKIPPED)\b", re.MULTILINE)
_MACHINE = re.compile(r"^Python .*|^.+ x \d+ NCCL .*|Driver Version: \S+", re.MULTILINE)


def main(given: Sequence[str] | None = None) -> int:
    """Write the record of one folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="what run.sh wrote: its OUT")
    parser.add_argument("--json", type=Path, required=True, help="the record")
    arguments = parser.parse_args(given)
    if not list(arguments.folder.glob("*.txt")):
        print(f"error: folder: {arguments.folder} has no output of run.sh", file=sys.stderr)
        return 2
    text = json.dumps(record(arguments.folder), indent=1)
    write_atomically(arguments.json, text + "\n", field="--json")
    return 0


def record(folder: Path) -> dict[str, Any]:
    """What each part found; parts, and trainings, that did not run to their end are left out."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.txt"))}
    return {
        "machine": _MACHINE.findall(texts.get("machine", "")),
        "tests": {part: tests for part, text in texts.items() if (tests := dict(_tests(text)))},
        "attention": [_attention(path) for path in sorted(folder.glob("attention-*.json"))],
        "training": [_training(path) for path in sorted(folder.glob("*-bank.json"))],
        "sanitizer": re.findall(r"ERROR SUMMARY: .*", texts.get("sanitizer", "")),
    }


def _tests(text: str) -> list[tuple[str, str]]:
    return [(name, outcome.lower()) for name, outcome in _TEST.findall(text)]


def _attention(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text(encoding="utf-8"))
    case, errors = found["case"], found["max_abs_error"]
    kept = {name: case[name] for name in ("comm_type", "hierarchical_sizes", "dtype", "world")}
    device = {name: found[name] for name in ("backend", "device", "pass")}
    return {**kept, **device, "max_abs_error": errors, "tolerance": found["tolerance"]}


def _training(path: Path) -> dict[str, Any]:
    """Whether loss and gradient norm of each step by graphs are those without."""
    preset = path.name.removesuffix("-bank.json")
    with_graphs = _series(path.with_suffix(".jsonl"))
    summary = json.loads(path.read_text(encoding="utf-8"))
    without = _series(path.with_name(f"{preset}-static.jsonl"))
    return {
        "preset": preset,
        "steps": len(with_graphs),
        "same bits": bool(with_graphs) and with_graphs == without,
        "first loss": summary["first_loss"],
        "last loss": summary["last_loss"],
        "scope": summary["graphs"]["scope"],
        "entries": summary["graphs"]["entries"],
        "replays": summary["graph_totals"]["replays"],
        "eager": summary["graph_totals"]["eager"],
    }


def _series(path: Path) -> list[tuple[float, float]]:
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [(line["loss"], line["grad_norm"]) for line in lines if "grad_norm" in line]


if __name__ == "__main__":
    raise SystemExit(main())
