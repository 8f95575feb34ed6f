"""Microbatches of fixed capacity: the static inputs of a captured graph, and how they are filled.

    eager                  capacity                        static
    pack and totals   ->   to_capacity, with_metadata  ->  static_batch (once), load (each replay)

A captured graph uses the tensors of one :class:`PackedBatch`, the *static* one. Before each replay
all of them are overwritten, also the rows behind the last sequence, which belong to a dummy without
tokens. Everything else (group, communication type, partition, capacity) is a constant of the graph,
and a microbatch with other constants is refused. The static tensors must not change until the
backward has run, which reads the masks again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace

import torch
import torch.distributed as dist

from ringproof.errors import InputError
from ringproof.reference.attention.masks import RowTable
from ringproof.reference.model.batch import Metadata, PackedBatch, Totals
from ringproof.reference.packing.capacity import padding_pack, row_arrays
from ringproof.reference.packing.sequences import Capacity
from ringproof.reference.topology.dynamic import ContextParallelGroup

PER_ROW = ("positions", "entries", "real", "tokens", "future")
"""Tensors of a microbatch with one element per row of this rank."""
_TABLE_TENSORS = ("sequences", "positions")
_METADATA_TENSORS = tuple(
    field.name for field in fields(Metadata) if field.name not in ("capacity", "table")
)


def with_metadata(batch: PackedBatch, capacity: Capacity) -> PackedBatch:
    """Return the microbatch with metadata, so that no layer uses ``packed`` and ``totals``.

    Raises:
        InputError: The pack has another size, or the CP group cannot share it evenly. See
            :func:`~ringproof.reference.packing.capacity.to_capacity`.
    """
    packed, device = batch.packed, batch.positions.device
    found = Capacity(rows=packed.rows, entries=len(packed.lengths))
    if found != capacity:
        wanted = f"{capacity.rows} rows and {capacity.entries} entries"
        problem = f"{found.rows} rows and {found.entries} entries are not the capacity of {wanted}"
        raise InputError("packed", f"{problem}; cover the tail with a dummy (to_capacity)")
    rows = row_arrays(packed, batch.group.size, batch.partition)
    sequences, positions = (
        torch.from_numpy(array).to(device) for array in (rows.sequences, rows.positions)
    )
    metadata = Metadata(
        capacity=capacity,
        table=RowTable(sequences, positions),
        cu_seqlens=torch.tensor(packed.cu_seqlens, dtype=torch.int32, device=device),
        cu_seqlens_padded=torch.tensor(packed.cu_seqlens_padded, dtype=torch.int32, device=device),
        tokens=torch.tensor(batch.totals.tokens, dtype=torch.int64, device=device),
        predictions=torch.tensor(batch.totals.predictions, dtype=torch.int64, device=device),
    )
    return replace(batch, metadata=metadata)


def static_batch(like: PackedBatch) -> PackedBatch:
    """Return a copy of a microbatch with its own tensors and a pack of padding alone.

    Raises:
        InputError: It has no metadata.
    """
    copies = {name: tensor.clone() for name, tensor in batch_tensors(like).items()}
    nothing = Totals(0, (0,) * len(like.totals.predictions))
    packed = padding_pack(_metadata(like).capacity)
    return with_tensors(replace(like, packed=packed, totals=nothing), copies)


def with_tensors(batch: PackedBatch, tensors: Mapping[str, torch.Tensor]) -> PackedBatch:
    """Return the microbatch with other tensors, by the names of :func:`batch_tensors`.

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
        InputError: The other has no metadata, or differs in a constant of the graph.
    """
    _check_constants(static, batch)
    into, given = batch_tensors(static), batch_tensors(batch)
    for name, tensor in into.items():
        found = given.get(name)
        if found is None or found.shape != tensor.shape or found.dtype != tensor.dtype:
            value = "nothing" if found is None else _likeness(found)
            problem = f"the static microbatch has {_likeness(tensor)}, and this one {value}"
            raise InputError(f"batch.{name}", f"{problem}; capture for such microbatches")
    for name, tensor in into.items():
        tensor.copy_(given[name])


def batch_tensors(batch: PackedBatch) -> dict[str, torch.Tensor]:
    """Return every tensor of a microbatch by name; those of its metadata begin with ``metadata.``.

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
        raise InputError("metadata", "the microbatch has none; add them (with_metadata)")
    return batch.metadata


def _check_constants(static: PackedBatch, batch: PackedBatch) -> None:
    """Check everything that is a constant of a graph."""
    if batch.group != static.group:
        raise _of_another_group(static.group, batch.group)
    for name, found, wanted in (
        ("comm_type", batch.comm_type, static.comm_type),
        ("partition", batch.partition, static.partition),
        ("capacity", _metadata(batch).capacity, _metadata(static).capacity),
    ):
        if found != wanted:
            problem = f"the static microbatch has {wanted}, and this one {found}"
            raise InputError(name, f"{problem}; capture for it")


def _of_another_group(static: ContextParallelGroup, given: ContextParallelGroup) -> InputError:
    """Return an error that names the difference: the size, the ranks, or the communicator."""
    of, remedy = "the static microbatch is of another CP group, of", "capture for each group"
    if given.size != static.size:
        sizes = f"{static.size} ranks and not {given.size}"
        return InputError("group", f"{of} {sizes}; {remedy}")
    ranks, captured = (
        ", ".join(map(str, dist.get_process_group_ranks(one.flat))) for one in (given, static)
    )
    if ranks != captured:
        return InputError("group", f"{of} ranks {captured} and not {ranks}; {remedy}")
    return InputError("group", f"{of} the same ranks ({ranks}); use the group of the capture")


def _likeness(tensor: torch.Tensor) -> str:
    return f"{tuple(tensor.shape)} {tensor.dtype}"
