"""``ringproof anchors check`` as a whole process: seconds and peak memory, by number of anchors.

Always: a synthetic upstream in a bare git repository made here (40 files of 100 functions) with
50 and 1,000 anchors. With ``--upstream``: this repository's own cards against real repositories;
anchors of upstreams that are not given are looked up in the wheel cache, or are not here.
The baseline is the start of the same command without any anchor work (``--version``).

    python benchmarks/anchor_check.py --json build/anchor_check.json \\
        --upstream NVIDIA/Megatron-LM=git:../Megatron-LM
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pygit2

FILES, FUNCTIONS = 40, 100
ROUNDS = 5
LIMITS = {50: (2.0, 300), 1000: (10.0, 300)}  # anchors: seconds, MB


def module(number: int) -> str:
    """A file of functions with the usual ingredients; about 1,500 lines."""
    chosen = random.Random(number)
    parts = ['"""Words."""\n\nimport argparse\n']
    for index in range(FUNCTIONS):
        a, b = chosen.randrange(100), chosen.randrange(100)
        parts.append(
            f"def function_{index}(first, second: int = {a}, *, third=None):\n"
            f'    """Do thing {index}; words on it."""\n'
            f"    total = 0\n"
            f"    for item in range(first):\n"
            f"        if item % {b + 2} == 0 and third is not None:\n"
            f"            # a remark\n"
            f'            raise ValueError(f"{{item}} cannot be divided by {b}")\n'
            f"        total += helper(item, scale={b}, table=[{a}, {b}, second])\n"
            f'    return {{"total": total, "name": "function_{index}"}}\n'
        )
    options = "".join(f'    parser.add_argument("--option-{n}", default={n})\n' for n in range(50))
    parts.append(f"def add_arguments(parser: argparse.ArgumentParser) -> None:\n{options}")
    return "\n\n".join(parts)


def make_upstream(path: Path) -> str:
    """A bare repository with the synthetic files; its commit."""
    repository = pygit2.init_repository(str(path), bare=True)
    index = pygit2.Index()
    for number in range(FILES):
        blob = repository.create_blob(module(number).encode())
        entry = pygit2.IndexEntry(f"pkg/file_{number}.py", blob, pygit2.enums.FileMode.BLOB)
        index.add(entry)
    author = pygit2.Signature("Nobody", "nobody@example.org")
    tree = index.write_tree(repository)
    made = repository.create_commit("refs/heads/main", author, author, "files", tree, [])
    return str(made)


def make_skill(skills: Path, anchors: int, commit: str) -> None:
    """A card with this many anchors, one in ten on an option, spread over all files."""
    lines = ["title: t", "summary: s", "validated_on: 2026-01-01", "upstreams:"]
    lines += [f"  up: {{repo: some/where, ref: main, commit: {commit}}}", "anchors:"]
    for number in range(anchors):
        place = number // FILES
        symbol = f"'--option-{place % 50}'" if number % 10 == 0 else f"function_{place % FUNCTIONS}"
        expects = "[]" if number % 10 == 0 else "[ValueError, cannot be divided, helper]"
        path = f"pkg/file_{number % FILES}.py"
        lines.append(
            f"  - {{id: a{number}, upstream: up, path: {path}, symbol: {symbol}, role: r, "
            f"expects: {expects}}}"
        )
    folder = skills / f"with-{anchors}"
    folder.mkdir(parents=True)
    (folder / "card.yaml").write_text("\n".join(lines) + "\n")
    (folder / "SKILL.md").write_text("x")


def measure(arguments: Sequence[str], rounds: int = ROUNDS) -> dict[str, Any]:
    """Median seconds and highest peak memory of a command, after one unmeasured run."""
    runs = [_once([sys.executable, "-m", "ringproof", *arguments]) for _ in range(rounds + 1)][1:]
    return {
        "seconds": round(statistics.median(seconds for seconds, _, _ in runs), 3),
        "seconds_slowest": round(max(seconds for seconds, _, _ in runs), 3),
        "peak_mb": round(max(kilobytes for _, kilobytes, _ in runs) / 1024, 1),
        "exit_codes": sorted({code for _, _, code in runs}),
    }


def _once(command: Sequence[str]) -> tuple[float, int, int]:
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return time.perf_counter() - start, usage.ru_maxrss, process.returncode


def synthetic(folder: Path) -> dict[str, Any]:
    """The check of the synthetic cards."""
    commit = make_upstream(folder / "upstream")
    given = ["--skills", str(folder / "skills"), "--upstream", f"up=git:{folder / 'upstream'}"]
    for anchors in LIMITS:
        make_skill(folder / "skills", anchors, commit)
    return {
        str(anchors): measure(["anchors", "check", f"with-{anchors}", *given]) for anchors in LIMITS
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--upstream", action="append", default=[], metavar="NAME=SPEC")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report: dict[str, Any] = {
            "python": platform.python_version(),
            "cpus": os.cpu_count(),
            "baseline": measure(["--version"]),
            "synthetic": synthetic(Path(folder)),
        }
    if options.upstream:
        skills = Path(__file__).parents[1] / "skills"
        given = [part for spec in options.upstream for part in ("--upstream", spec)]
        command = ["anchors", "check", "--offline", "--skills", str(skills), *given]
        report["cards"] = measure(command)
    text = json.dumps(report, indent=2)
    print(text)
    if options.json is not None:
        options.json.write_text(text + "\n")
    return 0 if all(_within(report["synthetic"][str(key)], key) for key in LIMITS) else 1


def _within(found: dict[str, Any], anchors: int) -> bool:
    seconds, megabytes = LIMITS[anchors]
    fast = found["seconds"] <= seconds and found["peak_mb"] <= megabytes
    return fast and found["exit_codes"] == [0]


if __name__ == "__main__":
    sys.exit(main())
