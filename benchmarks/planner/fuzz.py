"""Random batches by the million: is every plan legal, and is every one quick?

Domains of 1 to 128 ranks, powers of two or not, any set of group sizes, minimum sizes, budgets,
capacities and multiples; lengths from one token to what the domain holds; three cost models, both
objectives, pipelines. Every plan is checked by the validator, which shares no code with the
planner, for its capacity, and against its bound.

    python -m benchmarks.planner.fuzz --batches 1000000 --jobs 2 --json build/planner_fuzz.json
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pygit2

from checks.planning.batches import REAL, Mixed, random_case
from ringproof.files import write_atomically
from ringproof.reference.planning import (
    AttentionOnly,
    Domain,
    Goal,
    Pipeline,
    make_plan,
    violations,
)
from ringproof.reference.planning.elementwise import IntArray

ROOT = Path(__file__).parents[2]
SLOW = 5.0
"""Processor seconds; no batch of this size may need as long."""
HANGS = 60
"""Seconds after which a plan is given up and reported."""
CHUNK = 500
"""Seeds that a process plans at a time."""
MOST_PROBLEMS = 100


@dataclass(frozen=True)
class Found:
    """What the seeds of one range gave."""

    batches: int
    problems: list[str]
    seconds: float
    slowest: float
    slowest_seed: int


def models() -> tuple[Any, ...]:
    """Upstream's measure, a made-up one, and the real one."""
    return AttentionOnly(), Mixed(), REAL


def case(seed: int) -> tuple[Domain, IntArray, Goal]:
    """A batch; nine of ten are small, because the odd cases are."""
    rng = np.random.default_rng([seed, 4])
    domain, lengths = random_case(seed, most=int(rng.choice([12, 40, 120, 400], p=PARTS)))
    if rng.random() < 0.2:  # a minimum size: the smaller ones are left out
        least = int(rng.choice(domain.cp_sizes))
        kept = tuple(size for size in domain.cp_sizes if size >= least)
        domain = replace(domain, cp_sizes=kept)
    if rng.random() < 0.2:
        return domain, lengths, Goal(objective="async")
    if rng.random() < 0.04:
        pipeline = Pipeline(int(rng.integers(2, 5)), int(rng.integers(1, 3)))
        return domain, lengths, Goal(pipeline=pipeline)
    return domain, lengths, Goal()


PARTS = (0.6, 0.3, 0.09, 0.01)


def examine(seed: int) -> tuple[list[str], float]:
    """What is wrong with the plan of one batch, and the processor seconds it took."""
    domain, lengths, goal = case(seed)
    model = models()[seed % 3]
    started = time.process_time()
    signal.alarm(HANGS)
    try:
        plan = make_plan(lengths, domain, model, goal)
    except Exception as error:  # whatever it is, it is the finding
        return [f"seed {seed}: {type(error).__name__}: {error}"], time.process_time() - started
    finally:
        signal.alarm(0)
    seconds = time.process_time() - started
    found = violations(
        plan.as_json(),
        rank_multiple=domain.rank_multiple,
        multiple=domain.microbatch_multiple,
        max_sequences=domain.max_sequences,
    )
    if plan.metrics.ratio < 1 - 1e-9:
        found.append(f"below its bound: {plan.metrics.ratio}")
    if seconds > SLOW:
        found.append(f"{seconds:.1f} s")
    return [f"seed {seed}: {problem}" for problem in found], seconds


def examine_range(seeds: tuple[int, int]) -> Found:
    """A range of seeds, half-open."""
    signal.signal(signal.SIGALRM, _give_up)
    problems: list[str] = []
    total, slowest, slowest_seed = 0.0, 0.0, seeds[0]
    for seed in range(*seeds):
        found, seconds = examine(seed)
        problems += found
        total += seconds
        if seconds > slowest:
            slowest, slowest_seed = seconds, seed
    return Found(seeds[1] - seeds[0], problems, total, slowest, slowest_seed)


def _give_up(number: int, frame: object) -> None:
    del number, frame
    raise TimeoutError(f"no plan after {HANGS} s")


def record_of(found: Sequence[Found]) -> dict[str, Any]:
    """The record of all ranges."""
    problems = [problem for one in found for problem in one.problems]
    batches = sum(one.batches for one in found)
    seconds, slowest = sum(one.seconds for one in found), max(found, key=lambda one: one.slowest)
    return {
        "commit": str(pygit2.Repository(str(ROOT)).head.target)[:12],
        "batches": batches,
        "problem_count": len(problems),
        "problems": problems[:MOST_PROBLEMS],
        "planning_seconds": seconds,
        "mean_milliseconds": seconds / batches * 1e3,
        "slowest_seconds": slowest.slowest,
        "slowest_seed": slowest.slowest_seed,
        "environment": {"python": platform.python_version(), "numpy": np.__version__},
    }


def main() -> None:
    """Run, print progress, write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=10_000)
    parser.add_argument("--start", type=int, default=0, help="first seed")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this long")
    parser.add_argument("--json", type=Path, help="the record")
    options = parser.parse_args()
    last = options.start + options.batches
    chunks = [(seed, min(seed + CHUNK, last)) for seed in range(options.start, last, CHUNK)]
    found: list[Found] = []
    started = shown = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        for one in pool.imap_unordered(examine_range, chunks):
            found.append(one)
            now = time.monotonic()
            if now - shown > 10:
                shown = now
                print(f"{sum(one.batches for one in found):,} batches", flush=True)
            if now - started > options.seconds:
                break
    record = record_of(found)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(options.json, json.dumps(record, indent=2) + "\n", field="json")
    print(json.dumps(record, indent=2))
    raise SystemExit(1 if record["problem_count"] else 0)


if __name__ == "__main__":
    main()
