"""From the lengths of a step to its plan, by one of three schedules.

==========  ===========  ==========================================================
schedule    CP groups    sequences
==========  ===========  ==========================================================
padded      one size     each as long as all others (BSHD), padding computed
packed      one size     one after the other (THD), balanced over DP
dynamic     by lengths   packed; the planner chooses group sizes and microbatches
==========  ===========  ==========================================================

Every rank plans for itself. That all have the same plan is checked (``agreement``), not hoped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ringproof.errors import InputError
from ringproof.reference.packing.capacity import RankCapacity
from ringproof.reference.packing.partition import check_partition
from ringproof.reference.packing.sequences import Capacity, PackedSequences, pack
from ringproof.reference.planning import (
    AttentionOnly,
    CostModel,
    Domain,
    Goal,
    Group,
    Pipeline,
    Plan,
    make_plan,
    violations,
)
from ringproof.reference.planning.baselines import padded_plan, static_plan
from ringproof.reference.planning.domain import IntArray
from ringproof.reference.training.forced import forced_plan

SCHEDULES = ("padded", "packed", "dynamic")
_DIGITS = 16


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How steps are planned.

    Args:
        name: One of :data:`SCHEDULES`.
        ranks: Of the DPxCP domain.
        max_tokens_per_rank: Rows of a rank in one microbatch, padding included.
        cp_size: Of ``padded`` and ``packed``.
        cp_sizes: Sizes that ``dynamic`` may use.
        forced_sizes: Sizes that microbatches of ``dynamic`` take in turn, whatever the planner
            thinks best: a test instrument.
        row_shards: Parts into which a rank's rows are cut between layers: the TP size under
            sequence parallelism.
        partition: How sequences are cut over a group, ``zigzag`` or ``contiguous``.
        padded_length: Of ``padded``: tokens that every sequence is padded to; the longest of the
            step when ``None``.
        pipeline: Stages, and virtual stages on each; interleaved ones want a number of
            microbatches that the stages divide.
        model: What a sequence costs on a group.
        capacity: Fixed size of packs, for graphs; ``None``: each is as large as its sequences.

    Raises:
        InputError: An unknown name, or sizes that are no divisors of ``ranks``.
    """

    name: str
    ranks: int
    max_tokens_per_rank: int
    cp_size: int = 1
    cp_sizes: tuple[int, ...] = (1,)
    forced_sizes: tuple[int, ...] = ()
    row_shards: int = 1
    partition: str = "zigzag"
    padded_length: int | None = None
    pipeline: Pipeline = field(default_factory=Pipeline)
    model: CostModel = field(default_factory=AttentionOnly)
    capacity: RankCapacity | None = None

    def __post_init__(self) -> None:
        if self.name not in SCHEDULES:
            raise InputError("schedule", self.name, "unknown", f"use one of {SCHEDULES}")
        if self.forced_sizes and self.name != "dynamic":
            problem = f"do not go with the {self.name} schedule"
            raise InputError("forced_sizes", self.forced_sizes, problem, "use dynamic")
        check_partition(self.partition)
        _ = self.domain

    @property
    def sizes(self) -> tuple[int, ...]:
        """Group sizes that its plans may use, ascending: the groups that have to exist."""
        if self.name != "dynamic":
            return (self.cp_size,)
        return tuple(sorted(set(self.forced_sizes or self.cp_sizes)))

    @property
    def rank_multiple(self) -> int:
        """Rows of a sequence on one rank are a multiple of this."""
        return self.row_shards * (2 if self.partition == "zigzag" else 1)

    @property
    def microbatch_multiple(self) -> int:
        """The number of microbatches is a multiple of this."""
        return self.pipeline.stages if self.pipeline.virtual > 1 else 1

    @property
    def domain(self) -> Domain:
        """What the planner may use."""
        return Domain(
            ranks=self.ranks,
            max_tokens_per_rank=self.max_tokens_per_rank,
            cp_sizes=self.sizes,
            microbatch_multiple=self.microbatch_multiple,
            rank_multiple=self.rank_multiple,
        )


@dataclass(frozen=True, kw_only=True)
class StepPlan:
    """One step: which documents, and where and when they are computed.

    Args:
        plan: Its sequences are numbered as in ``documents``; its ranks are those of the domain.
        documents: Of the data set, as the sampler gave them.
        computed: Rows that count as real in ``cu_seqlens``, by sequence: its length, or under
            ``padded`` the length that all have.
        partition, rank_multiple, capacity: See :class:`Schedule`.
    """

    plan: Plan
    documents: tuple[int, ...]
    computed: tuple[int, ...]
    partition: str
    rank_multiple: int
    capacity: RankCapacity | None = None

    @property
    def lengths(self) -> Sequence[int]:
        """Tokens of each sequence."""
        return self.plan.lengths

    @property
    def tokens(self) -> int:
        """Real tokens of the global batch."""
        return sum(self.lengths)

    @property
    def rows(self) -> int:
        """Rows that the ranks of the domain compute, padding and dummies included."""
        return sum(self.pack(group).rows for m in self.plan.microbatches for group in m.groups)

    @property
    def groups(self) -> tuple[tuple[tuple[int, tuple[int, ...]], ...], ...]:
        """Of each microbatch its groups: size, and rows of each sequence as they are computed."""
        return tuple(
            tuple(
                (group.size, tuple(self.computed[sequence] for sequence in group.sequences))
                for group in microbatch.groups
            )
            for microbatch in self.plan.microbatches
        )

    def pack(self, group: Group) -> PackedSequences:
        """The rows that a group shares, at capacity if there is one and it fits.

        Raises:
            InputError: It does not fit, and that is an error.
        """
        packed = self._packed(group)
        return (self.capacity and self.capacity.fitted(packed, group.size)) or packed

    def _packed(self, group: Group) -> PackedSequences:
        """The rows of a group's sequences; padding alone where it is a dummy."""
        multiple = group.size * self.rank_multiple
        if group.dummy:
            capacity = Capacity(rows=multiple, entries=1)
            return pack((), multiple=multiple, tail="dummy", capacity=capacity)
        return pack([self.computed[sequence] for sequence in group.sequences], multiple=multiple)

    def group_of(self, microbatch: int, rank: int) -> Group:
        """The group that holds a rank of the domain in a microbatch."""
        groups = self.plan.microbatches[microbatch].groups
        return next(group for group in groups if rank in group.ranks)


def plan_step(
    lengths: Sequence[int] | IntArray,
    schedule: Schedule,
    *,
    documents: Sequence[int] | IntArray | None = None,
    names: Sequence[str] = (),
) -> StepPlan:
    """Plan one step; the same on every rank for the same arguments.

    Args:
        lengths: Tokens of each sequence.
        schedule: How.
        documents: Which documents they are; their places when ``None``.
        names: Of the documents, for messages.

    Raises:
        InputError: No sequences, or one that does not fit, by its name.
    """
    values = np.asarray(lengths, dtype=np.int64)
    check_fit(values, schedule, names)
    computed = values
    if schedule.name == "padded":
        longest = schedule.padded_length or int(values.max(initial=1))
        computed = np.full_like(values, longest)
    plan = _plan(values, computed, schedule)
    return StepPlan(
        plan=plan,
        documents=tuple(range(len(values)) if documents is None else map(int, documents)),
        computed=tuple(computed.tolist()),
        partition=schedule.partition,
        rank_multiple=schedule.rank_multiple,
        capacity=schedule.capacity,
    )


def check_plan(step: StepPlan, what: str, *, multiple: int) -> None:
    """Refuse a plan that the independent validator finds fault with.

    Args:
        step: The plan.
        what: The batch, for the message.
        multiple: The number of microbatches has to be a multiple of this.

    Raises:
        InputError: Names the first fault, or what capacity is too small for a pack.
    """
    computed = replace(step.plan, lengths=step.computed)  # under padded, longer than what is real
    _ = step.rows  # every pack fits the capacity: refused by all ranks, not by those that hold it
    problems = violations(computed.as_json(), rank_multiple=step.rank_multiple, multiple=multiple)
    if problems:
        raise InputError(what, None, problems[0], "report it with its lengths")


def plan_digest(step: StepPlan) -> str:
    """A short name of all that ranks have to agree on; times do not belong to it."""
    content = step.plan.as_json()
    del content["metrics"]
    content["documents"] = step.documents
    content["computed"] = step.computed
    content["cut"] = [step.partition, step.rank_multiple, str(step.capacity)]
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def _plan(lengths: IntArray, computed: IntArray, schedule: Schedule) -> Plan:
    domain, model = schedule.domain, schedule.model
    goal = Goal(pipeline=schedule.pipeline)
    if schedule.name == "packed":
        return static_plan(lengths, domain, schedule.cp_size, model, goal)
    if schedule.name == "padded":
        plan = padded_plan(computed, domain, schedule.cp_size, model, goal)
        return _with_lengths(plan, lengths, computed, domain)
    if schedule.forced_sizes:
        return forced_plan(lengths, domain, schedule.forced_sizes, model)
    return make_plan(lengths, domain, model, goal)


def _with_lengths(plan: Plan, lengths: IntArray, computed: IntArray, domain: Domain) -> Plan:
    """A plan of padded sequences as one of what is in them; its bound stays that of BSHD."""
    size = domain.cp_sizes[0]
    held = int(domain.rank_tokens(computed, size).sum()) * size
    metrics = replace(plan.metrics, padding_fraction=1 - int(lengths.sum()) / held)
    return replace(plan, lengths=tuple(lengths.tolist()), metrics=metrics)


def check_fit(lengths: IntArray, schedule: Schedule, names: Sequence[str] = ()) -> None:
    """Refuse by name what no group can hold.

    Args:
        lengths: Tokens of each sequence.
        schedule: How they would be planned.
        names: Of the documents, for the message.

    Raises:
        InputError: A sequence, or the length that all are padded to, does not fit.
    """
    longest = schedule.domain.longest
    padded = schedule.padded_length
    if padded is not None and padded > longest:
        problem = f"longer than the {longest:,} tokens that a group holds"
        raise InputError("padded_length", padded, problem, "raise max_tokens_per_rank or cp")
    limit, what = longest, f"the {longest:,} tokens that the largest CP group holds"
    if schedule.name == "padded" and padded is not None and padded < longest:
        limit, what = padded, f"the {padded:,} tokens that sequences are padded to"
    large = np.flatnonzero(lengths > limit)
    if len(large):
        first = int(large[0])
        name = names[first] if names else f"sequence {first}"
        remedy = "raise max_tokens_per_rank or the CP size, or lower max_sequence_length"
        raise InputError(name, int(lengths[first]), f"longer than {what}", remedy)
