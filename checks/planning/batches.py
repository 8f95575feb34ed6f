"""Domains and batches for the planner's tests; every one from a seed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ringproof.reference.planning.domain import Domain, choose_cp_sizes, divisors
from ringproof.reference.planning.hardware import H100
from ringproof.reference.planning.shapes import LLAMA3_8B
from ringproof.reference.planning.timing import StepCost

IntArray = npt.NDArray[np.int64]
REAL = StepCost(shape=LLAMA3_8B, machine=H100)


@dataclass(frozen=True)
class Mixed:
    """A made-up cost model in which large groups and many messages cost something."""

    unit: str = "made-up units"
    microbatch_overhead: float = 3000.0
    per_token: float = 40.0
    per_step: float = 4.0

    def cost(self, lengths: IntArray, size: int) -> npt.NDArray[np.float64]:
        rows = lengths.astype(np.float64)
        compute = rows * rows / size + self.per_token * rows / size
        return compute + self.per_step * rows * (size - 1) / size

    def group_overhead(self, size: int) -> float:
        return 500.0 * (size - 1)


def domain(ranks: int, budget: int, **options: int | None) -> Domain:
    """A domain with groups of every power of two."""
    sizes = choose_cp_sizes("pow2", ranks)
    return Domain(ranks=ranks, max_tokens_per_rank=budget, cp_sizes=sizes, **options)


def lognormal(seed: int, count: int, *, longest: int = 8192, sigma: float = 1.5) -> IntArray:
    """Lengths with the long tail of the published example."""
    rng = np.random.default_rng(seed)
    center = np.log(1024) - sigma**2 / 2
    drawn = np.exp(center + sigma * rng.standard_normal(count))
    return np.clip(np.rint(drawn), min(128, longest), longest).astype(np.int64)


def random_case(seed: int, *, most: int = 300) -> tuple[Domain, IntArray]:
    """Anything a user may ask for: odd domains, tight budgets, capacities, multiples."""
    rng = np.random.default_rng(seed)
    ranks = int(rng.integers(1, 129))
    spec = str(rng.choice(["pow2", "divisors", "list"]))
    if spec == "list":
        known = divisors(ranks)
        picked = rng.choice(known, int(rng.integers(1, len(known) + 1)), replace=False)
        spec = ",".join(str(size) for size in picked)
    multiple = int(rng.choice([2, 2, 1, 4, 16]))
    domain = Domain(
        ranks=ranks,
        max_tokens_per_rank=max(multiple, int(rng.choice([2, 7, 64, 333, 1024, 4096]))),
        cp_sizes=choose_cp_sizes(spec, ranks),
        max_sequences=None if rng.random() < 0.6 else int(rng.integers(1, 40)),
        microbatch_multiple=int(rng.choice([1, 1, 2, 4, 8])),
        rank_multiple=multiple,
    )
    count = int(rng.integers(1, min(most, int(rng.choice([3, 20, 120, most]))) + 1))
    return domain, _lengths(rng, domain.longest, count)


def _lengths(rng: np.random.Generator, longest: int, count: int) -> IntArray:
    kind = int(rng.integers(4))
    if kind == 0:
        found = rng.integers(1, longest + 1, count)
    elif kind == 1:
        found = np.full(count, int(rng.integers(1, longest + 1)))
    elif kind == 2:
        found = np.clip(np.rint(np.exp(rng.normal(4, 2, count))), 1, longest)
    else:
        short = rng.integers(1, max(1, longest // 16) + 1, count)
        found = np.where(rng.random(count) < 0.1, longest, short)
    return found.astype(np.int64)
