"""From lengths to microbatches, groups and sequences: the Dynamic CP planner.

Sequences of similar length share a microbatch: their groups need about the same time whatever
fits in, so that nobody waits (a microbatch ends for all ranks together under PP). Within it,
group sizes start as small as the lengths allow, because communication and small chunks cost, and
grow where that shortens the microbatch. Under a pipeline, microbatches of equal length are worth
more than tight ones; another division spreads long and short sequences over all of them, and the
simulated iteration decides.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from ringproof.errors import InputError
from ringproof.reference.planning.bounds import bounds, fewest_microbatches
from ringproof.reference.planning.costs import Batch, CostModel, make_batch
from ringproof.reference.planning.domain import Domain, IntArray
from ringproof.reference.planning.outline import Manner, divide
from ringproof.reference.planning.pack import Packing
from ringproof.reference.planning.pipeline import FORWARD_SHARE, Pipeline
from ringproof.reference.planning.place import advance, dummies, first_ranks, placed
from ringproof.reference.planning.plan import Metrics, Microbatch, Plan
from ringproof.reference.planning.split import split_to_multiple

Objective = Literal["sync", "async"]
MAX_SEQUENCES = 20_000_000
_MANY = 4_096
_LONG = 64
"""Above so many sequences or microbatches the first division that works is taken."""
_PERFECT = 1.003
"""A plan within this factor of the bound is not improved on."""
_EAGERNESS = 0.5
"""How eagerly full microbatches are filled; see `Manner.weight`."""
_EARNED = 0.005
"""What a microbatch more has to gain: balance bought with microbatches is not worth them."""


@dataclass(frozen=True)
class Goal:
    """What makes a plan good.

    Attributes:
        objective: ``sync``: a microbatch ends for all ranks together. ``async``: only the ranks
            of a group wait for each other.
        pipeline: Stages each microbatch passes through; ``sync`` only.

    Raises:
        InputError: An unknown objective, or a pipeline whose ranks run ahead.
    """

    objective: Objective = "sync"
    pipeline: Pipeline = field(default_factory=Pipeline)

    def __post_init__(self) -> None:
        if self.objective not in ("sync", "async"):
            raise InputError("objective", self.objective, "is unknown", "choose sync or async")
        if self.objective == "async" and self.pipeline.stages > 1:
            problem = "ranks cannot run ahead of a pipeline"
            raise InputError("objective", self.objective, problem, "use sync with --pp")


@dataclass(frozen=True)
class _Candidate:
    """Microbatches in the order they run, where their groups sit, and the iteration in ticks."""

    makespan: float
    packings: tuple[Packing, ...]
    offsets: tuple[IntArray, ...]


def make_plan(
    lengths: Sequence[int] | IntArray, domain: Domain, model: CostModel, goal: Goal | None = None
) -> Plan:
    """Plan one global batch; the same on every rank for the same arguments.

    Args:
        lengths: Tokens of each sequence, shape ``(n,)``.
        domain: Ranks, groups and budgets.
        model: What a sequence costs on a group.
        goal: ``sync`` without a pipeline when not given.

    Raises:
        InputError: No sequences, one that is empty, or one that no group can hold.
    """
    started = time.perf_counter()
    goal = goal or Goal()
    values = check_lengths(lengths, domain)
    batch = make_batch(values, domain, model)
    best = _search(batch, domain, goal)
    microbatches = [
        placed(packing, first, batch, domain.ranks)
        for packing, first in zip(best.packings, best.offsets, strict=True)
    ]
    while len(microbatches) % domain.microbatch_multiple:
        microbatches.append(_idle_microbatch(domain))
    metrics = Metrics(
        unit=model.unit,
        makespan=best.makespan * batch.tick,
        lower_bound=_lower_bound(batch, domain, goal) * batch.tick,
        padding_fraction=_padding(best.packings, batch),
        cp_histogram=_histogram(best.packings),
        planning_seconds=time.perf_counter() - started,
    )
    return Plan(
        domain.ranks,
        domain.max_tokens_per_rank,
        domain.cp_sizes,
        tuple(values.tolist()),
        tuple(microbatches),
        metrics,
    )


def check_lengths(lengths: Sequence[int] | IntArray, domain: Domain) -> IntArray:
    """The lengths as integers.

    Raises:
        InputError: See `make_plan`; names the first bad sequence.
    """
    values = np.asarray(lengths)
    if values.ndim != 1 or not len(values):
        raise InputError("lengths", values.shape, "is no list of lengths", "give at least one")
    if len(values) > MAX_SEQUENCES:
        problem = f"more than {MAX_SEQUENCES:,} sequences"
        raise InputError("lengths", f"{len(values):,}", problem, "plan one global batch at a time")
    if not np.issubdtype(values.dtype, np.integer):
        raise InputError("lengths", values.dtype, "are no whole numbers", "give tokens")
    values = values.astype(np.int64)
    small, large = np.flatnonzero(values < 1), np.flatnonzero(values > domain.longest)
    if len(small):
        first = int(small[0])
        raise InputError(f"lengths[{first}]", values[first], "is less than 1", "leave it out")
    if len(large):
        first = int(large[0])
        problem = f"longer than the {domain.longest:,} tokens that the largest group holds"
        remedy = "raise --max-tokens-per-rank or the domain, or cut the sequence"
        raise InputError(f"lengths[{first}]", values[first], problem, remedy)
    return values


def _search(batch: Batch, domain: Domain, goal: Goal) -> _Candidate:
    """The best of several ways to divide the batch; the first that is as good as perfect."""
    bound = _lower_bound(batch, domain, goal)
    fewest = _round_up(fewest_microbatches(batch, domain), domain.microbatch_multiple)
    best: _Candidate | None = None
    for manner in _manners(goal):
        for packings in _divisions(batch, domain, manner, fewest):
            found = _rated(packings, batch, domain, goal)
            if best is None or _better(found, best):
                best = found
            if best.makespan <= bound * _PERFECT:
                return best
        if len(batch) > _MANY:
            break
    assert best is not None
    return best


def _better(one: _Candidate, other: _Candidate) -> bool:
    """Whether it is shorter, by enough for each microbatch that it has more."""
    more = len(one.packings) - len(other.packings)
    return one.makespan * (1 + _EARNED * more) < other.makespan


def _manners(goal: Goal) -> list[Manner]:
    found = [Manner(), Manner(full=True, weight=_EAGERNESS)]
    if goal.pipeline.stages > 1 or goal.objective == "async":
        found.append(Manner(spread=True))
    if goal.objective == "async":
        found.append(Manner(even=False))
    return found


def _divisions(
    batch: Batch, domain: Domain, manner: Manner, wanted: int
) -> Iterator[tuple[Packing, ...]]:
    """A division into as many microbatches as wanted, or as it takes; each count a multiple."""
    packings = divide(batch, domain, wanted, manner)
    yield split_to_multiple(packings, batch, domain)
    if wanted < len(packings) <= _LONG and len(batch) <= _MANY and not manner.full:
        again = _round_up(len(packings), domain.microbatch_multiple)
        yield split_to_multiple(divide(batch, domain, again, manner), batch, domain)


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _rated(packings: tuple[Packing, ...], batch: Batch, domain: Domain, goal: Goal) -> _Candidate:
    clocks = np.zeros(domain.ranks, np.int64)
    offsets = []
    for packing in packings:
        first = first_ranks(packing, clocks)
        offsets.append(first)
        clocks = advance(packing, first, clocks) + batch.microbatch_overhead
    if goal.objective == "async":
        return _Candidate(float(clocks.max()), packings, tuple(offsets))
    times = [float(packing.ticks + batch.microbatch_overhead) for packing in packings]
    return _Candidate(goal.pipeline.seconds(times), packings, tuple(offsets))


def _lower_bound(batch: Batch, domain: Domain, goal: Goal) -> float:
    """No plan's iteration is shorter, in ticks.

    With a pipeline each stage does its part of all work; besides, the last stage waits for the
    first microbatch's forward, and the first for the last one's backward, each at least that of
    the shortest sequence. An interleaved run may end in empty microbatches, so there only the
    forward counts.
    """
    found = bounds(batch, domain)
    whole = found.ticks + found.microbatches * batch.microbatch_overhead
    stages = goal.pipeline.stages
    if stages == 1:
        return whole
    shortest = int(batch.ticks[:, batch.kind[-1]].min())
    waited = 1.0 if goal.pipeline.virtual == 1 else FORWARD_SHARE / goal.pipeline.virtual
    return whole / stages + (stages - 1) / stages * shortest * waited


def _padding(packings: Sequence[Packing], batch: Batch) -> float:
    held = sum(
        int((packing.groups.filled * np.array(packing.sizes)[packing.groups.level]).sum())
        for packing in packings
    )
    return 1 - int(batch.lengths.sum()) / held


def _histogram(packings: Sequence[Packing]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for packing in packings:
        for level in np.unique(packing.groups.level):
            here = packing.groups.level == level
            size = packing.sizes[level]
            counts[size] = counts.get(size, 0) + int(packing.groups.count[here].sum())
    return dict(sorted(counts.items()))


def _idle_microbatch(domain: Domain) -> Microbatch:
    """A microbatch of dummies only, where there are fewer sequences than microbatches needed."""
    return Microbatch(tuple(dummies(0, domain.ranks, domain.cp_sizes)))
