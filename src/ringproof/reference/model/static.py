"""Microbatches of fixed capacity: the static inputs of a captured graph, and how they are filled.

    eager                  capacity                        static
    pack and totals   ->   to_capacity, with_metadata  ->  static_batch (once), load (each replay)

A captured graph holds on to the tensors of one :class:`PackedBatch`, the *static* one. Before each
replay all of them are overwritten, also the rows behind the last sequence: a dummy without tokens
owns those. What is not a tensor (group, communication type, partition, capacity) is a constant of
the graph, and a microbatch of other constants is refused. The static tensors have to stay as they
are until the backward has run, which reads the masks again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

import torch
import torch.distributed as dist

from ringproof.errors import InputError
from ringproof.reference.attention.masks import RowTable
from ringproof.reference.model.batch import Metadata, PackedBatch, Totals
from ringproof.reference.packing.capacity import check_capacity, padding_pack, row_arrays
from ringproof.reference.packing.maps import Rows
from ringproof.reference.packing.sequences import Capacity, PackedSequences
from ringproof.reference.topology.dynamic import ContextParallelGroup

PER_ROW = ("positions", "sequences", "real", "tokens", "future")
"""Tensors of a microbatch that are about this rank's rows."""
_TABLE_TENSORS = ("sequences", "positions")
_METADATA_TENSORS = tuple(
    field.name for field in fields(Metadata) if field.name not in ("capacity", "table")
)


def make_metadata(
    packed: PackedSequences,
    totals: Totals,
    *,
    capacity: Capacity,
    size: int,
    partition: str,
    device: torch.device | None = None,
) -> Metadata:
    """A pack and its totals as tensors.

    Args:
        packed: Exactly as large as the capacity: see
            :func:`~ringproof.reference.packing.capacity.to_capacity`.
        totals: Of the global batch.
        capacity: Rows and entries.
        size: Ranks in the CP group.
        partition: How rows are cut over it.
        device: Where the tensors live.

    Raises:
        InputError: The pack has another size, or cannot be cut evenly.
    """
    check_capacity(capacity, size, partition)
    found = Capacity(rows=packed.rows, entries=len(packed.lengths))
    if found != capacity:
        wanted = f"the capacity is {capacity.rows} rows, {capacity.entries} entries"
        value = f"{found.rows} rows, {found.entries} entries"
        raise InputError("packed", value, wanted, "cover the tail with a dummy (to_capacity)")
    rows = row_arrays(packed, size, partition)

    def on_device(array: Rows) -> torch.Tensor:
        return torch.from_numpy(array).to(device)

    return Metadata(
        capacity=capacity,
        table=RowTable(on_device(rows.sequences), on_device(rows.positions)),
        places=on_device(rows.places),
        order=on_device(rows.order),
        cu_seqlens=torch.tensor(packed.cu_seqlens, dtype=torch.int32, device=device),
        cu_seqlens_padded=torch.tensor(packed.cu_seqlens_padded, dtype=torch.int32, device=device),
        tokens=torch.tensor(totals.tokens, dtype=torch.int64, device=device),
        predictions=torch.tensor(totals.predictions, dtype=torch.int64, device=device),
    )


def with_metadata(batch: PackedBatch, capacity: Capacity) -> PackedBatch:
    """The microbatch, from whose ``packed`` and ``totals`` no layer takes a number any more.

    Raises:
        InputError: See :func:`make_metadata`.
    """
    metadata = make_metadata(
        batch.packed,
        batch.totals,
        capacity=capacity,
        size=batch.group.size,
        partition=batch.partition,
        device=batch.positions.device,
    )
    return replace(batch, metadata=metadata)


def static_batch(like: PackedBatch) -> PackedBatch:
    """A microbatch of its own tensors, filled from another; its ``packed`` says nothing.

    Raises:
        InputError: The other has no metadata.
    """
    copies = {name: tensor.clone() for name, tensor in batch_tensors(like).items()}
    nothing = Totals(0, (0,) * len(like.totals.predictions))
    packed = padding_pack(_metadata(like).capacity)
    return with_tensors(replace(like, packed=packed, totals=nothing), copies)


def with_tensors(batch: PackedBatch, tensors: Mapping[str, torch.Tensor]) -> PackedBatch:
    """The microbatch on other tensors, all of them; names as of :func:`batch_tensors`.

    Raises:
        InputError: It has no metadata.
    """
    given = dict(tensors)
    metadata = Metadata(
        capacity=_metadata(batch).capacity,
        table=RowTable(*(given.pop(f"metadata.table.{name}") for name in _TABLE_TENSORS)),
        **{name: given.pop(f"metadata.{name}") for name in _METADATA_TENSORS},
    )
    return replace(batch, metadata=metadata, **given)


def load(static: PackedBatch, batch: PackedBatch) -> None:
    """Overwrite every tensor of a static microbatch with those of another.

    Raises:
        InputError: The other has no metadata, or differs in what a graph has baked in.
    """
    _check_constants(static, batch)
    into, given = batch_tensors(static), batch_tensors(batch)
    for name, tensor in into.items():
        found = given.get(name)
        if found is None or found.shape != tensor.shape or found.dtype != tensor.dtype:
            value = None if found is None else _likeness(found)
            problem = f"the static one is {_likeness(tensor)}"
            raise InputError(f"batch.{name}", value, problem, "capture for such microbatches")
    for name, tensor in into.items():
        tensor.copy_(given[name])


def batch_tensors(batch: PackedBatch) -> dict[str, torch.Tensor]:
    """Every tensor of a microbatch by name; its metadata's begin with ``metadata.``.

    Raises:
        InputError: It has no metadata.
    """
    metadata = _metadata(batch)
    per_row = {name: getattr(batch, name) for name in PER_ROW}
    return {
        **{name: tensor for name, tensor in per_row.items() if tensor is not None},
        **{f"metadata.table.{name}": getattr(metadata.table, name) for name in _TABLE_TENSORS},
        **{f"metadata.{name}": getattr(metadata, name) for name in _METADATA_TENSORS},
    }


def _metadata(batch: PackedBatch) -> Metadata:
    if batch.metadata is None:
        raise InputError("metadata", None, "the microbatch has none", "add them (with_metadata)")
    return batch.metadata


def _check_constants(static: PackedBatch, batch: PackedBatch) -> None:
    """What is no tensor is a constant of a graph."""
    if batch.group != static.group:
        raise _of_another_group(static.group, batch.group)
    for name, found, wanted in (
        ("comm_type", batch.comm_type, static.comm_type),
        ("partition", batch.partition, static.partition),
        ("capacity", _metadata(batch).capacity, _metadata(static).capacity),
    ):
        if found != wanted:
            raise InputError(name, found, f"the static microbatch has {wanted}", "capture for it")


def _of_another_group(static: ContextParallelGroup, given: ContextParallelGroup) -> InputError:
    """By what tells them apart: the size, the ranks, or only the communicator."""
    problem = "the static microbatch is of another CP group, of"
    if given.size != static.size:
        value, problem = f"{given.size} ranks", f"{problem} {static.size} ranks"
        return InputError("group", value, problem, "capture for each group")
    ranks, captured = (dist.get_process_group_ranks(one.flat) for one in (given, static))
    if ranks != captured:
        value, problem = f"ranks {_listed(ranks)}", f"{problem} ranks {_listed(captured)}"
        return InputError("group", value, problem, "capture for each group")
    value, problem = f"ranks {_listed(ranks)}", f"{problem} the same ranks"
    return InputError("group", value, problem, "use the group of the capture")


def _likeness(tensor: torch.Tensor) -> str:
    return f"{tuple(tensor.shape)} {tensor.dtype}"


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))
