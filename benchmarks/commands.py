"""Seconds and peak memory of two commands as whole processes: ``anchors check``, ``logs groups``.

    python -m benchmarks.commands --upstream NVIDIA/Megatron-LM=git:../Megatron-LM

``anchors check`` looks up the anchors of this repository's cards; those of upstreams that are not
given are looked up in the wheel cache, or are not here. ``logs groups`` reads a large log like one
of a training, with the census at its start and the traffic at its end, which is written to a
temporary folder first.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from ringproof.reference.topology.census_line import CensusLine, TrafficLine

SKILLS = Path(__file__).parents[1] / "skills"
ROUNDS = 5
ITERATION = (
    " [2026-01-01 00:00:00] iteration {:8d}/ 1000000 | consumed samples: {:12d} |"
    " elapsed time per iteration (ms): 412.3 | learning rate: 3.0E-04 | lm loss: 2.345678E+00 |\n"
)
LEVELS = (
    ("CONTEXT_PARALLEL_GROUP", (0, 1, 2, 3), ()),
    ("HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L0", (0, 1), (("all_to_all", 8),)),
    ("HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L1", (0, 2), (("send", 4),)),
)


def write_log(path: Path, size_bytes: int) -> None:
    """Write a log of about that size."""
    block = "".join(ITERATION.format(i, i * 64) for i in range(4096)).encode()
    census = [CensusLine(0, 4, name, "nccl", ranks, 0).format() for name, ranks, _ in LEVELS]
    traffic = [TrafficLine(0, 4, name, done, 4096 * len(done)).format() for name, _, done in LEVELS]
    with path.open("wb") as file:
        file.write("\n".join(census).encode() + b"\n")
        for _ in range(size_bytes // len(block)):
            file.write(block)
        file.write("\n".join(traffic).encode() + b"\n")


def measure(arguments: Sequence[str], rounds: int = ROUNDS) -> int:
    """Print the median seconds and the highest peak memory of a command; return its exit code.

    One unmeasured run comes first, so that every measured run finds its files in the page cache.
    """
    runs = [_once([sys.executable, "-m", "ringproof", *arguments]) for _ in range(rounds + 1)][1:]
    seconds = statistics.median(seconds for seconds, _, _ in runs)
    megabytes = max(kilobytes for _, kilobytes, _ in runs) * 1024 / 1e6
    code = max(code for _, _, code in runs)
    print(f"{seconds:6.2f} s {megabytes:6.0f} MB exit code {code}: {' '.join(arguments)}")
    return code


def _once(command: Sequence[str]) -> tuple[float, int, int]:
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return time.perf_counter() - start, usage.ru_maxrss, process.returncode


def main() -> int:
    """Measure both commands, and the start of the program for comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--upstream", action="append", default=[], metavar="NAME=SPEC")
    parser.add_argument("--gigabytes", type=float, default=2.0, help="size of the log")
    options = parser.parse_args()
    given = [part for spec in options.upstream for part in ("--upstream", spec)]
    codes = [
        measure(["--version"]),
        measure(["anchors", "check", "--offline", "--skills", str(SKILLS), *given]),
    ]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "run.log"
        write_log(log, int(options.gigabytes * 1e9))
        expected = ["--expect", "hierarchical", "--hcp", "2,2"]
        codes.append(measure(["logs", "groups", str(log), *expected], rounds=1))
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
