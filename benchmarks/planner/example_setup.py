"""The set-up of Megatron-LM's Dynamic CP example, and what NVIDIA measured with it.

Source: ``examples/dynamic_context_parallel/{README.md,benchmark_dcp.sh}`` of the dev branch at
d48bd6be0a, whose README gives the table below (single runs of 9 June 2026, four GPUs per node,
trimmed mean of iterations 11 to 30); lengths and their order from ``MockSFTLowLevelDataset`` and
``MockVarlenDataset`` (seed 0, one token less than drawn), ``MegatronPretrainingSampler`` and the
packing schedulers' gathering, rank by rank. The draw is seeded, so these are the very batches that
were measured. The GPU is not named there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from ringproof.reference.planning.domain import Domain
from ringproof.reference.planning.elementwise import IntArray
from ringproof.reference.planning.plan import Group, Microbatch

STATIC_CP = 4
MICROBATCHES = 8
TOKENS_PER_RANK = 2048
WARM_UP, ITERATIONS = 10, 30
SEQUENCES = 1_000_000
MEAN, SIGMA, SHORTEST, LONGEST = 1024, 1.5, 128, 8192


@dataclass(frozen=True)
class Measured:
    """One row of the table, trimmed means."""

    gpus: int
    static_ms: float
    dynamic_ms: float

    @property
    def speedup(self) -> float:
        return self.static_ms / self.dynamic_ms


TABLE = (
    Measured(4, 195.269, 151.906),
    Measured(8, 220.119, 155.850),
    Measured(16, 226.775, 187.125),
    Measured(32, 286.206, 208.088),
    Measured(64, 271.988, 181.912),
)


def drawn(seed: int, count: int = SEQUENCES) -> IntArray:
    """The data set's lengths; seed 0 is the example's own."""
    mu = np.log(MEAN) - SIGMA**2 / 2
    samples = np.random.RandomState(seed).lognormal(mu, SIGMA, count)
    return np.clip(samples, SHORTEST, LONGEST).astype(np.int64) - 1


def batches(seed: int, gpus: int) -> Iterator[IntArray]:
    """The batches of the iterations that count, in the order in which the scheduler sees them."""
    width = gpus // STATIC_CP
    size = MICROBATCHES * width
    lengths = drawn(seed, SEQUENCES if seed == 0 else ITERATIONS * size)
    for iteration in range(WARM_UP, ITERATIONS):
        batch = lengths[iteration * size : (iteration + 1) * size]
        yield batch.reshape(MICROBATCHES, width).T.ravel()


def padded(lengths: IntArray, multiple: int) -> IntArray:
    """As the data set pads: to 2 * CP, under Dynamic CP to 2 * DP * CP."""
    return -(-lengths // multiple) * multiple


def domain(gpus: int) -> Domain:
    """All GPUs, in groups of every power of two."""
    sizes = tuple(1 << power for power in range(gpus.bit_length()))
    return Domain(ranks=gpus, max_tokens_per_rank=TOKENS_PER_RANK, cp_sizes=sizes)


def as_microbatches(
    plan: Sequence[Sequence[tuple[int, tuple[int, ...]]]],
) -> tuple[Microbatch, ...]:
    """Upstream's groups, which lie side by side, as this planner's."""
    found = []
    for groups in plan:
        ends = accumulate(size for size, _ in groups)
        placed = zip(ends, groups, strict=True)
        found.append(Microbatch(tuple(Group(end - size, size, ids) for end, (size, ids) in placed)))
    return tuple(found)
