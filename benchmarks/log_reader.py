"""How fast, and in how much memory, ``ringproof logs groups`` reads a large log.

    python benchmarks/log_reader.py --gigabytes 2

Writes a training-like log to a temporary folder, with the census at its start and the traffic at
its end, runs the command on it as a user would, and removes it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ringproof.reference.topology.census_line import CensusLine, TrafficLine

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
    """A log of about that size."""
    block = "".join(ITERATION.format(i, i * 64) for i in range(4096)).encode()
    census = [CensusLine(0, 4, name, "nccl", ranks, 0).format() for name, ranks, _ in LEVELS]
    traffic = [TrafficLine(0, 4, name, done, 4096 * len(done)).format() for name, _, done in LEVELS]
    with path.open("wb") as file:
        file.write("\n".join(census).encode() + b"\n")
        for _ in range(size_bytes // len(block)):
            file.write(block)
        file.write("\n".join(traffic).encode() + b"\n")


def main() -> None:
    """Generate, read, print."""
    parser = argparse.ArgumentParser(description="Read a large log.")
    parser.add_argument("--gigabytes", type=float, default=2.0, help="size of the log")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.log"
        write_log(path, int(arguments.gigabytes * 1e9))
        command = [sys.executable, "-m", "ringproof", "logs", "groups", str(path)]
        start = time.perf_counter()
        done = subprocess.run(
            [*command, "--expect", "hierarchical", "--hcp", "2,2", "--json", "-"],
            capture_output=True,
            check=False,
        )
        seconds = time.perf_counter() - start
        size = path.stat().st_size
    peak_bytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    report = json.loads(done.stdout)
    print(f"verdict {report['verdict']} by {report['proof']}, exit code {done.returncode}")
    print(
        f"{size / 1e9:.2f} GB in {seconds:.1f} s ({size / 1e6 / seconds:.0f} MB/s), "
        f"peak memory {peak_bytes / 1e6:.0f} MB, {os.cpu_count()} cores"
    )
    if done.returncode or report["verdict"] != "hierarchical":
        sys.exit(1)


if __name__ == "__main__":
    main()
