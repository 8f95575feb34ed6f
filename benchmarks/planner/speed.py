"""How long does planning take, and in how much memory: by the number of sequences, and by shape?

In-process, lengths at hand, in processor seconds of one thread, so that a busy machine blurs them
less.

``sizes``: the lognormal lengths of the published example, 512 to a million. Medians over rounds
with fresh lengths; wall seconds are recorded beside them. Memory is the peak of numpy's and
Python's allocations during planning, measured in a separate round because tracing is slow.

``shapes``: 200 random batches, one per seed: five kinds of lengths, 10 to a million sequences, 8 to
16,384 ranks, and token budgets from a quarter to four times the longest length there may be.
Planning may take 60 ms up to 8,192 sequences; above, that in proportion and 1 s per million. A
batch that exceeds its limit is planned again, up to three times, and the least time counts. The
exit status is that of a measurement: 0, however many exceed.

    python -m benchmarks.planner.speed sizes --json benchmarks/planner/results/scale.json
    python -m benchmarks.planner.speed shapes --json benchmarks/planner/results/shapes.json
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pygit2

from ringproof.reference.planning import AttentionOnly, Domain, Plan, choose_cp_sizes, make_plan
from ringproof.reference.planning.costs import CostModel
from ringproof.reference.planning.hardware import H100
from ringproof.reference.planning.shapes import LLAMA3_8B
from ringproof.reference.planning.timing import StepCost

FULL = StepCost(shape=LLAMA3_8B, machine=H100)
CASES = (
    (512, 32, 7),
    (4_096, 128, 7),
    (8_192, 256, 7),
    (65_536, 4_096, 5),
    (262_144, 8_192, 3),
    (1_000_000, 64, 3),
    (1_000_000, 16_384, 3),
)
BUDGET = 8192
TRIES = 3
KINDS = ("lognormal", "uniform", "bimodal", "heavy tail", "all equal")


def timed(lengths: np.ndarray, domain: Domain, model: CostModel) -> tuple[Plan, float]:
    """A plan and the processor seconds that it took."""
    started = time.process_time()
    plan = make_plan(lengths, domain, model)
    return plan, time.process_time() - started


def domain_of(ranks: int, budget: int) -> Domain:
    """A domain with powers of two as group sizes."""
    sizes = choose_cp_sizes("pow2", ranks)
    return Domain(ranks=ranks, max_tokens_per_rank=budget, cp_sizes=sizes)


def published_lengths(seed: int, count: int) -> np.ndarray:
    """The lognormal of the published example: mean 1024, sigma 1.5, 128 to 8192."""
    drawn = np.exp(
        math.log(1024) - 1.5**2 / 2 + 1.5 * np.random.default_rng(seed).standard_normal(count)
    )
    return np.clip(np.rint(drawn), 128, 8192).astype(np.int64)


def of_size(count: int, ranks: int, rounds: int, model: CostModel) -> dict[str, Any]:
    """One row of ``sizes``: seconds, ratio to the bound, peak memory in megabytes."""
    domain = domain_of(ranks, BUDGET)
    done = [timed(published_lengths(seed, count), domain, model) for seed in range(rounds)]
    tracemalloc.start()
    make_plan(published_lengths(rounds, count), domain, model)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return {
        "sequences": count,
        "ranks": ranks,
        "cost": type(model).__name__,
        "seconds": statistics.median(seconds for _, seconds in done),
        "seconds_all": [seconds for _, seconds in done],
        "wall_seconds_all": [plan.metrics.planning_seconds for plan, _ in done],
        "ratio_to_bound": statistics.median(plan.metrics.ratio for plan, _ in done),
        "microbatches": len(done[0][0].microbatches),
        "peak_megabytes": peak / 1e6,
    }


def lengths_of_kind(kind: str, count: int, longest: int, rng: np.random.Generator) -> np.ndarray:
    """Lengths of one kind, from 1 to ``longest``."""
    if kind == "lognormal":
        drawn = np.exp(rng.normal(math.log(longest / 16), 1.0, count))
    elif kind == "uniform":
        drawn = rng.uniform(64, longest, count)
    elif kind == "bimodal":
        short = rng.random(count) < 0.9
        few = rng.normal(longest / 32, longest / 200, count)
        drawn = np.where(short, few, rng.normal(longest * 0.8, longest / 20, count))
    elif kind == "heavy tail":
        drawn = (rng.pareto(1.1, count) + 1) * longest / 200
    else:
        drawn = np.full(count, longest / 8)
    return np.clip(np.rint(drawn), 1, longest).astype(np.int64)


def of_shape(seed: int, most: int, model: CostModel, tries: int = 1) -> dict[str, Any]:
    """One row of ``shapes``: the shape, seconds, the limit, and the ratio to the bound."""
    rng = np.random.default_rng(seed)
    kind = KINDS[int(rng.integers(len(KINDS)))]
    ranks = int(2 ** rng.integers(3, 15))
    count = round(10 ** rng.uniform(1, math.log10(most)))
    longest = int(2 ** rng.integers(12, 18))
    budget = max(int(longest * 2 ** rng.uniform(-2, 2)), -(-longest // ranks))
    drawn, domain = lengths_of_kind(kind, count, longest, rng), domain_of(ranks, budget)
    limit = 0.06 * max(1.0, count / 8_192) + (count / 1e6 if count > 8_192 else 0.0)
    plan, seconds = timed(drawn, domain, model)
    tried = 1
    while seconds > limit and tried < tries:
        seconds, tried = min(seconds, timed(drawn, domain, model)[1]), tried + 1
    return {
        "seed": seed,
        "kind": kind,
        "sequences": count,
        "ranks": ranks,
        "longest": longest,
        "budget": budget,
        "seconds": seconds,
        "tried": tried,
        "limit": limit,
        "microbatches": len(plan.microbatches),
        "ratio_to_bound": plan.metrics.ratio,
    }


def sizes(most: int) -> Iterator[dict[str, Any]]:
    """The rows of ``sizes``, each printed when it is there."""
    for count, ranks, rounds in CASES:
        for model in (AttentionOnly(), FULL) if count <= most else ():
            row = of_size(count, ranks, rounds, model)
            print(
                "{sequences:>9,} sequences {ranks:>6,} ranks {cost:<14} {seconds:8.3f} s  "
                "{ratio_to_bound:.4f} of the bound {peak_megabytes:>7,.1f} MB".format(**row),
                flush=True,
            )
            yield row


def shapes(most: int, seeds: int = 200) -> Iterator[dict[str, Any]]:
    """The rows of ``shapes``; those that exceed their limit are printed."""
    for seed in range(seeds):
        row = of_shape(seed, most, FULL, TRIES)
        if row["seconds"] > row["limit"]:
            shape = "{seed:4} {kind:10} {sequences:8,} on {ranks:6,} ranks".format(**row)
            print(f"{shape} {row['seconds']:.3f} of {row['limit']:.3f} s", flush=True)
        yield row


def main() -> None:
    """Measure, print, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=["sizes", "shapes"])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--most", type=int, default=1_000_000, help="largest batch to plan")
    options = parser.parse_args()
    rows = list((sizes if options.part == "sizes" else shapes)(options.most))
    if options.part == "shapes":
        above = sum(row["seconds"] > row["limit"] for row in rows)
        print(f"{above} of {len(rows)} exceed their limit")
    if options.json:
        repository = pygit2.Repository(str(Path(__file__).parents[2]))
        environment = {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "machine": platform.machine(),
            "cpus": str(os.cpu_count()),
            "commit": str(repository.head.target)[:12],
        }
        options.json.parent.mkdir(parents=True, exist_ok=True)
        result = {"environment": environment, "most": options.most, "rows": rows}
        options.json.write_text(json.dumps(result, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
