"""How long does planning take, and in how much memory, from 512 sequences to a million?

In-process, lengths at hand; medians over rounds with fresh lengths, of processor seconds (one
thread), so that a busy machine does not blur them; wall seconds are recorded beside them. Memory
is the peak of numpy's and Python's allocations during planning, measured in a separate round
because tracing is slow.

    python benchmarks/planner/scale.py --json build/planner_scale.json
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pygit2

from ringproof.reference.planning import AttentionOnly, Domain, choose_cp_sizes, make_plan
from ringproof.reference.planning.hardware import H100
from ringproof.reference.planning.shapes import LLAMA3_8B
from ringproof.reference.planning.timing import StepCost

CASES = (
    (512, 32, 7),
    (4_096, 128, 7),
    (8_192, 256, 7),
    (65_536, 4_096, 5),
    (262_144, 8_192, 3),
    (1_000_000, 16_384, 3),
)
LIMITS = {8_192: 0.030, 65_536: 0.400, 1_000_000: 10.0}  # seconds
BUDGET = 8192


def lengths(seed: int, count: int) -> np.ndarray:
    """The lognormal of the published example: mean 1024, sigma 1.5, 128 to 8192."""
    rng = np.random.default_rng(seed)
    drawn = np.exp(math.log(1024) - 1.5**2 / 2 + 1.5 * rng.standard_normal(count))
    return np.clip(np.rint(drawn), 128, 8192).astype(np.int64)


def measure(count: int, ranks: int, rounds: int, model: Any) -> dict[str, Any]:
    """One row: seconds, ratio to the bound, peak memory."""
    sizes = choose_cp_sizes("pow2", ranks)
    domain = Domain(ranks=ranks, max_tokens_per_rank=BUDGET, cp_sizes=sizes)
    plans, seconds = [], []
    for seed in range(rounds):
        drawn, started = lengths(seed, count), time.process_time()
        plans.append(make_plan(drawn, domain, model))
        seconds.append(time.process_time() - started)
    tracemalloc.start()
    make_plan(lengths(rounds, count), domain, model)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return {
        "sequences": count,
        "ranks": ranks,
        "cost": type(model).__name__,
        "seconds": statistics.median(seconds),
        "seconds_all": seconds,
        "wall_seconds_all": [plan.metrics.planning_seconds for plan in plans],
        "ratio_to_bound": statistics.median(plan.metrics.ratio for plan in plans),
        "microbatches": len(plans[0].microbatches),
        "peak_megabytes": peak / 1e6,
    }


def main() -> None:
    """Print the table and write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--most", type=int, default=1_000_000, help="largest batch to plan")
    options = parser.parse_args()
    full = StepCost(shape=LLAMA3_8B, machine=H100)
    rows = []
    for count, ranks, rounds in CASES:
        if count > options.most:
            continue
        for model in (AttentionOnly(), full):
            row = measure(count, ranks, rounds, model)
            rows.append(row)
            limit = LIMITS.get(count)
            said = f"limit {limit * 1e3:,.0f} ms" if limit else ""
            print(
                f"{count:>9,} sequences {ranks:>6,} ranks {row['cost']:<14}"
                f"{row['seconds'] * 1e3:>9,.1f} ms  {row['ratio_to_bound']:.4f} of the bound  "
                f"{row['peak_megabytes']:>7,.1f} MB  {said}",
                flush=True,
            )
    environment = {"python": platform.python_version(), "numpy": np.__version__}
    environment |= {"machine": platform.machine(), "cpus": str(os.cpu_count())}
    root = str(Path(__file__).parents[2])
    environment["commit"] = str(pygit2.Repository(root).head.target)[:12]
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        result = {"environment": environment, "budget": BUDGET, "rows": rows}
        options.json.write_text(json.dumps(result, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
