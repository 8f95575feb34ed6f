"""NVIDIA's published Dynamic CP table: what the cost model predicts against what was measured.

    python -m benchmarks.planner.published --checkout ../Megatron-LM --ref dev --json FILE

Three plans for every batch, all costed alike, the gradient reduction included: packing at static
CP 4 (`static_plan`), upstream's own Dynamic CP plans (of the checkout that you give), and this
planner's. They run ahead (no pipeline), as they do in the example.

Two predictions, none tuned to a row:

* ``preset``: hardware presets as they are; the GPU is not named, so both candidates with four GPUs
  per node are shown.
* ``fitted``: three numbers for the whole table (what a layer costs per microbatch, what a message
  costs, what an iteration costs besides), because a model of 0.6e9 weights on 2,048 tokens is
  launched more slowly than it is computed, and no datasheet says how slowly. Each row is predicted
  from a fit to the other four, for upstream's plans, which are those that were measured.

What the result says and what it misses: ``published.md`` beside this file.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.planner.example_setup import (
    ITERATIONS,
    STATIC_CP,
    TABLE,
    WARM_UP,
    Measured,
    as_microbatches,
    batches,
    domain,
    padded,
)
from benchmarks.planner.versus_upstream import upstream, upstream_plan
from ringproof.files import write_atomically
from ringproof.reference.planning import Goal, make_plan
from ringproof.reference.planning.baselines import static_plan
from ringproof.reference.planning.elementwise import IntArray
from ringproof.reference.planning.hardware import GB200, H100, Hardware
from ringproof.reference.planning.plan import Microbatch
from ringproof.reference.planning.shapes import DCP_EXAMPLE
from ringproof.reference.planning.simulate import simulate
from ringproof.reference.planning.timing import StepCost, reduction_seconds

GOAL = Goal(objective="async")
MACHINES = (replace(H100, name="h100, four per node", gpus_per_node=4), GB200)
# Seconds; what a GPU needs to what a slow host needs.
LAUNCHES = tuple(float(x) for x in np.geomspace(2e-4, 8e-3, 9))
MESSAGES = tuple(float(x) for x in np.geomspace(2e-5, 1.6e-3, 9))
TRIMMED = 0.1


@dataclass(frozen=True)
class Case:
    """One batch of one row and how it was planned."""

    gpus: int
    lengths: IntArray
    microbatches: tuple[Microbatch, ...]

    def seconds(self, model: StepCost) -> float:
        """The iteration without what every iteration costs."""
        reduction = reduction_seconds(model.shape.parameters, self.gpus, model.machine)
        line = simulate(self.microbatches, self.lengths, self.gpus, model, GOAL)
        return line.makespan + reduction


@dataclass(frozen=True)
class Setting:
    """Which seeds, whose plans."""

    seeds: Sequence[int]
    scheduler: Callable[..., Any] | None


def cases(setting: Setting, gpus: int, kind: str, model: StepCost) -> list[Case]:
    """Every batch of a row, planned."""
    found = []
    for seed in setting.seeds:
        for lengths in batches(seed, gpus):
            if kind == "static":
                tokens = padded(lengths, 2 * STATIC_CP)
                plan = static_plan(tokens, domain(gpus), STATIC_CP, model, GOAL)
                found.append(Case(gpus, tokens, plan.microbatches))
                continue
            tokens = padded(lengths, 2 * gpus)
            if kind == "upstream":
                assert setting.scheduler is not None
                made = as_microbatches(
                    upstream_plan(setting.scheduler, tokens.tolist(), domain(gpus))
                )
            else:
                made = make_plan(tokens, domain(gpus), model, GOAL).microbatches
            found.append(Case(gpus, tokens, made))
    return found


def trimmed(values: Sequence[float]) -> float:
    """Mean without the lowest and highest tenth, as the example's script takes it."""
    cut = int(len(values) * TRIMMED)
    return statistics.fmean(sorted(values)[cut : len(values) - cut])


def row_seconds(found: Sequence[Case], model: StepCost) -> float:
    return trimmed([case.seconds(model) for case in found])


def summary(static: Sequence[float], dynamic: Sequence[float]) -> dict[str, Any]:
    """Predicted against measured, all rows; times in seconds."""
    rows = []
    for measured, before, after in zip(TABLE, static, dynamic, strict=True):
        rows.append(
            {
                "gpus": measured.gpus,
                "measured_speedup": round(measured.speedup, 3),
                "predicted_speedup": round(before / after, 3),
                "measured_ms": [measured.static_ms, measured.dynamic_ms],
                "predicted_ms": [round(1e3 * before, 1), round(1e3 * after, 1)],
            }
        )
    errors = [abs(row["predicted_speedup"] / row["measured_speedup"] - 1) for row in rows]
    return {"rows": rows, "speedup_mean_absolute_error": round(statistics.fmean(errors), 4)}


def preset_prediction(setting: Setting, machine: Hardware) -> dict[str, Any]:
    """Nothing fitted; seeds beside the example's own show how much the draw matters."""
    model = StepCost(shape=DCP_EXAMPLE, machine=machine)
    found: dict[str, Any] = {"machine": asdict(machine)}
    static = [row_seconds(cases(setting, row.gpus, "static", model), model) for row in TABLE]
    for kind in kinds(setting):
        after = [row_seconds(cases(setting, row.gpus, kind, model), model) for row in TABLE]
        found[kind] = summary(static, after)
    return found


def kinds(setting: Setting) -> tuple[str, ...]:
    return ("planner",) if setting.scheduler is None else ("upstream", "planner")


Times = dict[tuple[float, float], list[tuple[float, float]]]


def grid(setting: Setting, machine: Hardware, kind: str) -> Times:
    """Seconds of every row, static and dynamic, for every pair of launch and message cost."""
    model = StepCost(shape=DCP_EXAMPLE, machine=machine)
    static = [cases(setting, row.gpus, "static", model) for row in TABLE]
    dynamic = [cases(setting, row.gpus, kind, model) for row in TABLE]
    found: Times = {}
    for launch in LAUNCHES:
        for message in MESSAGES:
            slow = replace(model, machine=slowed(machine, launch, message))
            pairs = zip(static, dynamic, strict=True)
            found[launch, message] = [
                (row_seconds(one, slow), row_seconds(other, slow)) for one, other in pairs
            ]
    return found


def slowed(machine: Hardware, launch: float, message: float) -> Hardware:
    return replace(
        machine,
        layer_launch_seconds=launch,
        intra_latency_seconds=message,
        inter_latency_seconds=message,
    )


def best(times: Times, rows: Sequence[int]) -> tuple[float, float, float]:
    """Launch, message and remaining seconds with the least relative error over some rows."""
    found = []
    for (launch, message), predicted in times.items():
        wanted = np.array([milliseconds(TABLE[row]) for row in rows]) / 1e3
        made = np.array([predicted[row] for row in rows])
        weights = 1 / wanted
        rest = max(0.0, float(((wanted - made) * weights**2).sum() / (weights**2).sum()))
        error = float((((made + rest) * weights - 1) ** 2).sum())
        found.append((error, launch, message, rest))
    return min(found)[1:]


def milliseconds(row: Measured) -> tuple[float, float]:
    return row.static_ms, row.dynamic_ms


def fitted_prediction(setting: Setting, machine: Hardware, kind: str) -> dict[str, Any]:
    """Each row from a fit to the others; and the fit to all."""
    times = grid(setting, machine, kind)
    static, dynamic = [], []
    for row in range(len(TABLE)):
        others = [other for other in range(len(TABLE)) if other != row]
        launch, message, rest = best(times, others)
        before, after = times[launch, message][row]
        static.append(before + rest)
        dynamic.append(after + rest)
    launch, message, rest = best(times, range(len(TABLE)))
    found = summary(static, dynamic)
    errors = [
        abs(predicted / measured - 1)
        for row in found["rows"]
        for predicted, measured in zip(row["predicted_ms"], row["measured_ms"], strict=True)
    ]
    return {
        "machine": machine.name,
        "plans": kind,
        "fitted_on_all_rows_seconds": {
            "layer_launch": launch,
            "message": message,
            "rest_of_iteration": rest,
        },
        "leave_one_row_out": found,
        "time_mean_absolute_error": round(statistics.fmean(errors), 4),
    }


def replanned(
    setting: Setting, machine: Hardware, fitted: dict[str, float]
) -> list[dict[str, Any]]:
    """Milliseconds per iteration when this planner is given the fitted costs, too."""
    model = StepCost(shape=DCP_EXAMPLE, machine=machine)
    slow = replace(model, machine=slowed(machine, fitted["layer_launch"], fitted["message"]))
    found = []
    for row in TABLE:
        times: dict[str, Any] = {"gpus": row.gpus}
        for kind in ("static", *kinds(setting)):
            seconds = row_seconds(cases(setting, row.gpus, kind, slow), slow)
            times[f"{kind}_ms"] = round(1e3 * (seconds + fitted["rest_of_iteration"]), 1)
        found.append(times)
    return found


def spread(machine: Hardware, seeds: Sequence[int]) -> list[dict[str, float]]:
    """How much the draw of 20 iterations matters: this planner over static, seed by seed."""
    model = StepCost(shape=DCP_EXAMPLE, machine=machine)
    found = []
    for row in TABLE:
        ratios = []
        for seed in seeds:
            one = Setting((seed,), None)
            before = row_seconds(cases(one, row.gpus, "static", model), model)
            ratios.append(before / row_seconds(cases(one, row.gpus, "planner", model), model))
        deviation = statistics.stdev(ratios)
        found.append(
            {"gpus": row.gpus, "mean": statistics.fmean(ratios), "standard_deviation": deviation}
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkout", type=Path, help="Megatron-LM; without it, no upstream plans")
    parser.add_argument("--ref", default="dev", help="its branch or commit")
    parser.add_argument("--seeds", type=int, default=20, help="draws beside the example's own")
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    started = time.perf_counter()
    scheduler = upstream(options.checkout, options.ref) if options.checkout else None
    setting = Setting((0,), scheduler)
    fitted = fitted_prediction(setting, MACHINES[0], kinds(setting)[0])
    numbers = fitted["fitted_on_all_rows_seconds"]
    result = {
        "source": "Megatron-LM dev d48bd6be0a, examples/dynamic_context_parallel/README.md",
        "batches": f"the example's own draw, iterations {WARM_UP + 1} to {ITERATIONS}",
        "preset": [preset_prediction(setting, machine) for machine in MACHINES],
        "fitted": fitted,
        "replanned_with_fitted_costs": replanned(setting, MACHINES[0], numbers),
        "spread": spread(MACHINES[0], range(1, options.seeds + 1)),
        "seconds": 0.0,
    }
    result["seconds"] = round(time.perf_counter() - started, 1)
    write_atomically(options.json, json.dumps(result, indent=2) + "\n", field="--json")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
