"""Random batches by the hundred thousand: is every plan legal, and is every one quick?

Domains of 1 to 128 ranks, powers of two or not, any set of group sizes, budgets, minimum sizes,
capacities and multiples; lengths from one token to what the domain holds; three cost models, both
objectives. Every plan is checked by the validator, which shares no code with the planner, for its
capacity, and against its bound. Resumes nothing: seeds say what was planned.

    python -m benchmarks.planner.fuzz --batches 1000000 --json build/planner_fuzz.json
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from pathlib import Path
from typing import Any

from checks.planning.batches import Mixed, random_case
from ringproof.reference.planning import AttentionOnly, Goal, make_plan, violations
from ringproof.reference.planning.hardware import hardware
from ringproof.reference.planning.shapes import model_shape
from ringproof.reference.planning.timing import StepCost

SLOW = 5.0  # processor seconds; no batch of this size may need as long


def models() -> tuple[Any, ...]:
    """Upstream's measure, a made-up one, and the real one."""
    real = StepCost(shape=model_shape("llama3-8b"), machine=hardware("h100"))
    return AttentionOnly(), Mixed(), real


def examine(seed: int, most: int) -> tuple[list[str], float]:
    """What is wrong with the plan of one batch, and the seconds it took."""
    domain, lengths = random_case(seed, most=most)
    model = models()[seed % 3]
    goal = Goal(objective="async" if seed % 5 == 0 else "sync")
    started = time.process_time()
    try:
        plan = make_plan(lengths, domain, model, goal)
    except Exception as error:  # whatever it is, it is the finding
        return [f"seed {seed}: {type(error).__name__}: {error}"], time.process_time() - started
    seconds = time.process_time() - started
    data, multiple = plan.as_json(), domain.microbatch_multiple
    found = violations(data, rank_multiple=domain.rank_multiple, multiple=multiple)
    groups = [group for microbatch in plan.microbatches for group in microbatch.groups]
    most_sequences = domain.max_sequences or len(lengths)
    if any(len(group.sequences) > most_sequences for group in groups):
        found.append("a group holds too many sequences")
    if plan.metrics.ratio < 1 - 1e-9:
        found.append(f"below its bound: {plan.metrics.ratio}")
    if seconds > SLOW:
        found.append(f"{seconds:.1f} s")
    return [f"seed {seed}: {problem}" for problem in found], seconds


def share(task: tuple[int, int, int]) -> tuple[int, list[str], float, float]:
    """A run of seeds: how many, what was wrong, seconds in all and of the slowest."""
    first, last, most = task
    problems: list[str] = []
    total = slowest = 0.0
    for seed in range(first, last):
        found, seconds = examine(seed, most)
        problems += found
        total += seconds
        slowest = max(slowest, seconds)
    return last - first, problems, total, slowest


def main() -> None:
    """Run, print progress, write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--most", type=int, default=300, help="most sequences in a batch")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this long")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    started = time.perf_counter()
    step = 500
    ends = range(options.first, options.first + options.batches, step)
    last = options.first + options.batches
    tasks = [(first, min(first + step, last), options.most) for first in ends]
    done, problems, planning, slowest = 0, list[str](), 0.0, 0.0
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for count, found, seconds, longest in pool.imap(share, tasks):
            done += count
            problems += found
            planning += seconds
            slowest = max(slowest, longest)
            if done % 10_000 == 0:
                print(f"{done:,} batches, {len(problems)} problems", flush=True)
            if time.perf_counter() - started > options.seconds:
                break
    result = {
        "batches": done,
        "seeds": [options.first, options.first + done],
        "most_sequences": options.most,
        "problems": problems[:100],
        "problem_count": len(problems),
        "mean_milliseconds": planning / max(done, 1) * 1e3,
        "slowest_seconds": slowest,
    }
    print(json.dumps(result, indent=2))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, indent=2) + "\n", "utf-8")
    raise SystemExit(1 if problems else 0)


if __name__ == "__main__":
    main()
