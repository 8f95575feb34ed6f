"""Size of the graphs of a batch: rows, entries, CP sizes, slots, and their costs.

A captured graph has one shape, so every pack is padded to the largest of all plans. Worked example,
budget of 2,048 tokens, two plans on 8 ranks:

    plan    microbatches   sequences in the fullest pack   CP sizes used
    0       3              13                              1, 2, 4
    1       4              11                              1, 2
    graphs  4              13 and the dummy: 14            8, 4, 2, 1 captured; 8 never replayed

Two banks are counted: this repository's, with a slot for each microbatch in flight, and that of
Megatron-LM's pull request 5618, with a slot for each that a step could have at most
(``TECudaGraphHelper._get_cuda_graph_input_data``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

from ringproof.errors import InputError
from ringproof.reference.planning.plan import Plan

ITEM_BYTES = 2
"""Hidden states are bf16."""
ROPE_BYTES = 4
"""Angles are float32."""
_BOUNDARY_TENSORS, _BOUNDARY_BYTES = 4, 4
"""``cu_seqlens`` of queries and keys, real and padded, as int32."""

_SUMMED = ("batches", "tokens", "packed_rows", "capacity_rows")
"""What adds up over batches; of the rest, the largest counts."""


@dataclass(frozen=True, kw_only=True)
class GraphCapacity:
    """Capacity of the graphs for some batches.

    Attributes:
        batches: Number of planned batches.
        rows: Rows on each rank in every microbatch: ``--graph-rows`` of ``ringproof train``.
        fullest: Sequences in the fullest pack.
        entries: Entries of a pack, its dummy included: ``--thd-max-packed-sequences`` of
            Megatron-LM, ``--graph-sequences`` of ``ringproof train``.
        groups: Groups with sequences in all batches, by CP size, largest first. A size without any
            is captured, too.
        microbatches: Microbatches of the batch with most.
        slots: Largest number of microbatches that wait for their backwards together.
        upstream_slots: Slots of pull request 5618: with a pipeline one for each sequence, else one.
            This is for data sets with one sample per sequence (``--use-varlen-dataset``); for
            others it is ``entries`` times as many.
        tokens: Real tokens of all batches.
        packed_rows: Rows that hold them, with the least padding.
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
        """CP sizes that are captured and have no sequence."""
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
        """Fraction of the rows that is padding, without capacity."""
        return 1 - self.tokens / self.packed_rows

    @property
    def padding(self) -> float:
        """Fraction of the rows that is padding, at capacity."""
        return 1 - self.tokens / self.capacity_rows

    @property
    def times_the_rows(self) -> float:
        """Ratio of the rows at capacity to those without; some of these ranks would wait."""
        return self.capacity_rows / self.packed_rows

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
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
    """Return the capacity of the graphs for one plan.

    Args:
        rank_multiple: Rows of a sequence on one rank are padded to a multiple of this.
        slots: Largest number of microbatches that wait for their backwards together.
        max_sequences: Limit of sequences of a pack; those of the fullest if ``None``.

    Raises:
        InputError: The plan has no sequences.
    """
    groups = [group for item in plan.microbatches for group in item.groups if not group.dummy]
    if not groups:
        raise InputError("plan", "it has no sequences; plan a batch")
    packed_rows = 0
    for group in groups:
        chunk = group.size * rank_multiple
        packed_rows += chunk * sum(-(-plan.lengths[one] // chunk) for one in group.sequences)
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
        upstream_slots=1 if pp == 1 else len(plan.lengths),  # each may be a microbatch of its own
        tokens=sum(plan.lengths),
        packed_rows=packed_rows,
        capacity_rows=microbatches * plan.ranks * rows,
    )


def largest(found: Sequence[GraphCapacity]) -> GraphCapacity:
    """Return the capacity for several batches of one domain.

    Raises:
        InputError: There are none, or their rows or CP sizes differ.
    """
    if len({(one.rows, one.sizes) for one in found}) != 1:
        problem = f"the {len(found)} have not all the same rows and CP sizes"
        raise InputError("capacities", f"{problem}; give those of one domain")
    merged = {
        one.name: (sum if one.name in _SUMMED else max)(getattr(other, one.name) for other in found)
        for one in fields(GraphCapacity)
        if one.name != "groups"
    }
    groups = {size: sum(one.groups[size] for one in found) for size in found[0].sizes}
    return GraphCapacity(groups=MappingProxyType(groups), **merged)


@dataclass(frozen=True, kw_only=True)
class StaticInputs:
    """Bytes that are filled before a replay in pull request 5618, on one rank.

    Activations, gradients and the memory pools of the graphs are not included.

    Attributes:
        hidden: Hidden states of a layer, slot and CP size.
        metadata: Four ``cu_seqlens`` tensors.
        mask: One byte for each row.
        rope: Angles for all CP sizes together: layers and slots share them.
        copies: Layers times microbatches in flight times CP sizes.
    """

    hidden: int
    metadata: int
    mask: int
    rope: int
    copies: int

    @property
    def each(self) -> int:
        """Bytes of a layer, slot and CP size."""
        return self.hidden + self.metadata + self.mask

    @property
    def total(self) -> int:
        """Bytes of the rank."""
        return self.each * self.copies + self.rope

    def as_json(self) -> dict[str, int]:
        """Return plain data."""
        return {
            "layer_slot_and_size": self.each,
            "rope_of_all_sizes": self.rope,
            "total_of_a_rank": self.total,
        }


def static_inputs(
    capacity: GraphCapacity, *, hidden: int, rotary: int, layers: int, tp: int = 1
) -> StaticInputs:
    """Count the bytes of static inputs by the rules of the skill's ``references/capacity.md``.

    ``rotary`` is the width of the angles, 0 if the layer makes them itself (MLA). ``layers`` are
    the captured ones on the rank, and ``tp`` ranks share the rows by sequence parallelism.
    """
    rows = capacity.rows // tp
    return StaticInputs(
        hidden=rows * hidden * ITEM_BYTES,
        metadata=_BOUNDARY_TENSORS * (capacity.entries + 1) * _BOUNDARY_BYTES,
        mask=rows,
        rope=sum(capacity.rows * size * rotary * ROPE_BYTES for size in capacity.sizes),
        copies=layers * capacity.pairs,
    )
