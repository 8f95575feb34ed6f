"""Plans a step from the lengths of its sequences, by one of three schedules.

==========  ===========  ==========================================================
schedule    CP groups    sequences
==========  ===========  ==========================================================
padded      one size     each as long as all others (BSHD), padding computed
packed      one size     one after the other (THD), balanced over DP
dynamic     by lengths   packed; the planner chooses group sizes and microbatches
==========  ===========  ==========================================================

Every rank computes the plan on its own; ``agreement`` checks that all plans are equal.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ringproof.errors import InputError, check_name
from ringproof.reference.model.config import LayerKind, ModelConfig
from ringproof.reference.packing.capacity import RankCapacity, padding_pack
from ringproof.reference.packing.partition import check_partition
from ringproof.reference.packing.sequences import Capacity, PackedSequences, pack
from ringproof.reference.planning import (
    AttentionOnly,
    CostModel,
    Domain,
    Goal,
    Group,
    Microbatch,
    Pipeline,
    Plan,
    make_plan,
    violations,
)
from ringproof.reference.planning.baselines import padded_plan, static_plan
from ringproof.reference.planning.elementwise import IntArray
from ringproof.reference.planning.plan import build_plan
from ringproof.reference.planning.simulate import simulate
from ringproof.reference.training.options import SCHEDULES

RING_STEP_TOKENS = 16
"""A step of the ring costs as much as so many tokens: an estimate, not measured. It only keeps
short sequences from being spread over many ranks for nothing."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Settings from which steps are planned; most of them are options of a run.

    Args:
        ranks: Ranks of the DP x CP domain.
        cp_size: CP size of ``padded`` and ``packed``.
        cp_sizes, forced_sizes: CP sizes of ``dynamic``; see `options.BatchOptions`.
        row_shards: Number of parts into which a rank's rows are divided between layers: the TP size
            under sequence parallelism.
        padded_length: Tokens to which ``padded`` pads every sequence; the longest of the step when
            ``None``.
        capacity: Fixed size of packs for CUDA graphs; ``None`` for the size of their sequences.

    Raises:
        InputError: The name is unknown, or a size does not divide ``ranks``.
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
        check_name("schedule", self.name, SCHEDULES)
        if self.forced_sizes and self.name != "dynamic":
            problem = f"the {self.name} schedule has one size"
            raise InputError("forced_sizes", f"{problem}; use dynamic")
        check_partition(self.partition)
        _ = self.domain

    @property
    def sizes(self) -> tuple[int, ...]:
        """CP sizes that plans may use, ascending. Groups of these sizes have to exist."""
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
        """Domain for the planner."""
        return Domain(
            ranks=self.ranks,
            max_tokens_per_rank=self.max_tokens_per_rank,
            cp_sizes=self.sizes,
            microbatch_multiple=self.microbatch_multiple,
            rank_multiple=self.rank_multiple,
        )


@dataclass(frozen=True, kw_only=True)
class StepPlan:
    """Plan of one step, with its documents.

    Args:
        plan: Plan in which sequences are numbered as in ``documents`` and ranks as in the domain.
        documents: Indices of the documents, from the sampler.
        computed: Rows that count as real in ``cu_seqlens``, by sequence: its length, or the common
            length under ``padded``.
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
        """Return the groups of each microbatch, as sizes and computed rows of each sequence."""
        return tuple(
            tuple(
                (group.size, tuple(self.computed[sequence] for sequence in group.sequences))
                for group in microbatch.groups
            )
            for microbatch in self.plan.microbatches
        )

    def pack(self, group: Group) -> PackedSequences:
        """Return the pack that a group shares, at the fixed capacity if there is one and it fits.

        Raises:
            InputError: It does not fit, and the options ask for an error.
        """
        multiple = group.size * self.rank_multiple
        if group.dummy:
            packed = padding_pack(Capacity(rows=multiple, entries=1))
        else:
            packed = pack([self.computed[one] for one in group.sequences], multiple=multiple)
        return (self.capacity and self.capacity.fitted(packed, group.size)) or packed

    def group_of(self, microbatch: int, rank: int) -> Group:
        """Return the group of a rank of the domain in a microbatch."""
        groups = self.plan.microbatches[microbatch].groups
        return next(group for group in groups if rank in group.ranks)


def plan_step(
    lengths: Sequence[int] | IntArray,
    schedule: Schedule,
    *,
    documents: Sequence[int] | IntArray | None = None,
    names: Sequence[str] = (),
) -> StepPlan:
    """Plan one step. The result is the same on every rank for the same arguments.

    Args:
        documents: Indices of the documents; their positions when ``None``.
        names: Names of the documents for messages; empty for numbers.

    Raises:
        InputError: There are no sequences, or one does not fit. The message names it.
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
    """Refuse a plan in which the independent validator finds a fault; ``what`` names the batch.

    Raises:
        InputError: The plan has a fault, of which the message names the first, a pack exceeds the
            capacity, or ``multiple`` does not divide the number of microbatches.
    """
    computed = replace(step.plan, lengths=step.computed)  # longer under padded
    _ = step.rows  # checks the capacity of every pack on all ranks, not only on those that hold it
    problems = violations(computed.as_json(), rank_multiple=step.rank_multiple, multiple=multiple)
    if problems:
        raise InputError(what, f"{problems[0]}; report it with its lengths")


def plan_digest(step: StepPlan) -> str:
    """Return a digest of everything on which ranks have to agree. Times do not belong to it."""
    content = step.plan.as_json()
    del content["metrics"]
    content["documents"] = step.documents
    content["computed"] = step.computed
    content["shards"] = [step.partition, step.rank_multiple, str(step.capacity)]
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _plan(lengths: IntArray, computed: IntArray, schedule: Schedule) -> Plan:
    domain, model = schedule.domain, schedule.model
    goal = Goal(pipeline=schedule.pipeline)
    if schedule.name == "packed":
        return static_plan(lengths, domain, schedule.cp_size, model, goal)
    if schedule.name == "padded":
        # The plan gets the real lengths, but its lower bound is that of the padded ones.
        plan = padded_plan(computed, domain, schedule.cp_size, model, goal)
        held = int(domain.rank_rows(computed, schedule.cp_size).sum()) * schedule.cp_size
        metrics = replace(plan.metrics, padding_fraction=1 - int(lengths.sum()) / held)
        return replace(plan, lengths=tuple(lengths.tolist()), metrics=metrics)
    if schedule.forced_sizes:
        return forced_plan(lengths, domain, schedule.forced_sizes, model)
    return make_plan(lengths, domain, model, goal)


def check_fit(lengths: IntArray, schedule: Schedule, names: Sequence[str] = ()) -> None:
    """Refuse sequences that no group can hold, by their names.

    Raises:
        InputError: A sequence, or the length to which all are padded, does not fit.
    """
    longest = schedule.domain.longest
    padded = schedule.padded_length
    if padded is not None and padded > longest:
        problem = f"{padded:,} is more than the {longest:,} tokens that a group holds"
        raise InputError("padded_length", f"{problem}; raise max_tokens_per_rank or cp")
    limit, what = longest, f"the {longest:,} tokens that the largest CP group holds"
    if schedule.name == "padded" and padded is not None and padded < longest:
        limit, what = padded, f"the {padded:,} tokens that sequences are padded to"
    large = np.flatnonzero(lengths > limit)
    if len(large):
        first = int(large[0])
        name = names[first] if names else f"sequence {first}"
        remedy = "raise max_tokens_per_rank or the CP size, or lower max_sequence_length"
        raise InputError(name, f"{int(lengths[first]):,} tokens are longer than {what}; {remedy}")


@dataclass(frozen=True)
class MultiplyAdds:
    """Multiply-adds of the forward on one rank, as a ``CostModel`` of the planner.

    The backward takes twice as many for every sequence, so it does not change the plan.

    Args:
        per_token: Multiply-adds of all matrix products with weights, per token.
        per_pair: Multiply-adds of attention, per pair of a query and a visible key.
    """

    per_token: float
    per_pair: float
    unit: str = "multiply-adds per rank"
    microbatch_overhead: float = 0.0

    def cost(self, lengths: Any, size: int) -> Any:
        """See ``CostModel``: ``(L * per_token + L * L / 2 * per_pair) / size``."""
        tokens = lengths * 1.0
        return tokens * (self.per_token + tokens * (0.5 * self.per_pair)) / size

    def group_overhead(self, size: int) -> float:
        """See ``CostModel``."""
        return RING_STEP_TOKENS * self.per_token * (size - 1)

    @classmethod
    def of_model(cls, config: ModelConfig) -> MultiplyAdds:
        """Count the multiply-adds of a model, without norms, convolutions and softmax."""
        head = config.hidden * config.vocabulary * (1 + config.mtp_depths)
        mixers = [_mixer_costs(config, kind) for kind in config.layers]
        dense = sum(_feed_forward_cost(config, kind) for kind in config.layers)
        per_token = head + dense + sum(tokens for tokens, _ in mixers)
        return cls(float(per_token), float(sum(pairs for _, pairs in mixers)))


def _mixer_costs(config: ModelConfig, kind: LayerKind) -> tuple[int, int]:
    """Return the multiply-adds of a mixer per token and per pair."""
    hidden = config.hidden
    if kind.mixer == "attention" and config.attention:
        gqa = config.attention
        projected = 2 * (gqa.heads + gqa.kv_heads) * gqa.head_width
        return hidden * projected, 2 * gqa.heads * gqa.head_width
    if kind.mixer == "latent" and config.latent:
        mla = config.latent
        key = mla.content_width + mla.rotary_width
        down = mla.latent_width + mla.rotary_width
        up = mla.latent_width * mla.heads * (mla.content_width + mla.value_width)
        outer = mla.heads * (key + mla.value_width) + down
        return hidden * outer + up, mla.heads * (key + mla.value_width)
    return 0, 0


def _feed_forward_cost(config: ModelConfig, kind: LayerKind) -> int:
    if kind.feed_forward == "experts" and config.experts:
        moe = config.experts
        return config.hidden * (3 * (moe.chosen * moe.width + moe.shared_width) + moe.experts)
    return 3 * config.hidden * config.feed_forward if kind.feed_forward else 0


def forced_plan(lengths: IntArray, domain: Domain, sizes: Sequence[int], model: CostModel) -> Plan:
    """Plan a step in which microbatch ``k`` has groups of ``sizes[k % len(sizes)]`` ranks.

    This runs every size in one step, for comparisons. Sequences are assigned to the microbatches
    in turn, so that every size is used, and within a microbatch to the emptiest group. A sequence
    that does not fit goes to the next microbatch with room. There are as few microbatches as
    possible, but at least one for each size. Groups without sequences are dummies. No lower bound
    is computed.

    Every sequence fits a group of the largest size, as `plan_step` has checked.
    """
    started = time.perf_counter()
    multiple = domain.microbatch_multiple
    counts = itertools.count(-(-len(sizes) // multiple) * multiple, multiple)
    tried = (_assign(lengths, domain, [sizes[k % len(sizes)] for k in range(n)]) for n in counts)
    microbatches = next(found for found in tried if found is not None)
    values: list[int] = lengths.tolist()
    makespan = simulate(microbatches, values, domain.ranks, model, Goal()).makespan
    times = (model.unit, makespan, 0.0)
    groups = [group for microbatch in microbatches for group in microbatch.groups]
    rows = [
        group.size * domain.rank_rows(values[n], group.size)
        for group in groups
        for n in group.sequences
    ]
    return build_plan(values, domain, microbatches, times=times, started=started, tokens=sum(rows))


def _assign(lengths: IntArray, domain: Domain, sizes: Sequence[int]) -> list[Microbatch] | None:
    """Assign sequences to microbatches with groups of these sizes; ``None`` if one does not fit."""
    rows = [domain.rank_rows(lengths, size).tolist() for size in sizes]
    filled = [[0] * (domain.ranks // size) for size in sizes]
    assigned: list[list[list[int]]] = [[[] for _ in groups] for groups in filled]
    for sequence in range(len(lengths)):
        for turn in range(len(sizes)):
            k = (sequence + turn) % len(sizes)
            group = int(np.argmin(filled[k]))
            if filled[k][group] + rows[k][sequence] <= domain.max_tokens_per_rank:
                break
        else:
            return None
        filled[k][group] += rows[k][sequence]
        assigned[k][group].append(sequence)
    return [
        Microbatch(tuple(Group(i * size, size, tuple(own)) for i, own in enumerate(groups)))
        for size, groups in zip(sizes, assigned, strict=True)
    ]
