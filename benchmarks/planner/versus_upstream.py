"""Our plans against those of upstream's own scheduler, on random batches, measured alike.

Upstream's functions are read out of a checkout that you give, and run as they are; nothing of them
is kept here. Both plans are measured by upstream's workload (squared length over group size), the
sum over microbatches of the longest rank; and, with ``--cost full``, by the step cost model. Times
are processor seconds, so that a busy machine does not blur them.

    python -m benchmarks.planner.versus_upstream --checkout ../Megatron-LM --ref dev
"""

from __future__ import annotations

import argparse
import ast
import functools
import json
import math
import statistics
import time
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pygit2

from ringproof.reference.planning import AttentionOnly, Domain, Plan, choose_cp_sizes, make_plan
from ringproof.reference.planning.costs import CostModel
from ringproof.reference.planning.hardware import H100
from ringproof.reference.planning.shapes import LLAMA3_8B
from ringproof.reference.planning.timing import StepCost

PATH = "megatron/core/datasets/data_schedule_utils.py"
NEEDED = ("next_hdp_group_packing_aware", "dcp_gpus_needed")

Groups = list[tuple[int, tuple[int, ...]]]
"""One microbatch: group size and sequences."""


def upstream(checkout: Path, ref: str) -> Callable[..., Any]:
    """Upstream's packer of one microbatch, with what it needs and nothing else."""
    repository = pygit2.Repository(str(checkout))
    commit = repository.revparse_single(ref).peel(pygit2.Commit)
    module = ast.parse((commit.tree / PATH).data)
    wanted = [
        node
        for node in module.body
        if (isinstance(node, ast.FunctionDef) and node.name in NEEDED)
        or (isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant))
    ]
    space: dict[str, Any] = {**vars(typing), "ceil": math.ceil, "log2": math.log2}
    space["lru_cache"] = functools.lru_cache
    exec(compile(ast.Module(wanted, []), PATH, "exec"), space)
    return space[NEEDED[0]]


def upstream_plan(
    packer: Callable[..., Any], lengths: Sequence[int], domain: Domain
) -> list[Groups]:
    """Upstream's microbatches until nothing is left."""
    pool = sorted(enumerate(lengths), key=lambda item: item[1], reverse=True)
    found = []
    while pool:
        _, pool, _, by_rank = packer(pool, domain.ranks, domain.max_tokens_per_rank, 1)
        sizes: dict[tuple[int, ...], int] = {}
        for sequences in by_rank:
            sizes[tuple(sequences)] = sizes.get(tuple(sequences), 0) + 1
        found.append([(size, sequences) for sequences, size in sizes.items()])
    return found


def ours(plan: Plan) -> list[Groups]:
    """Our microbatches in the same form."""
    return [
        [(group.size, group.sequences) for group in microbatch.groups]
        for microbatch in plan.microbatches
    ]


def makespan(microbatches: list[Groups], lengths: np.ndarray, model: CostModel) -> float:
    """The longest group of each microbatch, summed; a size of no legal group counts as it is."""
    total = 0.0
    for groups in microbatches:
        longest = 0.0
        for size, sequences in groups:
            costs = model.cost(lengths[list(sequences)], size)
            longest = max(longest, float(costs.sum()) + model.group_overhead(size))
        total += longest + model.microbatch_overhead
    return total


def batch(rng: np.random.Generator) -> tuple[Domain, np.ndarray]:
    """A random domain and batch; lengths up to what the domain holds."""
    ranks = int(rng.choice([4, 8, 16, 32, 64]))
    budget = int(rng.choice([1024, 2048, 4096, 8192]))
    longest = min(ranks * budget, int(rng.choice([4096, 8192, 32768, 65536])))
    mean, sigma = float(rng.choice([500, 1024, 3000])), float(rng.choice([0.5, 1, 1.5, 2]))
    drawn = np.exp(
        math.log(mean) - sigma**2 / 2 + sigma * rng.standard_normal(rng.integers(8, 400))
    )
    lengths = np.clip(np.rint(drawn), min(64, longest), longest).astype(np.int64)
    # Upstream's packer counts no padding; its dataset pads to what any group size divides.
    unit = 2 * ranks
    lengths = np.minimum(-(-lengths // unit) * unit, ranks * budget)
    sizes = choose_cp_sizes("pow2", ranks)
    return Domain(ranks=ranks, max_tokens_per_rank=budget, cp_sizes=sizes), lengths


def compare(packer: Callable[..., Any], seed: int, model: CostModel) -> dict[str, Any]:
    """One batch, both planners."""
    domain, lengths = batch(np.random.default_rng([20261121, seed]))
    started = time.process_time()
    theirs = upstream_plan(packer, lengths.tolist(), domain)
    between = time.process_time()
    plan = make_plan(lengths, domain, model)
    ended = time.process_time()
    return {
        "ranks": domain.ranks,
        "crosses_nodes": domain.ranks > 8,
        "microbatches": len(plan.microbatches),
        "upstream_microbatches": len(theirs),
        "makespan": makespan(ours(plan), lengths, model),
        "upstream_makespan": makespan(theirs, lengths, model),
        "lower_bound": plan.metrics.lower_bound,
        "seconds": ended - between,
        "upstream_seconds": between - started,
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The comparison in a few numbers."""
    gains = [row["upstream_makespan"] / row["makespan"] for row in rows]
    crossing = [gain for gain, row in zip(gains, rows, strict=True) if row["crosses_nodes"]]
    more = [row["microbatches"] - row["upstream_microbatches"] for row in rows]
    return {
        "batches": len(rows),
        "worse": sum(gain < 1 - 1e-9 for gain in gains),
        "median_gain": statistics.median(gains),
        "median_gain_across_nodes": statistics.median(crossing) if crossing else None,
        "smallest_gain": min(gains),
        "more_microbatches": sum(item > 0 for item in more),
        "fewer_microbatches": sum(item < 0 for item in more),
        "median_ratio_to_bound": statistics.median(r["makespan"] / r["lower_bound"] for r in rows),
        "upstream_median_ratio_to_bound": statistics.median(
            row["upstream_makespan"] / row["lower_bound"] for row in rows
        ),
        "median_seconds": statistics.median(row["seconds"] for row in rows),
        "upstream_median_seconds": statistics.median(row["upstream_seconds"] for row in rows),
    }


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkout", type=Path, required=True, help="a clone, bare or not")
    parser.add_argument("--ref", default="dev")
    parser.add_argument("--batches", type=int, default=1000)
    parser.add_argument("--cost", choices=["attention-only", "full"], default="attention-only")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    packer = upstream(options.checkout, options.ref)
    model: CostModel = AttentionOnly()
    if options.cost == "full":
        model = StepCost(shape=LLAMA3_8B, machine=H100)
    rows = []
    for seed in range(options.batches):
        rows.append(compare(packer, seed, model))
        if (seed + 1) % 100 == 0:
            print(f"{seed + 1} of {options.batches}", flush=True)
    commit = str(pygit2.Repository(str(Path(__file__).parents[2])).head.target)[:12]
    found = {"cost": options.cost, "ref": options.ref, "commit": commit, **summary(rows)}
    print(json.dumps(found, indent=2))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({**found, "rows": rows}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
