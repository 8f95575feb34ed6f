"""The whole parity matrix: every preset, with and without MTP, in every layout, against one rank.

    python -m benchmarks.training.parity_matrix --json benchmarks/training/results/matrix.json

Half an hour on two cores. What CI runs of it is in `smoke/test_training_parity.py`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ringproof.cluster import Cluster, ClusterOptions, RankFailure, drop
from ringproof.files import write_atomically
from smoke.training_matrix import (
    ONE_RANK,
    PRESETS,
    SPREADS,
    STEPS,
    TOLERANCE,
    Spread,
    largest_difference,
    options_of,
    series,
)


def main() -> int:
    """Run what is asked for; exit 1 where something is beyond the tolerance."""
    arguments = _arguments()
    rows: list[dict[str, Any]] = []
    with Cluster(8, ClusterOptions(timeout_seconds=600, log_sink=drop)) as cluster:
        for row in _every_row(cluster, arguments):
            rows.append(row)
            print(_line(row), flush=True)
            if arguments.json:
                _write(Path(arguments.json), rows, arguments.steps)
    return 0 if all(row["difference"] <= TOLERANCE for row in rows) else 1


def _every_row(cluster: Cluster, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for preset, mtp in itertools.product(arguments.presets, arguments.mtp):
        yield from _rows(cluster, preset, mtp, arguments.steps)


def _rows(cluster: Cluster, preset: str, mtp: int, steps: int) -> Iterator[dict[str, Any]]:
    def run(spread: Spread) -> Any:
        options = options_of(preset, spread, mtp=mtp, steps=steps)
        return cluster.run(series, world_size=spread.ranks, options=options).values

    wanted = run(ONE_RANK)[0]
    for name, spread in SPREADS.items():
        started = time.perf_counter()
        row = {"preset": preset, "mtp": mtp, "spread": name, "ranks": spread.ranks}
        try:
            values = run(spread)
            difference = max(largest_difference(found, wanted) for found in values)
            error = ""
        except RankFailure as failure:
            difference, error = float("inf"), str(failure).splitlines()[0]
        seconds = round(time.perf_counter() - started, 1)
        yield {**row, "difference": difference, "seconds": seconds, "error": error}


def _line(row: dict[str, Any]) -> str:
    verdict = "ok " if row["difference"] <= TOLERANCE else "RED"
    mtp = f" +MTP {row['mtp']}" if row["mtp"] else ""
    return (
        f"{verdict} {row['preset'] + mtp:<24} {row['spread']:<38} {row['difference']:.1e} "
        f"{row['seconds']:6.1f} s {row['error']}"
    )


def _write(path: Path, rows: list[dict[str, Any]], steps: int) -> None:
    import torch

    content = {
        "steps": steps,
        "tolerance": TOLERANCE,
        "dtype": "float64",
        "environment": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "backend": "gloo",
        },
        "rows": [{**row, "difference": _sayable(row["difference"])} for row in rows],
    }
    write_atomically(path, json.dumps(content, indent=1) + "\n", field="--json")


def _sayable(difference: float) -> float | None:
    return difference if difference < float("inf") else None


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--presets", nargs="+", default=PRESETS, choices=PRESETS)
    parser.add_argument("--mtp", nargs="+", type=int, default=(0, 1))
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--json", default="")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
