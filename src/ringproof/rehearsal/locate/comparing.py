"""Holds each tensor of a run against the same rows of its reference.

A tensor is wrong where it differs by more than `FACTOR` times what the reference itself differs by
when its weights are disturbed by one unit in the last place.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ringproof.rehearsal.locate.experts import INSIDE, Dispatch, ExpertRows
from ringproof.rehearsal.locate.packs import PackedRows, packed_rows
from ringproof.rehearsal.locate.reading import (
    Array,
    CallKey,
    Port,
    RankRecord,
    RunTrace,
    coordinates,
)
from ringproof.rehearsal.locate.result import Measured
from ringproof.rehearsal.locate.rows import MASK, Rows, Source, own_rows, rows_of
from ringproof.rehearsal.protocol.trace import Values

FACTOR = 60.0  # runs that agree reached 12
FLOOR = 16.0  # units in the last place that any tensor may differ by
NO_ROWS = "has a shape of unknown rows, {}"
PREDICTIONS = "mtp"
"""Last part of the name of multi-token prediction, which returns the sequence of each depth."""
ANGLES = "rotary_pos"
"""Begin of the names of tensors, and of the modules that make them, with a row for each position.
With packed sequences each rank has those of all positions, which tokens share."""


@dataclass(frozen=True)
class Compared(Measured):
    """A tensor of one rank beside its reference.

    Attributes:
        error: Largest difference, relative to the largest value of the reference's tensor.
        tolerance: What rounding explains.
        mine: The rank's values.
        expected: The reference's values of the same rows.
        row_errors: Relative difference of each row, by row and sample [n, b], or [n].
        index: Positions of these rows in their sequences [n].
        sequence: Numbers of their sequences in the pack [n]; zeros without packing.
        expert: Numbers of their experts [n]; ``None`` outside of experts.
        lost: Rows that the reference sends to other experts.
    """

    error: float
    tolerance: float
    mine: Array
    expected: Array
    row_errors: Array
    index: Array
    sequence: Array
    expert: Array | None = None
    lost: int = 0

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
        layout: How rows are dealt to CP ranks (see `LAYOUTS`); empty where sequences are packed.
        dealt: The same of the reference, if it has CP, too.
    """

    run: RunTrace
    reference: RunTrace
    disturbed: RunTrace
    layout: str
    dealt: str = "contiguous"

    @property
    def per_token(self) -> bool:
        """Whether losses are sums over tokens, whose gradients nothing scales.

        Dynamic CP of verl sums over tokens where its reference without CP takes means.
        """
        return all(one.ranks[0].trace.per_token for one in (self.run, self.reference))


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
        self.packed = functools.cache(self._packed_rows)
        mine = Dispatch(runs.run, lambda rank, *at: self._rows(coordinates(rank.trace.place), *at))
        others = (runs.reference, runs.disturbed)
        self._experts = mine, *(Dispatch(one, functools.partial(own_rows, one)) for one in others)

    def twin(self, port: Port) -> int | None:
        """Return the index of the tensor that the reference has in a port."""
        key = port.of(0).call
        held = (rank.calls[key] for rank in self.runs.reference.ranks if key in rank.calls)
        return next((getattr(call, port.side).get(port.name) for call in held), None)

    def compare(self, rank: RankRecord, port: Port) -> Compared | str:
        """Compare one tensor; a string says why that is not possible."""
        if port.side == "outputs" and port.call[3].rpartition(".")[2] == PREDICTIONS:
            # With sequence parallelism its shape can be that of one whole sequence.
            return "holds several sequences, one after the other"
        stored = rank.stored(port)
        if stored is None:
            return "has no gradient"
        if INSIDE.match(port.call[3]):
            held = self._experts[0].rows_in(self._experts[1], rank, port)
            if isinstance(held, str) or stored.shape[:1] != held.index.shape:
                return held if isinstance(held, str) else NO_ROWS.format(list(stored.shape))
            return self._beside(rank, port, stored, held, RowKind(0, samples=False))
        rows = self._rows(coordinates(rank.trace.place), port.call[0], port.call[2])
        if rows is None:
            return "belongs to a microbatch of unknown tokens"
        if not self.runs.layout and ANGLES in (
            port.name[: len(ANGLES)], port.call[3].rpartition(".")[2][: len(ANGLES)],
        ):  # fmt: skip
            return self._by_position(rank, port, stored)
        flat = port.call[3].endswith(".router") and len(stored.shape) == 2
        kind = row_kind(stored, rows, rank, tokens=flat)
        if np.dtype(stored.dtype).kind != "f" and kind is not None and kind.axis != 1:
            return "holds no real numbers"
        if kind is None:
            return NO_ROWS.format(list(stored.shape))
        return self._beside(rank, port, stored, rows, kind)

    def _beside(
        self, rank: RankRecord, port: Port, stored: Values, rows: Rows, kind: RowKind
    ) -> Compared | str:
        """Compare the rows of a tensor that the reference has."""
        tensor, _, _, stage = coordinates(rank.trace.place)
        mine, part = rank.values(stored), kind.part(len(rows.index), tensor)
        source, index = rows.source[part], rows.index[part]
        pieces, order = [], []
        for number, place in enumerate(rows.sources):
            chosen = np.flatnonzero(
                (source == number) & (np.arange(len(source)) % stored.every == 0)
            )
            if not len(chosen):
                continue
            whole, every = self._whole(port, place, (tensor, stage), kind)
            if whole is None:
                return "has no counterpart in the reference"
            if kind.flat > 1 and max(stored.every, every) > 1:
                return "has samples that alternate in its rows, which were thinned"
            expected_rows = place.rows * kind.flat
            if whole.ndim != mine.ndim or whole.shape[kind.axis] != expected_rows:
                return f"has another shape in the reference, {list(whole.shape)}"
            chosen = chosen[index[chosen] % (expected_rows // kind.split) % every == 0]
            pieces.append(kind.take(whole, index[chosen]))
            order.append(chosen)
        if port.name == MASK:
            order.append(np.flatnonzero(source < 0))
            pieces.append(np.zeros_like(kind.take(mine, order[-1])))
        if not pieces:
            return "has only rows of padding"
        chosen = np.concatenate(order)
        if not len(chosen):
            return "has no rows that both traces hold"
        mine = kind.take(mine, chosen)
        try:
            expected = np.concatenate(pieces, axis=kind.axis)
        except ValueError:
            expected = pieces[0]
        if expected.shape != mine.shape:
            return f"has another shape than in the reference, {list(stored.shape)}"
        back = np.argsort(chosen)
        mine, expected = kind.take(mine, back), kind.take(expected, back)
        return self._judged(port, rank, (mine, expected), rows, chosen[back] + part.start, kind)

    def _judged(
        self, port: Port, rank: RankRecord, both: tuple[Array, Array], rows: Rows, here: Array,
        kind: RowKind,
    ) -> Compared | str:  # fmt: skip
        """Measure how much two tensors differ, which have the same rows."""
        mine, expected = both
        expert, lost, data = None, 0, np.array([rank.trace.place.data])
        if isinstance(rows, ExpertRows):
            expert, lost, data = rows.expert[here], rows.lost, rows.data[here]
        at = [(port.call[0], one, port.call[2]) for one in data.tolist() if port.backward]
        if at:
            factor = np.array([self.scales.get(one, 1.0) for one in at])
            expected = expected * factor.reshape(-1, *[1] * (mine.ndim - 1))
        scale, tolerance = self._scale(port, rank.trace.place.pipeline, mine)
        if not tolerance and mine.dtype.kind == "f":
            return (
                "has no counterpart in the disturbed reference, which says what rounding explains"
            )
        by_row = kind.by_row(_difference(mine, expected, scale))
        by_row = (by_row.T / abs(factor)).T if at else by_row
        return Compared(
            float(by_row.max(initial=0.0)), tolerance, mine, expected, by_row,
            rows.position[here], rows.sequence[here], expert, lost,
        )  # fmt: skip

    def _by_position(self, rank: RankRecord, port: Port, stored: Values) -> Compared | str:
        """Compare the positions of a tensor that some microbatch of the reference has, too."""
        stage = rank.trace.place.pipeline
        found = [
            (other.values(held), held.every)
            for other in self.runs.reference.ranks
            for batch in other.trace.batches
            if coordinates(other.trace.place)[3] == stage
            if (held := other.stored(port.of(batch.microbatch)))
        ]
        mine = rank.values(stored)
        whole, every = max(found, key=lambda one: len(one[0]), default=(mine[:0], 1))
        index = np.arange(min(len(mine), len(whole)))
        index = index[index % max(every, stored.every) == 0]
        if not len(index) or whole.shape[1:] != mine.shape[1:]:
            return "has no counterpart in the reference"
        mine, expected = mine[index], whole[index]
        scale, tolerance = self._scale(port, stage, mine)
        by_row = RowKind(0, samples=False).by_row(_difference(mine, expected, scale))
        return Compared(
            float(by_row.max()), tolerance, mine, expected, by_row, index, np.zeros_like(index)
        )

    def _scale(self, port: Port, stage: int, mine: Array) -> tuple[float, float]:
        """Return the largest value of a tensor of the reference, and what it may differ by."""
        return (1.0, 0.0) if mine.dtype.kind in "iu" else self._tolerance(port.of(0), stage)

    def _measured(self, port: Port, stage: int) -> tuple[float, float]:
        """Return the largest value of a tensor over a step's microbatches, and its tolerance."""
        largest, moved, epsilon = 0.0, 0.0, 0.0
        for first, second in self._disturbed(port, stage):
            epsilon = np.finfo(first.dtype).eps if first.dtype.kind == "f" else 0.0
            first = first.astype(np.float64)
            largest = max(largest, float(np.abs(first).max(initial=0.0)))
            moved = max(moved, float(np.abs(first - second).max(initial=0.0)))
        moved = moved / largest if largest else 0.0
        return largest, max(FACTOR * moved, FLOOR * float(epsilon))

    def _disturbed(self, port: Port, stage: int) -> Iterator[tuple[Array, Array]]:
        """Yield a tensor of the reference beside that of the disturbed one, in a whole step."""
        inside = INSIDE.match(port.call[3])
        for rank in self.runs.reference.ranks:
            place = coordinates(rank.trace.place)
            for batch in rank.trace.batches if place[3] == stage else ():
                if (batch.step, batch.chunk) != port.call[:2]:
                    continue
                one, ranks = port.of(batch.microbatch), (rank, self.runs.disturbed.at[place])
                held = [stored for x in ranks if (stored := x.stored(one))]
                if len(held) < 2:
                    continue
                both = [x.values(stored) for x, stored in zip(ranks, held, strict=True)]
                if inside:  # a weight that is moved can send a token to another expert
                    reference, disturbed = self._experts[1:]
                    rows = reference.same(disturbed, ranks, one)
                    known = (rows < [[len(x)] for x in both]) & (
                        rows % [[x.every] for x in held] == 0
                    )
                    both = [x[at] for x, at in zip(both, rows[:, known.all(axis=0)], strict=True)]
                if both[0].size and both[0].shape == both[1].shape:
                    yield both[0], both[1]

    def _whole(
        self, port: Port, place: Source, at: tuple[int, int], kind: RowKind
    ) -> tuple[Array | None, int]:
        """Return a tensor of the reference, joined over TP where it is split, and what is held."""
        (tensor, stage), reference, parts, every = at, self.runs.reference, [], 1
        tensor = tensor if place.tensor < 0 else place.tensor
        for one in range(kind.split) if kind.split > 1 else (tensor,):
            rank = reference.at.get((one, place.context, place.data, stage))
            stored = rank.stored(port.of(place.microbatch)) if rank else None
            if rank is None or stored is None:
                return None, 1
            parts.append(rank.values(stored))
            every = stored.every
        return np.concatenate(parts, axis=kind.axis) if len(parts) > 1 else parts[0], every

    def _rows_of(self, place: tuple[int, int, int, int], step: int, number: int) -> Rows | None:
        run, layout = self.runs.run, self.runs.layout
        if layout:
            own = own_rows(run, run.at[place], step, number)
            size, others = (one.ranks[0].trace.place.sizes[1] for one in (run, self.runs.reference))
            return own and rows_of(own, size, layout, others, self.runs.dealt)
        # Ranks of a TP group and of a pipeline have the same pack.
        first = run.at.get((0, *place[1:3], 0))
        return None if first is None else self.packed(step).rows(first, step, number)

    def _packed_rows(self, step: int) -> PackedRows:
        return packed_rows(self.runs.run, self.runs.reference, step)


def _difference(mine: Array, expected: Array, scale: float) -> Array:
    found = np.abs(mine.astype(np.float64) - expected) / (scale or 1.0)
    return np.where(np.isnan(found), np.inf, found)


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

    def part(self, count: int, tensor: int) -> slice:
        """Return which rows a rank of a TP group has."""
        own = count // self.split
        return slice(tensor * own, (tensor + 1) * own) if self.split > 1 else slice(0, count)

    def take(self, values: Array, index: Array) -> Array:
        """Return some rows of a tensor."""
        return np.take(values, self._flattened(index), axis=self.axis)

    def _flattened(self, index: Array) -> Array:
        if self.flat == 1:
            return index
        return (index[:, None] * self.flat + np.arange(self.flat)).reshape(-1)

    def by_row(self, values: Array) -> Array:
        """Return the largest value of each row [n, b], or [n]."""
        moved = np.moveaxis(values, self.axis, 0)
        if self.flat > 1:
            moved = moved.reshape(-1, self.flat, *moved.shape[1:])
        kept = 2 if self.samples or self.flat > 1 else 1
        return moved.reshape(*moved.shape[:kept], -1).max(axis=-1, initial=0.0)


def row_kind(
    stored: Values, rows: Rows, rank: RankRecord, *, tokens: bool = False
) -> RowKind | None:
    """Find the rows in a shape: [s, b, ...], [b, s], [s b, ...] or [s, ...]; s may be split.

    Args:
        tokens: Whether the shape is [s b, ...], also where s is split.

    Returns:
        ``None`` where the rows are not known, as in [k s, b, ...], several sequences one after the
        other, which with k = b has as many rows as [s b, ...].
    """
    shape, count, batch = stored.shape, len(rows.index), rows.batch
    size = rank.trace.place.sizes[0]
    first = shape[0] if shape else 0
    second = shape[1] if len(shape) > 1 else 0
    if tokens:
        size = size if rank.trace.place.sequence_parallel else 1
        kind = RowKind(0, samples=False, flat=batch, split=size)
        return kind if first * size == count * batch else None
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
        kind = np.dtype(stored.dtype).kind
        if kind == "f" or (whole and kind in "iu"):
            yield Port(key, side, name, backward)
