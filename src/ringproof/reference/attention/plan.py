"""The plan of an attention call: made once for a microbatch, used by every layer of it.

A plan says which rows meet (:mod:`~ringproof.reference.attention.steps`), where key/value blocks
come from and how heads are exchanged. It depends on the pack, the group and the communication
type, and not on the values of q, k and v. To make it takes milliseconds for a pack of hundreds of
sequences, so a microbatch carries it (``PackedBatch.attention_plan``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
import torch.distributed as dist

from ringproof.errors import InputError, check_name
from ringproof.reference.attention.blocks import BlockExchange, Gather, LocalBlock, Ring
from ringproof.reference.attention.calls import prepared_calls
from ringproof.reference.attention.communicator import Communicator, Traffic
from ringproof.reference.attention.exchange import HeadExchange
from ringproof.reference.attention.masks import RowMask, RowTable
from ringproof.reference.attention.names import COMM_TYPES
from ringproof.reference.attention.steps import Step, Tile, step_table
from ringproof.reference.packing.partition import Span
from ringproof.reference.packing.sequences import PackedSequences
from ringproof.reference.packing.shards import Sharding

Groups: TypeAlias = "dist.ProcessGroup | Sequence[dist.ProcessGroup]"


@dataclass(frozen=True, kw_only=True, eq=False)
class GroupRows:
    """The rows of a CP group: a pack, what tensors say, or else one sequence without padding.

    Args:
        rows: Rows of each rank.
        packed: The sequences in the rows of the whole group (THD).
        table: The same as tensors, of all ranks' rows (THD).
        partition: Partition of the rows over the flat CP group, ``zigzag`` or ``contiguous``.
    """

    rows: int
    packed: PackedSequences | None = None
    table: RowTable | None = None
    partition: str = "zigzag"
    causal: bool = True


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionPlan:
    """What one rank does in attention, forward and backward.

    Args:
        steps: The step table over the ranks among which blocks move.
        blocks: Delivers key/value blocks in the table's order.
        heads: Exchanges sequence shards for head shards; ``None`` where nothing is exchanged.
    """

    steps: tuple[Step, ...]
    blocks: BlockExchange
    heads: HeadExchange | None
    group_rows: GroupRows

    @property
    def thd(self) -> bool:
        """Whether tensors are rows without a batch dimension."""
        return self.group_rows.packed is not None or self.group_rows.table is not None

    @property
    def exchange_size(self) -> int:
        """Ranks that share the heads of one all-to-all; 1 where there is none."""
        return self.heads.communicator.size if self.heads else 1


def plan_attention(
    group_rows: GroupRows,
    *,
    comm_type: str,
    group: Groups,
    device: torch.device | None = None,
    traffic: Traffic | None = None,
) -> AttentionPlan:
    """Plan the attention of one rank. No collective.

    Args:
        group: See :func:`~ringproof.reference.attention.attention.context_parallel_attention`.
        device: Device of q, k and v; the CPU when ``None``.

    Raises:
        InputError: An unknown name, wrong groups, or rows that cannot be cut evenly.
    """
    inner, outer = _communicators(comm_type, group, traffic)
    rank = outer.rank if outer else 0
    inner_size, outer_size = (one.size if one else 1 for one in (inner, outer))
    size = inner_size * outer_size
    if group_rows.table is not None:
        _check_table(group_rows.table, group_rows.rows, size, device)
        heads = HeadExchange(inner) if inner else None
        ordered = group_rows.partition == "contiguous"
        gathered = group_rows.table.gathered(inner_size)
        steps = masked_steps(gathered, rank, causal=group_rows.causal, ordered=ordered)
    else:
        sharding = _sharding(group_rows, size)
        shards = sharding.neighbours(inner_size, rank)
        heads = HeadExchange.ascending(inner, shards, device) if inner else None
        table = step_table(sharding.gathered(inner_size), rank, causal=group_rows.causal)
        steps = tuple(replace(step, calls=prepared_calls(step.tiles, device)) for step in table)
    return AttentionPlan(
        steps=steps,
        blocks=_block_exchange(comm_type, outer),
        heads=heads,
        group_rows=group_rows,
    )


def masked_steps(
    table: RowTable, rank: int, *, causal: bool, ordered: bool = False
) -> tuple[Step, ...]:
    """The steps of one rank, in the order of ``step_table``, each of one masked tile.

    A step table is integers of one pack, which a captured graph would bake in. Here a step is one
    tile of all local rows and all rows of the block.

    Args:
        table: The rows of the ranks among which blocks move.
        ordered: Whether the rows of each rank come before those of the next in every pack, as in
            the contiguous partition. Under a causal mask the blocks of later ranks are then
            hidden as a whole, and their steps are empty.
    """
    size, rows = table.sequences.shape
    everything = Span(0, rows)
    steps = []
    for step in range(size):
        source = (rank - step) % size
        if causal and ordered and source > rank:
            steps.append(Step(source, ()))
            continue
        queries = table.sequences[rank], table.positions[rank]
        keys = table.sequences[source], table.positions[source]
        tile = Tile(everything, everything, causal=False, mask=RowMask(queries, keys, causal))
        steps.append(Step(source, (tile,)))
    return tuple(steps)


def _check_table(table: RowTable, rows: int, size: int, device: torch.device | None) -> None:
    """Check that a table is of the rows of this group's ranks, and where the tensors are."""
    for name, tensor in (("sequences", table.sequences), ("positions", table.positions)):
        found = f"{tuple(tensor.shape)} {tensor.dtype} on {tensor.device}"
        wanted = f"{(size, rows)} {torch.int64} on {device or torch.device('cpu')}"
        if found != wanted:
            remedy = "make the table for this group and capacity"
            raise InputError(f"table.{name}", f"{found} is not {wanted}; {remedy}")


def _sharding(group_rows: GroupRows, size: int) -> Sharding:
    if group_rows.packed is None:
        return Sharding.of_sequence(group_rows.rows * size, size, group_rows.partition)
    if group_rows.rows * size != group_rows.packed.rows:
        found = f"q has {group_rows.rows} rows on each of {size} ranks"
        problem = f"the pack has {group_rows.packed.rows} rows, and {found}"
        raise InputError("packed", f"{problem}; pass the pack that q was divided by")
    return Sharding.of_pack(group_rows.packed, size, group_rows.partition)


def _communicators(
    comm_type: str, group: Groups, traffic: Traffic | None
) -> tuple[Communicator | None, Communicator | None]:
    """The groups of the head exchange and of the blocks, each ``None`` where nothing moves."""
    check_name("comm_type", comm_type, COMM_TYPES)
    if comm_type == "a2a+p2p":
        if not isinstance(group, Sequence) or len(group) != 2:
            problem = f"a2a+p2p takes two levels, not {type(group).__name__}"
            raise InputError("group", f"{problem}; pass [all-to-all group, ring group]")
        levels = Communicator(group[0], traffic), Communicator(group[1], traffic)
        _check_levels(*levels)
        return levels
    if isinstance(group, Sequence):
        problem = f"{comm_type} takes one group, not {type(group).__name__}"
        raise InputError("group", f"{problem}; pass the flat CP group")
    communicator = Communicator(group, traffic)
    return (communicator, None) if comm_type == "a2a" else (None, communicator)


def _block_exchange(comm_type: str, outer: Communicator | None) -> BlockExchange:
    if outer is None or outer.size == 1:
        return LocalBlock()
    return Gather(outer) if comm_type == "all_gather" else Ring(outer)


def _check_levels(inner: Communicator, outer: Communicator) -> None:
    """Two levels of one hierarchy have this rank in common and no other."""
    common = set(inner.global_ranks) & set(outer.global_ranks)
    if len(common) != 1:
        levels = f"{inner.global_ranks} and {outer.global_ranks}"
        problem = f"the levels {levels} share {len(common)} ranks instead of one"
        raise InputError("group", f"{problem}; pass the two levels of one CP group")
