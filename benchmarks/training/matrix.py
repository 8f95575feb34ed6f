"""The whole parity matrix: every preset, with and without MTP, in every layout, against one rank.

    python -m benchmarks.training.matrix --json benchmarks/training/results/matrix.json
    python -m benchmarks.tables

Half an hour on two cores. Exit 1 where a difference is beyond the tolerance. What CI runs of it is
in `smoke/test_training_parity.py`.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.records import write_record
from ringproof.cluster import Cluster, ClusterOptions, RankFailure, drop
from smoke import trials
from smoke.training_matrix import (
    ONE_RANK,
    PRESETS,
    SPREADS,
    STEPS,
    TOLERANCE,
    Spread,
    largest_difference,
    options_of,
)


def compared(cluster: Cluster, preset: str, mtp: int, steps: int) -> Iterator[dict[str, Any]]:
    """Train a model in every layout, and compare each with one rank."""

    def run(spread: Spread) -> Any:
        options = options_of(preset, spread, mtp=mtp, steps=steps)
        values = cluster.run(trials.train, world_size=spread.ranks, options=options).values
        return [value.steps for value in values]

    wanted = run(ONE_RANK)[0]
    for name, spread in SPREADS.items():
        started, difference, error = time.perf_counter(), float("inf"), ""
        try:
            difference = max(largest_difference(found, wanted) for found in run(spread))
        except RankFailure as failure:
            error = str(failure).splitlines()[0]
        yield {
            "preset": preset,
            "mtp": mtp,
            "spread": name,
            "ranks": spread.ranks,
            "difference": difference if difference < float("inf") else None,
            "seconds": round(time.perf_counter() - started, 1),
            "error": error,
        }


def is_within(row: dict[str, Any]) -> bool:
    """Whether a row of the record is a number within the tolerance."""
    return row["difference"] is not None and row["difference"] <= TOLERANCE


def main() -> int:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--presets", nargs="+", default=PRESETS, choices=PRESETS)
    parser.add_argument("--mtp", nargs="+", type=int, default=(0, 1))
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    content = {"steps": arguments.steps, "tolerance": TOLERANCE, "dtype": "float64", "rows": rows}
    with Cluster(8, ClusterOptions(timeout_seconds=600, log_sink=drop)) as cluster:
        for preset, mtp in itertools.product(arguments.presets, arguments.mtp):
            for row in compared(cluster, preset, mtp, arguments.steps):
                rows.append(row)
                print("ok " if is_within(row) else "RED", *row.values(), flush=True)
                write_record(arguments.json, content)
    return 0 if all(map(is_within, rows)) else 1


if __name__ == "__main__":
    sys.exit(main())
