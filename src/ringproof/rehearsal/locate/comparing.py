"""Holds each tensor of a run against the same rows of its reference.

A tensor is wrong where it differs by more than `FACTOR` times what the reference itself differs by
when its weights are disturbed by one unit in the last place.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ringproof.rehearsal.locate.reading import (
    Array,
    CallKey,
    RankRecord,
    RunTrace,
    coordinates,
)
from ringproof.rehearsal.locate.rows import Rows, rows_of
from ringproof.rehearsal.protocol.trace import TracedTensor, Values

FACTOR = 60.0  # runs that agree reached 12
FLOOR = 16.0  # units in the last place that any tensor may differ by
EXPERTS = ".experts."
"""Part of the names of experts, which get rows in an order of their own."""
PREDICTIONS = "mtp"
"""Last part of the name of multi-token prediction, which returns the sequence of each depth."""


@dataclass(frozen=True)
class Port:
    """One tensor at the border of a call.

    Attributes:
        side: ``inputs`` or ``outputs``.
        backward: Whether its gradient is meant.
    """

    call: CallKey
    side: str
    name: str
    backward: bool = False


@dataclass(frozen=True)
class Compared:
    """A tensor of one rank beside its reference.

    Attributes:
        error: Largest difference, relative to the largest value of the reference's tensor.
        tolerance: What rounding explains.
        mine: The rank's values.
        expected: The reference's values of the same rows.
        row_errors: Relative difference of each row, by row and sample [n, b], or [n].
        index: Rows of the whole sequence [n].
    """

    error: float
    tolerance: float
    mine: Array
    expected: Array
    row_errors: Array
    index: Array

    @property
    def wrong(self) -> bool:
        """Whether rounding does not explain the difference."""
        return not self.error <= self.tolerance

    @property
    def excess(self) -> float:
        """How many times the tolerance the difference is."""
        return self.error / self.tolerance if self.tolerance else np.inf


@dataclass(frozen=True)
class Runs:
    """The traces that are compared.

    Attributes:
        run: The run under examination.
        reference: The same training without context parallelism.
        disturbed: The reference with weights disturbed by one unit in the last place.
        layout: How rows are dealt to CP ranks (see `LAYOUTS`).
    """

    run: RunTrace
    reference: RunTrace
    disturbed: RunTrace
    layout: str


class TraceComparison:
    """Compares tensors of a run; what was computed once is kept.

    Args:
        scales: By what the gradients of a microbatch are divided, by step, DP rank and microbatch
            (the loss of a rank is scaled differently with and without CP).
    """

    def __init__(self, runs: Runs) -> None:
        self.runs = runs
        self.scales: dict[tuple[int, int, int], float] = {}
        self._tolerance = functools.cache(self._measured)
        self._rows = functools.cache(self._rows_of)

    def compare(self, rank: RankRecord, port: Port) -> Compared | str:
        """Compare one tensor; a string says why that is not possible."""
        if EXPERTS in f"{port.call[3]}.":
            return "has its rows in the order of experts"
        if port.side == "outputs" and port.call[3].rpartition(".")[2] == PREDICTIONS:
            # With sequence parallelism its shape can be that of one whole sequence.
            return "holds several sequences, one after the other"
        call = rank.calls[port.call]
        held = rank.trace.tensors[getattr(call, port.side)[port.name]]
        stored = held.gradient if port.backward else held.value
        if stored is None:
            return "has no gradient"
        tensor, _, data, stage = coordinates(rank.trace.place)
        rows = self._rows(coordinates(rank.trace.place), port.call[0], port.call[2])
        if rows is None:
            return "belongs to a microbatch of unknown tokens"
        mine = rank.values(stored)
        kind = row_kind(stored, rows, rank)
        if np.dtype(stored.dtype).kind != "f" and kind is not None and kind.axis != 1:
            return "holds no real numbers"
        if kind is None:
            return f"has a shape of unknown rows, {list(stored.shape)}"
        whole = self._whole(self.runs.reference, port, (tensor, data, stage), kind)
        if whole is None:
            return "has no counterpart in the reference"
        if whole.shape[kind.axis] != rows.whole * kind.flat:
            return f"has another shape in the reference, {list(whole.shape)}"
        expected = kind.take(whole, rows.index, tensor)
        if expected.shape != mine.shape:
            return f"has another shape than in the reference, {list(stored.shape)}"
        if port.backward:
            expected = expected * self.scales.get((port.call[0], data, port.call[2]), 1.0)
        return self._compared(port, mine, expected, kind, rows.index, (tensor, data, stage))

    def _compared(
        self, port: Port, mine: Array, expected: Array, kind: RowKind, index: Array,
        at: tuple[int, int, int],
    ) -> Compared:  # fmt: skip
        every = replace(port, call=(*port.call[:2], 0, *port.call[3:]))
        scale, tolerance = self._tolerance(every, at[2])
        if port.backward:
            scale *= abs(self.scales.get((port.call[0], at[1], port.call[2]), 1.0))
        if mine.dtype.kind in "iu":
            scale, tolerance = 1.0, 0.0
        difference = np.abs(mine.astype(np.float64) - expected) / (scale or 1.0)
        difference = np.where(np.isnan(difference), np.inf, difference)
        by_row = kind.by_row(difference)
        own = len(index) // kind.split
        rows = index[at[0] * own : (at[0] + 1) * own] if kind.split > 1 else index
        error = float(by_row.max(initial=0.0))
        return Compared(error, tolerance, mine, expected, by_row, rows)

    def _measured(self, port: Port, stage: int) -> tuple[float, float]:
        """Return the largest value of a tensor over a step's microbatches, and its tolerance."""
        step, chunk, _, module, number = port.call
        largest, moved, epsilon = 0.0, 0.0, 0.0
        for rank in self.runs.reference.ranks:
            place = coordinates(rank.trace.place)
            if place[3] != stage:
                continue
            for batch in rank.trace.batches:
                if (batch.step, batch.chunk) != (step, chunk):
                    continue
                key = (step, chunk, batch.microbatch, module, number)
                other = self.runs.disturbed.at[place]
                both = [_stored(one, port, key) for one in (rank, other)]
                if both[0] is None or both[1] is None or both[0].shape != both[1].shape:
                    continue
                first = both[0].astype(np.float64)
                largest = max(largest, float(np.abs(first).max(initial=0.0)))
                moved = max(moved, float(np.abs(first - both[1]).max(initial=0.0)))
                epsilon = np.finfo(both[0].dtype).eps if both[0].dtype.kind == "f" else 0.0
        moved = moved / largest if largest else 0.0
        return largest, max(FACTOR * moved, FLOOR * float(epsilon))

    def _whole(
        self, record: RunTrace, port: Port, at: tuple[int, int, int], kind: RowKind
    ) -> Array | None:
        """Return a tensor of the reference with all rows, joined over TP where it is split."""
        tensor, data, stage = at
        size = record.ranks[0].trace.place.sizes[0]
        parts = []
        for one in range(size) if kind.split > 1 else (tensor,):
            rank = record.at.get((one, 0, data, stage))
            part = _stored(rank, port, port.call) if rank else None
            if part is None:
                return None
            parts.append(part)
        return np.concatenate(parts, axis=kind.axis) if len(parts) > 1 else parts[0]

    def _rows_of(self, place: tuple[int, int, int, int], step: int, number: int) -> Rows | None:
        run = self.runs.run
        return rows_of(run, run.at[place], self.runs.layout, step, number)


def _stored(rank: RankRecord, port: Port, key: CallKey) -> Array | None:
    call = rank.calls.get(key)
    index = getattr(call, port.side).get(port.name) if call else None
    if index is None:
        return None
    held: TracedTensor = rank.trace.tensors[index]
    stored = held.gradient if port.backward else held.value
    return None if stored is None else rank.values(stored)


@dataclass(frozen=True)
class RowKind:
    """Where the rows of a tensor are, as `row_kind` finds them in its shape.

    Attributes:
        axis: Dimension of the rows.
        samples: Whether samples are the dimension beside it.
        flat: Samples that alternate in the dimension of the rows.
        split: Ranks of a TP group among which the rows are dealt.
    """

    axis: int
    samples: bool
    flat: int = 1
    split: int = 1

    def places(self, index: Array, tensor: int) -> Array:
        """Return where the rows ``index`` of a CP rank are in a tensor that has all rows."""
        if self.flat > 1:
            index = (index[:, None] * self.flat + np.arange(self.flat)).reshape(-1)
        if self.split > 1:
            part = len(index) // self.split
            index = index[tensor * part : (tensor + 1) * part]
        return index

    def take(self, whole: Array, index: Array, tensor: int) -> Array:
        """Return the rows of a rank from a tensor that has all rows."""
        return np.take(whole, self.places(index, tensor), axis=self.axis)

    def by_row(self, values: Array) -> Array:
        """Return the largest value of each row [n, b], or [n]."""
        moved = np.moveaxis(values, self.axis, 0)
        if self.flat > 1:
            moved = moved.reshape(-1, self.flat, *moved.shape[1:])
        kept = 2 if self.samples or self.flat > 1 else 1
        return moved.reshape(*moved.shape[:kept], -1).max(axis=-1, initial=0.0)


def row_kind(stored: Values, rows: Rows, rank: RankRecord) -> RowKind | None:
    """Find the rows in a shape: [s, b, ...], [b, s], [s b, ...] or [s, ...]; s may be split.

    Returns:
        ``None`` where the rows are not known, as in [k s, b, ...], several sequences one after the
        other, which with k = b has as many rows as [s b, ...].
    """
    shape, count, batch = stored.shape, len(rows.index), rows.batch
    size = rank.trace.place.sizes[0]
    first = shape[0] if shape else 0
    second = shape[1] if len(shape) > 1 else 0
    if first == count and count != batch:
        return RowKind(0, second == batch)
    if (first, second) == (batch, count):
        return RowKind(1, samples=True)
    if batch > 1 and first == count * batch and second != batch:
        return RowKind(0, samples=False, flat=batch)
    if rank.trace.place.sequence_parallel and first * size == count and second == batch:
        return RowKind(0, samples=True, split=size)
    return None


def ports(rank: RankRecord, key: CallKey, side: str, *, backward: bool) -> Iterator[Port]:
    """Yield the tensors of one side of a call that are compared."""
    call = rank.calls[key]
    for name, index in getattr(call, side).items():
        stored = rank.trace.tensors[index].value
        # Numbers of tokens and positions [b, s], which code of upstream can have changed.
        whole = len(stored.shape) == 2 and side == "inputs" and not backward
        if np.dtype(stored.dtype).kind == "f" or whole:
            yield Port(key, side, name, backward)
