"""Padded, packed and dynamic on real text: the same curve, and what each costs.

    python -m benchmarks.training.convergence --json benchmarks/training/results/convergence.json

trains three times 300 steps of float64 on four ranks, compares the losses, then measures the
speed of each schedule in float32 in turns, so that all three see the same machine.
Each curve is also written as a table beside the JSON, for ``ringproof logs parity``.
``--speed-only`` keeps the curves of an earlier record. ``--png`` draws them (needs matplotlib).
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ringproof.cluster import Cluster, ClusterOptions, RankContext, drop
from ringproof.errors import InputError
from ringproof.files import write_atomically
from ringproof.reference.topology.layout import RankLayout
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

TOLERANCE = 1e-9
RANKS = 4
ROUNDS = 5
STEPS_OF_A_ROUND = 6


def options_of(schedule: str, *, steps: int, dtype: str) -> TrainOptions:
    """One run: a long tail of definitions, cut to what two microbatches of CP 4 hold."""
    return TrainOptions(
        model=ModelOptions(preset="qwen3-tiny", dtype=dtype),
        parallel=ParallelOptions(layout=RankLayout(cp=RANKS)),
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
    """The case: train; what every step measured."""
    from ringproof.reference.training.trainer import train

    found: list[dict[str, Any]] = []

    def take(record: Record) -> None:
        if isinstance(record, StepRecord):
            found.append(record.as_json())
            if rank.rank == 0:
                print(record.progress_line(options.optimiser.steps), flush=True)

    train(options, rank.device, take)
    return found


def main() -> int:
    """Run what is asked for; exit 1 where curves part."""
    arguments = _arguments()
    path = Path(arguments.json)
    kept = json.loads(path.read_text()) if arguments.speed_only else {}
    with Cluster(RANKS, ClusterOptions(timeout_seconds=300, log_sink=_show)) as cluster:
        curves = kept.get("curves") or _curves(cluster, arguments.steps)
        speed = {} if arguments.curves_only else _speeds(cluster)
    result = {
        "environment": _environment(),
        "arguments": _plain(options_of("dynamic", steps=arguments.steps, dtype="float64")),
        "largest_relative_difference": _largest_difference(curves),
        "tolerance": TOLERANCE,
        "speed": speed or kept.get("speed", {}),
        "curves": curves,
    }
    write_atomically(path, json.dumps(result) + "\n", field="--json")
    for schedule, curve in curves.items():
        write_atomically(path.with_name(f"{path.stem}-{schedule}.csv"), _table(curve))
    if arguments.png:
        _draw(result, arguments.png)
    return 0 if result["largest_relative_difference"] <= TOLERANCE else 1


def _curves(cluster: Cluster, steps: int) -> dict[str, dict[str, Any]]:
    """Loss by step, and the padding and the CP size of each schedule."""
    curves = {}
    for schedule in SCHEDULES:
        options = options_of(schedule, steps=steps, dtype="float64")
        found = cluster.run(records, renewed_by_output=True, options=options).values[0]
        sizes = [_mean_size(record["cp_histogram"]) for record in found]
        curves[schedule] = {
            "loss": [record["loss"] for record in found],
            "grad_norm": [record["grad_norm"] for record in found],
            "padding_fraction": 1
            - sum(record["tokens"] for record in found) / sum(record["rows"] for record in found),
            "mean_cp_size": statistics.fmean(sizes),
            "microbatches": statistics.fmean(len(record["microbatches"]) for record in found),
        }
    return curves


def _speeds(cluster: Cluster) -> dict[str, dict[str, float]]:
    """Median tokens per second over rounds that take turns."""
    seconds: dict[str, list[float]] = {schedule: [] for schedule in SCHEDULES}
    tokens = 0
    for _ in range(ROUNDS):
        for schedule in SCHEDULES:
            options = options_of(schedule, steps=1 + STEPS_OF_A_ROUND, dtype="float32")
            found = cluster.run(records, renewed_by_output=True, options=options).values[0][1:]
            seconds[schedule].append(sum(record["step_seconds"] for record in found))
            tokens = sum(record["tokens"] for record in found)
    return {
        schedule: {
            "tokens_per_second": tokens / statistics.median(times),
            "slowest": tokens / max(times),
            "fastest": tokens / min(times),
        }
        for schedule, times in seconds.items()
    }


def _table(curve: dict[str, Any]) -> str:
    """A curve as `ringproof logs parity` reads it."""
    rows = enumerate(zip(curve["loss"], curve["grad_norm"], strict=True), start=1)
    return "step,loss,grad_norm\n" + "".join(
        f"{step},{loss!r},{norm!r}\n" for step, (loss, norm) in rows
    )


def _mean_size(histogram: dict[str, int]) -> float:
    """Mean CP size over sequences."""
    return sum(int(size) * n for size, n in histogram.items()) / sum(histogram.values())


def _largest_difference(curves: dict[str, dict[str, Any]]) -> float:
    wanted = curves["packed"]
    return max(
        abs(one - other) / abs(other)
        for curve in curves.values()
        for name in ("loss", "grad_norm")
        for one, other in zip(curve[name], wanted[name], strict=True)
    )


def _plain(options: TrainOptions) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(replace(options))


def _environment() -> dict[str, str]:
    import torch

    return {"python": platform.python_version(), "torch": torch.__version__, "backend": "gloo"}


def _show(rank: int, line: str) -> None:
    drop(rank, line) if rank else print(line, flush=True)


def _draw(result: dict[str, Any], path: str) -> None:
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise InputError(
            "--png", path, "matplotlib is missing", "pip install matplotlib"
        ) from error
    figure, (left, *others) = pyplot.subplots(
        1, 4, figsize=(13, 3.6), width_ratios=(3, 1, 1, 1), layout="constrained"
    )
    styles = {"padded": ("C7", "-", 5.0), "packed": ("C0", "-", 2.4), "dynamic": ("C1", "--", 1.2)}
    for schedule, (colour, dashes, width) in styles.items():
        loss = result["curves"][schedule]["loss"]
        left.plot(range(1, 1 + len(loss)), loss, dashes, color=colour, lw=width, label=schedule)
    left.set(xlabel="step", ylabel="loss (nats per byte)")
    left.set_title(
        f"largest relative difference {result['largest_relative_difference']:.0e}", fontsize=10
    )
    left.legend()
    _bars(others[0], "tokens/s", _column(result["speed"], "tokens_per_second"), styles)
    _bars(others[1], "padding share", _column(result["curves"], "padding_fraction"), styles)
    _bars(others[2], "mean CP size", _column(result["curves"], "mean_cp_size"), styles)
    figure.savefig(path, dpi=120)


def _column(table: dict[str, dict[str, Any]], name: str) -> list[float]:
    return [table[schedule][name] if table else 0.0 for schedule in SCHEDULES]


def _bars(axes: Any, title: str, values: Sequence[float], styles: dict[str, Any]) -> None:
    bars = axes.bar(SCHEDULES, values, color=[styles[schedule][0] for schedule in SCHEDULES])
    labels = [f"{value:,.0f}" if value >= 10 else f"{value:.2f}" for value in values]
    axes.bar_label(bars, labels, fontsize=9)
    axes.set_title(title, fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", required=True)
    parser.add_argument("--png", default="")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--speed-only", action="store_true")
    parser.add_argument("--curves-only", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
