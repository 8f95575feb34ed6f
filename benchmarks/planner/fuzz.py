"""Random batches by the million: is every plan legal, and is every one quick?

Domains of 1 to 128 ranks, powers of two or not, any set of group sizes, minimum sizes, budgets,
capacities and multiples; lengths from one token to what the domain holds; three cost models, both
objectives, pipelines. Every plan is checked by the validator, which shares no code with the
planner, for its capacity, and against its bound.

A seed says what is planned, and the record which seeds have been. Runs add to it, in any number of
sittings: whatever has been planned is skipped. It holds for one state of the planner's sources
(and of what draws the batches): a record of another state is refused, not added to.

    python -m benchmarks.planner.fuzz --batches 1000000 --jobs 2 --json build/planner_fuzz.json
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import platform
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from checks.planning.batches import Mixed, random_case
from ringproof.errors import InputError
from ringproof.files import write_atomically
from ringproof.reference.planning import (
    AttentionOnly,
    Domain,
    Goal,
    Pipeline,
    make_plan,
    violations,
)
from ringproof.reference.planning.domain import IntArray
from ringproof.reference.planning.hardware import hardware
from ringproof.reference.planning.shapes import model_shape
from ringproof.reference.planning.timing import StepCost

SLOW = 5.0
"""Processor seconds; no batch of this size may need as long."""
HANGS = 60
"""Seconds after which a plan is given up and reported."""
CHUNK = 500
"""Seeds between two entries in the record."""
MOST_PROBLEMS = 100

Ranges = list[list[int]]
"""Half-open, ascending, not touching each other."""


@dataclass(frozen=True)
class Found:
    """What the seeds of one range gave."""

    first: int
    last: int
    problems: list[str]
    seconds: float
    slowest: float
    slowest_seed: int


def models() -> tuple[Any, ...]:
    """Upstream's measure, a made-up one, and the real one."""
    real = StepCost(shape=model_shape("llama3-8b"), machine=hardware("h100"))
    return AttentionOnly(), Mixed(), real


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
    return Found(*seeds, problems, total, slowest, slowest_seed)


def _give_up(number: int, frame: object) -> None:
    del number, frame
    raise TimeoutError(f"no plan after {HANGS} s")


def digest() -> str:
    """Of the sources that a record holds for: all of the planner that is loaded, and the draws."""
    found = hashlib.sha256()
    loaded = (
        name for name in sys.modules if f"{name}.".startswith("ringproof.reference.planning.")
    )
    for name in (*sorted(loaded), random_case.__module__):
        found.update(name.encode() + b"\0" + Path(str(sys.modules[name].__file__)).read_bytes())
    return hashlib.sha256(found.digest() + Path(__file__).read_bytes()).hexdigest()


def opened(path: Path | None, sources: str) -> dict[str, Any]:
    """The record so far, or an empty one.

    Raises:
        InputError: It cannot be read, or is of other sources.
    """
    empty = {"sources": sources, "batches": 0, "seeds": [], "problem_count": 0, "problems": []}
    empty |= {"planning_seconds": 0.0, "slowest_seconds": 0.0, "slowest_seed": None}
    if path is None or not path.exists():
        return empty
    try:
        record = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InputError("json", path, "cannot be read as a record", "name another") from error
    if not isinstance(record, dict) or record.get("sources") != sources:
        problem = "is a record of other planner sources"
        raise InputError("json", path, problem, "name another file, or remove it")
    return {**empty, **record}


def added(record: dict[str, Any], found: Found) -> dict[str, Any]:
    """The record with one range more."""
    slower = found.slowest > record["slowest_seconds"]
    batches = record["batches"] + found.last - found.first
    seconds = record["planning_seconds"] + found.seconds
    return {
        **record,
        "batches": batches,
        "seeds": joined(record["seeds"], found.first, found.last),
        "problem_count": record["problem_count"] + len(found.problems),
        "problems": (record["problems"] + found.problems)[:MOST_PROBLEMS],
        "planning_seconds": seconds,
        "mean_milliseconds": seconds / batches * 1e3,
        "slowest_seconds": found.slowest if slower else record["slowest_seconds"],
        "slowest_seed": found.slowest_seed if slower else record["slowest_seed"],
        "environment": {"python": platform.python_version(), "numpy": np.__version__},
    }


def joined(ranges: Ranges, first: int, last: int) -> Ranges:
    """The ranges and one more, which touches or is apart from each of them."""
    result: Ranges = []
    for start, end in sorted([*ranges, [first, last]]):
        if result and start <= result[-1][1]:
            result[-1] = [result[-1][0], max(end, result[-1][1])]
        else:
            result.append([start, end])
    return result


def missing(ranges: Ranges, first: int, last: int) -> Iterator[tuple[int, int]]:
    """The seeds that are in none of the ranges, in chunks."""
    position = first
    for start, end in (*ranges, [last, last]):
        stop = min(start, last)
        while position < stop:
            after = min(position + CHUNK, stop)
            yield position, after
            position = after
        position = max(position, end)


def run(record: dict[str, Any], chunks: Iterable[tuple[int, int]], options: Any) -> dict[str, Any]:
    """Examine the chunks, add each to the record, and write that."""
    started = shown = time.monotonic()
    before = record["batches"]
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        for found in pool.imap_unordered(examine_range, chunks):
            record = added(record, found)
            if options.json:
                write_atomically(options.json, json.dumps(record, indent=2) + "\n", field="json")
            now = time.monotonic()
            if now - shown > 10:
                shown = now
                rate = (record["batches"] - before) / (now - started)
                said = f"{record['batches']:,} batches, {record['problem_count']} problems"
                print(f"{said}, {rate:,.0f} per second", flush=True)
            if now - started > options.seconds:
                break
    return record


def main() -> None:
    """Run, print progress, keep the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=10_000)
    parser.add_argument("--start", type=int, default=0, help="first seed")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this long")
    parser.add_argument("--json", type=Path, help="the record; added to if it is there")
    options = parser.parse_args()
    try:
        record = opened(options.json, digest())
        if options.json:
            options.json.parent.mkdir(parents=True, exist_ok=True)
        last = options.start + options.batches
        record = run(record, missing(record["seeds"], options.start, last), options)
    except InputError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None
    print(json.dumps(record, indent=2))
    raise SystemExit(1 if record["problem_count"] else 0)


if __name__ == "__main__":
    main()
