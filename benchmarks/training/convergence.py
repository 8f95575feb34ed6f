"""Padded, packed and dynamic on real text: the same curve, and what each costs.

    python -m benchmarks.training.convergence --json benchmarks/training/results/convergence.json
    python -m benchmarks.tables

Trains three times 300 steps of float64 on four ranks, compares the losses, then measures the
speed of each schedule in float32 in turns, so that all three see the same machine. Each curve is
also written as a table beside the JSON, for ``ringproof logs parity``. Exit 1 where curves part.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.records import write_record
from ringproof.cluster import Cluster, ClusterOptions, RankContext, drop
from ringproof.files import write_atomically
from ringproof.reference.training.options import (
    SCHEDULES,
    BatchOptions,
    KeepingOptions,
    ModelOptions,
    OptimiserOptions,
    ParallelOptions,
    TrainOptions,
)
from ringproof.reference.training.records import Record, StepRecord
from smoke.training_matrix import TOLERANCE, largest_difference

RANKS = 4
ROUNDS, STEPS_OF_A_ROUND = 5, 6


def options_of(schedule: str, *, steps: int, dtype: str) -> TrainOptions:
    """Options of one run: a long tail of definitions, cut to what two microbatches of CP 4 hold."""
    return TrainOptions(
        model=ModelOptions(preset="qwen3-tiny", dtype=dtype),
        parallel=ParallelOptions(cp=RANKS),
        batch=BatchOptions(
            data="stdlib:definitions",
            global_batch=8,
            max_sequence_length=1024,
            max_tokens_per_rank=512,
            schedule=schedule,
        ),
        optimiser=OptimiserOptions(steps=steps),
        keeping=KeepingOptions(),
    )


def records(rank: RankContext, *, options: TrainOptions) -> list[dict[str, Any]]:
    """The case: train, and return what every step measured."""
    from ringproof.reference.training.trainer import train

    found: list[dict[str, Any]] = []

    def take(record: Record) -> None:
        if isinstance(record, StepRecord):
            found.append(record.as_json())
            if rank.rank == 0:
                print(record.progress_line(options.optimiser.steps), flush=True)

    train(options, rank.device, take)
    return found


def _run(cluster: Cluster, schedule: str, steps: int, dtype: str) -> list[dict[str, Any]]:
    options = options_of(schedule, steps=steps, dtype=dtype)
    found: list[dict[str, Any]] = cluster.run(
        records, renewed_by_output=True, options=options
    ).values[0]
    return found


def _curve(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Loss by step, padding and CP size of one schedule."""
    histograms = [record["cp_histogram"] for record in found]
    sizes = [
        sum(int(size) * n for size, n in histogram.items()) / sum(histogram.values())
        for histogram in histograms
    ]
    tokens, rows = (sum(record[name] for record in found) for name in ("tokens", "rows"))
    return {
        "loss": [record["loss"] for record in found],
        "grad_norm": [record["grad_norm"] for record in found],
        "padding_fraction": 1 - tokens / rows,
        "mean_cp_size": statistics.fmean(sizes),
        "microbatches": statistics.fmean(len(record["microbatches"]) for record in found),
    }


def _speeds(cluster: Cluster) -> dict[str, dict[str, float]]:
    """Tokens per second over rounds that take turns; the first step of a run is left out."""
    speeds: dict[str, list[float]] = {schedule: [] for schedule in SCHEDULES}
    for _ in range(ROUNDS):
        for schedule, speed in speeds.items():
            found = _run(cluster, schedule, 1 + STEPS_OF_A_ROUND, "float32")[1:]
            tokens, seconds = (
                sum(record[name] for record in found) for name in ("tokens", "step_seconds")
            )
            speed.append(tokens / seconds)
    return {
        schedule: {
            "tokens_per_second": statistics.median(speed),
            "slowest": min(speed),
            "fastest": max(speed),
        }
        for schedule, speed in speeds.items()
    }


def _table(curve: dict[str, Any]) -> str:
    """A curve as `ringproof logs parity` reads it."""
    rows = enumerate(zip(curve["loss"], curve["grad_norm"], strict=True), start=1)
    lines = (f"{step},{loss!r},{norm!r}\n" for step, (loss, norm) in rows)
    return "step,loss,grad_norm\n" + "".join(lines)


def main() -> int:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=300)
    arguments = parser.parse_args()

    def show(rank: int, line: str) -> None:
        drop(rank, line) if rank else print(line, flush=True)

    with Cluster(RANKS, ClusterOptions(timeout_seconds=300, log_sink=show)) as cluster:
        curves = {
            schedule: _curve(_run(cluster, schedule, arguments.steps, "float64"))
            for schedule in SCHEDULES
        }
        speed = _speeds(cluster)
    series = {
        name: list(zip(curve["loss"], curve["grad_norm"], strict=True))
        for name, curve in curves.items()
    }
    difference = max(largest_difference(one, series["packed"]) for one in series.values())
    record = {
        "arguments": asdict(options_of("dynamic", steps=arguments.steps, dtype="float64")),
        "largest_relative_difference": difference,
        "tolerance": TOLERANCE,
        "speed": speed,
        "curves": curves,
    }
    write_record(arguments.json, record)
    for schedule, curve in curves.items():
        path = arguments.json.with_name(f"{arguments.json.stem}-{schedule}.csv")
        write_atomically(path, _table(curve))
    return 0 if difference <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
