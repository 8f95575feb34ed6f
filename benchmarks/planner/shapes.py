"""Does planning stay within its time limit, whatever the shape of the batch?

Random batches, one per seed: five kinds of lengths, 10 to a million sequences, 8 to 16,384 ranks,
and token budgets from a quarter to four times the longest length there may be. Planning may take
60 ms of processor time up to 8,192 sequences; above, that in proportion and 1 s per million. A
batch that exceeds its limit is planned again, up to three times, and the least time counts: other
work on the machine lengthens processor time, too. The exit status is that of a measurement: 0,
however many exceed.

    python benchmarks/planner/shapes.py --json build/planner_shapes.json
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np
import pygit2

from ringproof.reference.planning import CostModel, Domain, choose_cp_sizes, make_plan
from ringproof.reference.planning.hardware import H100
from ringproof.reference.planning.shapes import LLAMA3_8B
from ringproof.reference.planning.timing import StepCost

_TRIES = 3
KINDS = ("lognormal", "uniform", "bimodal", "heavy tail", "all equal")


def lengths(kind: str, count: int, longest: int, rng: np.random.Generator) -> np.ndarray:
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


def measure(seed: int, most: int, model: CostModel, tries: int = 1) -> dict[str, Any]:
    """One row: the shape, seconds, the limit, and the ratio to the bound."""
    rng = np.random.default_rng(seed)
    kind = KINDS[int(rng.integers(len(KINDS)))]
    ranks = int(2 ** rng.integers(3, 15))
    count = round(10 ** rng.uniform(1, math.log10(most)))
    longest = int(2 ** rng.integers(12, 18))
    budget = max(int(longest * 2 ** rng.uniform(-2, 2)), -(-longest // ranks))
    drawn, sizes = lengths(kind, count, longest, rng), choose_cp_sizes("pow2", ranks)
    domain = Domain(ranks=ranks, max_tokens_per_rank=budget, cp_sizes=sizes)
    limit = 0.06 * max(1.0, count / 8_192) + (count / 1e6 if count > 8_192 else 0.0)
    seconds, tried = math.inf, 0
    while seconds > limit and tried < tries:
        started = time.process_time()
        plan = make_plan(drawn, domain, model)
        seconds = min(seconds, time.process_time() - started)
        tried += 1
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


def main() -> None:
    """Print the batches that exceed the limit, and write all as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seeds", type=int, default=200, help="number of batches")
    parser.add_argument("--most", type=int, default=1_000_000, help="largest batch to plan")
    options = parser.parse_args()
    full = StepCost(shape=LLAMA3_8B, machine=H100)
    rows = [measure(seed, options.most, full, _TRIES) for seed in range(options.seeds)]
    above = [row for row in rows if row["seconds"] > row["limit"]]
    for row in above:
        print("{seed:4} {kind:10} n {sequences:8,} G {ranks:6,}".format(**row), end=" ")
        print("{seconds:7.3f} s, limit {limit:7.3f} s".format(**row))
    print(f"{len(above)} of {len(rows)} exceed their limit")
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        environment = {"python": platform.python_version(), "numpy": np.__version__}
        environment |= {"machine": platform.machine(), "cpus": str(os.cpu_count())}
        root = str(Path(__file__).parents[2])
        environment["commit"] = str(pygit2.Repository(root).head.target)[:12]
        record = {
            "environment": environment,
            "clock": f"processor time, the least of up to {_TRIES} plans; the machine is shared",
            "most": options.most,
            "exceed": len(above),
            "rows": rows,
        }
        options.json.write_text(json.dumps(record, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
