"""How large graphs have to be for a batch: rows, entries, CP sizes, slots, and what that costs.

A captured graph has one shape, so every pack is padded to the largest. Plans of the batches to
come say what the largest is. Worked example, budget of 2,048 tokens, two plans on 8 ranks:

    plan    microbatches   sequences in the fullest pack   CP sizes used
    0       3              13                              1, 2, 4
    1       4              11                              1, 2
    graphs  4              13 and the dummy: 14            8, 4, 2, 1 captured; 8 never replayed

Two banks are counted: this repository's, with a slot for each microbatch in flight, and that of
Megatron-LM's pull request 5618, with a slot for each that a step could have at most
(``TECudaGraphHelper._get_cuda_graph_input_data``). numpy only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from ringproof.errors import InputError
from ringproof.reference.planning.plan import Plan

ITEM_BYTES = 2
"""bf16, of hidden states."""
ROPE_BYTES = 4
"""float32, of an angle."""
_BOUNDARY_TENSORS, _BOUNDARY_BYTES = 4, 4
"""``cu_seqlens`` of queries and keys, real and padded, as int32."""


@dataclass(frozen=True, kw_only=True)
class GraphCapacity:
    """What graphs have to hold for some batches.

    Attributes:
        batches: How many were planned.
        rows: On each rank, in every microbatch; as ``--graph-rows`` of ``ringproof train``.
        fullest: Sequences in the fullest pack.
        entries: Of a pack, its dummy included: ``--thd-max-packed-sequences`` of Megatron-LM,
            ``--graph-sequences`` of ``ringproof train``.
        groups: CP size, largest first, to the groups that had sequences, in all batches. A size
            with none is captured all the same.
        microbatches: Of the batch with most.
        slots: Of these, the most that wait for their backwards together.
        upstream_slots: What pull request 5618 captures for: every sequence a microbatch of its
            own, with a pipeline; without one a single slot. Data sets with one sample per
            sequence (``--use-varlen-dataset``); else ``entries`` times as many.
        tokens: Real ones, of all batches.
        packed_rows: Rows that hold them, padded only to be cut.
        capacity_rows: Rows at capacity, ranks without a sequence included.
    """

    batches: int
    rows: int
    fullest: int
    entries: int
    groups: Mapping[int, int]
    microbatches: int
    slots: int
    upstream_slots: int
    tokens: int
    packed_rows: int
    capacity_rows: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """CP sizes to capture, largest first."""
        return tuple(self.groups)

    @property
    def never_used(self) -> tuple[int, ...]:
        """CP sizes without a sequence: captured, and a test that passes says nothing of them."""
        return tuple(size for size, count in self.groups.items() if not count)

    @property
    def pairs(self) -> int:
        """Forward and backward graphs of a layer."""
        return self.slots * len(self.groups)

    @property
    def upstream_pairs(self) -> int:
        """The same in pull request 5618."""
        return self.upstream_slots * len(self.groups)

    @property
    def packed_padding(self) -> float:
        """Part of the rows that is computed for nothing without capacity."""
        return 1 - self.tokens / self.packed_rows

    @property
    def padding(self) -> float:
        """The same at capacity."""
        return 1 - self.tokens / self.capacity_rows

    @property
    def times_the_rows(self) -> float:
        """Rows at capacity over rows without. Not of time: some of these ranks would wait."""
        return self.capacity_rows / self.packed_rows

    def as_json(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "batches": self.batches,
            "rows_per_rank": self.rows,
            "fullest_pack": self.fullest,
            "thd_max_packed_sequences": self.entries,
            "groups": {str(size): count for size, count in self.groups.items()},
            "tokens": {str(size): size * self.rows for size in self.groups},
            "microbatches": self.microbatches,
            "slots": self.slots,
            "pairs_per_layer": self.pairs,
            "pr5618_slots": self.upstream_slots,
            "pr5618_pairs_per_layer": self.upstream_pairs,
            "padding_fraction": self.padding,
            "padding_fraction_without": self.packed_padding,
        }


def graph_capacity(
    plan: Plan,
    *,
    rank_multiple: int,
    slots: int,
    pp: int = 1,
    max_sequences: int | None = None,
) -> GraphCapacity:
    """What graphs have to hold for one plan.

    Args:
        plan: Of a batch.
        rank_multiple: Rows of a sequence on one rank are padded to a multiple of this.
        slots: Of its microbatches, the most that wait for their backwards together.
        pp: Pipeline ranks.
        max_sequences: Most sequences of a pack, where the planner was told; else those of the
            fullest are room enough.

    Raises:
        InputError: A plan without sequences.
    """
    groups = [group for item in plan.microbatches for group in item.groups if not group.dummy]
    if not groups:
        raise InputError("plan", None, "has no sequences", "plan a batch")
    size_of = np.zeros(len(plan.lengths), np.int64)
    for group in groups:
        size_of[list(group.sequences)] = group.size
    chunks = size_of * rank_multiple
    lengths = np.asarray(plan.lengths, np.int64)
    rows = plan.max_tokens_per_rank // rank_multiple * rank_multiple
    used = [group.size for group in groups]
    fullest = max(len(group.sequences) for group in groups)
    microbatches = len(plan.microbatches)
    return GraphCapacity(
        batches=1,
        rows=rows,
        fullest=fullest,
        entries=(max_sequences or fullest) + 1,
        groups=MappingProxyType({size: used.count(size) for size in reversed(plan.cp_sizes)}),
        microbatches=microbatches,
        slots=slots,
        upstream_slots=upstream_slots(len(lengths), pp=pp),
        tokens=int(lengths.sum()),
        packed_rows=int((-(-lengths // chunks) * chunks).sum()),
        capacity_rows=microbatches * plan.ranks * rows,
    )


def largest(found: Sequence[GraphCapacity]) -> GraphCapacity:
    """What holds all of several batches of one domain.

    Raises:
        InputError: There are none, or they have other rows or CP sizes.
    """
    if len({(one.rows, one.sizes) for one in found}) != 1:
        problem = "have not all the same rows and CP sizes"
        raise InputError("capacities", len(found), problem, "give those of one domain")
    return GraphCapacity(
        batches=sum(one.batches for one in found),
        rows=found[0].rows,
        fullest=max(one.fullest for one in found),
        entries=max(one.entries for one in found),
        groups=MappingProxyType(
            {size: sum(one.groups[size] for one in found) for size in found[0].sizes}
        ),
        microbatches=max(one.microbatches for one in found),
        slots=max(one.slots for one in found),
        upstream_slots=max(one.upstream_slots for one in found),
        tokens=sum(one.tokens for one in found),
        packed_rows=sum(one.packed_rows for one in found),
        capacity_rows=sum(one.capacity_rows for one in found),
    )


def upstream_slots(sequences: int, *, pp: int) -> int:
    """Slots of pull request 5618, whose data set gives one sample per sequence.

    Args:
        sequences: Of the global batch: each might be a microbatch of its own.
        pp: Pipeline ranks.
    """
    return 1 if pp == 1 else sequences


@dataclass(frozen=True, kw_only=True)
class StaticInputs:
    """Bytes of what is filled before a replay, in pull request 5618; on one rank.

    Activations, gradients and the memory pools of the graphs come on top.

    Attributes:
        hidden: Hidden states of a layer, slot and CP size.
        metadata: Four ``cu_seqlens`` tensors.
        mask: One byte for each row.
        rope: Angles for all CP sizes together: layers and slots share them.
        copies: Layers times microbatches in flight times CP sizes. Slots that are never filled
            together share their tensors.
    """

    hidden: int
    metadata: int
    mask: int
    rope: int
    copies: int

    @property
    def each(self) -> int:
        """Of a layer, slot and CP size."""
        return self.hidden + self.metadata + self.mask

    @property
    def total(self) -> int:
        """Of the rank."""
        return self.each * self.copies + self.rope

    def as_json(self) -> dict[str, int]:
        """As plain data."""
        return {
            "layer_slot_and_size": self.each,
            "rope_of_all_sizes": self.rope,
            "total_of_a_rank": self.total,
        }


def static_inputs(
    capacity: GraphCapacity, *, hidden: int, rotary: int, layers: int, tp: int = 1
) -> StaticInputs:
    """Bytes of static inputs; the rules are those of ``references/capacity.md`` of the skill.

    Args:
        capacity: Of the graphs.
        hidden: Width of the residual stream.
        rotary: Width of the angles; 0 where the layer makes them itself (MLA).
        layers: Captured ones on the rank.
        tp: Ranks that share the rows, by sequence parallelism.
    """
    rows = capacity.rows // tp
    return StaticInputs(
        hidden=rows * hidden * ITEM_BYTES,
        metadata=_BOUNDARY_TENSORS * (capacity.entries + 1) * _BOUNDARY_BYTES,
        mask=rows,
        rope=sum(capacity.rows * size * rotary * ROPE_BYTES for size in capacity.sizes),
        copies=layers * capacity.pairs,
    )
