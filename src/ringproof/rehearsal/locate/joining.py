"""The tensors of a run with context parallelism as those of a run without it.

A reference that has CP itself is put together first, so that runs of two CP sizes, or of two
checkouts, are compared by the same code as a run with its reference.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np

from ringproof.rehearsal.locate.comparing import RowKind, row_kind
from ringproof.rehearsal.locate.reading import Array, CallKey, RankRecord, RunTrace, coordinates
from ringproof.rehearsal.locate.rows import LAYOUTS, Rows, rows_of, tokens
from ringproof.rehearsal.protocol.trace import (
    LOCAL,
    TracedCall,
    TracedParameter,
    TracedTensor,
    Values,
)

POSITIONS = "position_ids"


def joined(run: RunTrace) -> RunTrace | str:
    """Return a run as one with CP 1; a string says why its rows cannot be put together."""
    if run.ranks[0].trace.place.sizes[1] == 1:
        return run
    layout = _layout(run)
    if layout is None:
        return "the positions of the ranks are in no known layout"
    ranks: list[RankRecord] = []
    for at, record in sorted(run.at.items()):
        if at[1] == 0:
            ranks.append(_Joining(run, record, layout, len(ranks)).record())
    return RunTrace(tuple(ranks))


def _layout(run: RunTrace) -> str | None:
    """Return the layout in which positions that the model is given are those of one sequence."""
    for name, layout in LAYOUTS.items():
        found = [
            bool((given == layout(record.trace.place.context, size, given.shape[1] * size)).all())
            for record in run.ranks
            for size in (record.trace.place.sizes[1],)
            for key in record.batches
            if (given := tokens(record, key, POSITIONS)) is not None
        ]
        if found and all(found):
            return name
    return None


class _Joining:
    """Puts the CP ranks beside one rank together, for one TP, DP and PP coordinate."""

    def __init__(self, run: RunTrace, first: RankRecord, layout: str, number: int) -> None:
        self._run, self._first, self._layout, self._number = run, first, layout, number
        self._tensor, _, self._data, self._stage = coordinates(first.trace.place)
        self._size = first.trace.place.sizes[1]
        self._tensors: list[TracedTensor] = []
        self._indices: dict[int, int] = {}
        self._parts: list[bytes] = []
        self._offset = 0

    def record(self) -> RankRecord:
        """Return the rank that has the rows of all of them."""
        trace = self._first.trace
        calls = tuple(
            replace(call, inputs=self._ports(call, "inputs"), outputs=self._ports(call, "outputs"))
            for call in trace.calls
        )
        place = trace.place
        sizes = (place.sizes[0], 1, *place.sizes[2:])
        joined = replace(
            trace, rank=self._number, tensors=tuple(self._tensors), calls=calls,
            place=replace(place, context=0, sizes=sizes),
            parameters=tuple(self._parameters()),
        )  # fmt: skip
        return RankRecord(joined, np.frombuffer(b"".join(self._parts), np.uint8))

    def _ports(self, call: TracedCall, side: str) -> dict[str, int]:
        """Return one side of a call, whose tensors are put together when they are seen first."""
        ports = {}
        for name, index in getattr(call, side).items():
            if index not in self._indices:
                self._indices[index] = len(self._tensors)
                self._tensors.append(self._joined(call, side, name))
            ports[name] = self._indices[index]
        return ports

    def _joined(self, call: TracedCall, side: str, name: str) -> TracedTensor:
        held = self._first.trace.tensors[getattr(call, side)[name]]
        value = self._whole(call, side, name, backward=False)
        gradient = None if held.gradient is None else self._whole(call, side, name, backward=True)
        kept = None if gradient is None else self._put(*gradient)
        own = value or (self._first.values(held.value), held.value.every)
        return replace(held, value=self._put(*own), gradient=kept)

    def _whole(
        self, call: TracedCall, side: str, name: str, *, backward: bool
    ) -> tuple[Array, int] | None:
        """Return a tensor with the rows of all CP ranks; ``None`` where these are not known.

        Returns:
            Also that each so many-th row is held; the others are zero.
        """
        key = (call.step, call.chunk, call.microbatch, call.module, call.number)
        contexts = range(self._size)
        parts = [self._part(self._tensor, at, key, side, name, backward) for at in contexts]
        first = parts[0]
        split = 1 if first is None else first[2].split
        if split > 1:  # sequence parallelism deals rows over TP, too
            ranks = product(range(split), contexts)
            parts = [self._part(*rank, key, side, name, backward) for rank in ranks]
        known = [part for part in parts if part is not None]
        if first is None or len(known) < len(parts):
            return None
        value, rows, kind, every = first
        if any(one.shape != value.shape or of != kind for one, _, of, _ in known):
            return None
        shape = list(value.shape)
        shape[kind.axis] = rows.whole * kind.flat
        whole = np.zeros(shape, value.dtype)
        by_row = np.moveaxis(whole, kind.axis, 0)
        for number, (one, own, _, _) in enumerate(known):
            places = kind.places(own.index, number // self._size)
            if (places[::every] % every).any():
                return None  # the rows that are held are not at equal distances in the whole
            by_row[places] = np.moveaxis(one, kind.axis, 0)
        part = len(whole) // kind.split if kind.split > 1 else 0
        if part % every:
            return None
        return whole[self._tensor * part : (self._tensor + 1) * part] if part else whole, every

    def _part(
        self, tensor: int, context: int, key: CallKey, side: str, name: str, backward: bool
    ) -> tuple[Array, Rows, RowKind, int] | None:
        """Return the tensor of one TP and CP coordinate, with its rows."""
        record = self._run.at[tensor, context, self._data, self._stage]
        call = record.calls.get(key)
        index = getattr(call, side).get(name) if call else None
        held = None if index is None else record.trace.tensors[index]
        stored = held and (held.gradient if backward else held.value)
        rows = stored and rows_of(self._run, record, self._layout, key[0], key[2])
        kind = stored and rows and row_kind(stored, rows, record)
        if not stored or not rows or not kind:
            return None
        return record.values(stored), rows, kind, stored.every

    def _parameters(self) -> Iterator[TracedParameter]:
        """Yield those of all CP ranks; gradients before their reduction are summed over them."""
        held: dict[object, tuple[TracedParameter, Array]] = {}
        for context in range(self._size):  # which have other experts
            record = self._run.at[self._tensor, context, self._data, self._stage]
            for key, one in record.parameters.items():
                if one.start != -1:  # the other parts are elsewhere
                    continue
                value = record.values(one.value)
                if key not in held:
                    held[key] = one, value
                elif one.kind == LOCAL:
                    held[key] = one, held[key][1] + value
        for one, value in held.values():
            yield replace(one, value=self._put(value))

    def _put(self, value: Array, every: int = 1) -> Values:
        data = np.ascontiguousarray(value[::every] if every > 1 else value)
        stored = Values(self._offset, value.shape, data.dtype.str, every)
        self._parts.append(data.tobytes())
        self._offset += data.nbytes
        return stored
