"""Which rows of the reference the rows inside a mixture of experts are.

A row inside is one of a token and an expert. Routers say which experts get which tokens, and
upstream's dispatchers put rows in the order of experts, then of the ranks that send them, and then
of tokens. A row is sent as the router is given it, which shows whether an order is the right one.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ringproof.rehearsal.locate.reading import Array, CallKey, Port, RankRecord, RunTrace
from ringproof.rehearsal.locate.rows import Rows, Source

INSIDE = re.compile(r"(.*?)\.experts\b(?:\.local_experts\.(\d+))?")
"""The layer of a module that holds experts or is inside of them, and the expert that is alone."""
MAP = "output.1"
"""The output of a router that has a row for each token and a column for each expert."""
ROW = np.dtype([("token", np.int64, 5), ("expert", np.int64), ("data", np.int64),
                ("position", np.int64), ("sequence", np.int64)])  # fmt: skip
"""A row: CP rank, DP rank, microbatch, row and sample of its token in the reference, which are -1
where it has none; its expert; the DP rank that sends it; and its place in its sequence."""


@dataclass(frozen=True)
class ExpertRows(Rows):
    """Rows inside of experts, as rows of the reference.

    Attributes:
        expert: Number of the expert of each row [n].
        data: DP coordinate of the rank that sends it [n].
        lost: Number of rows that the reference sends to other experts.
    """

    expert: Array
    data: Array
    lost: int


class Dispatch:
    """The rows inside all mixtures of experts of a run.

    Args:
        tokens: Returns the rows of a rank in a microbatch of a step, as those of the reference.
    """

    def __init__(
        self, run: RunTrace, tokens: Callable[[RankRecord, int, int], Rows | None]
    ) -> None:
        self._ranks = {one.trace.rank: one for one in run.ranks}
        self._parts = 1 + max(one.trace.place.expert_tensor for one in run.ranks)
        self._tokens = tokens
        self._rows = functools.cache(self._dispatched)
        self._sent = functools.cache(self._sending)
        self._found = functools.cache(self._index)

    def rows(self, rank: RankRecord, port: Port) -> Array | None:
        """Return the rows [n] of `ROW` of a tensor inside of experts.

        Returns:
            ``None`` where they are not known, or not in the order of upstream's dispatchers.
        """
        layer, alone, number = _layer(rank, port)
        return self._rows(rank.trace.rank, (*port.call[:3], layer, number), alone)

    def same(self, other: Dispatch, ranks: Sequence[RankRecord], port: Port) -> Array:
        """Return the rows [2, n] of a tensor in this run and in another one that are the same."""
        mine = enumerate(_names(self.rows(ranks[0], port)))
        theirs = {name: row for row, name in enumerate(_names(other.rows(ranks[1], port)))}
        both = [(row, theirs[name]) for row, name in mine if name in theirs]
        return np.array(both, dtype=np.int64).reshape(-1, 2).T

    def rows_in(self, other: Dispatch, rank: RankRecord, port: Port) -> ExpertRows | str:
        """Return the rows of a tensor as those of the reference.

        Returns:
            A string that says why that is not possible.
        """
        rows, (layer, alone, number) = self.rows(rank, port), _layer(rank, port)
        if rows is None:
            return "has its rows in an unknown order of experts"
        given = port.call[3] == f"{layer}.experts" and port.side == "inputs" and not port.backward
        if self._parts != other._parts and not given:
            return "is of a part of an expert, of which the reference has parts of another size"
        place = rank.trace.place
        part = min(place.expert_tensor, other._parts - 1)
        where = other._found((*port.call[:2], layer, number), alone, place.pipeline, part)
        sources: dict[Source, int] = {}
        source, index = np.full(len(rows), -1), np.full(len(rows), -1)
        for row, name in enumerate(_names(rows)):
            if name in where:
                at, index[row] = where[name]
                source[row] = sources.setdefault(at, len(sources))
        lost = int(((source < 0) & (rows["token"][:, 0] >= 0)).sum())
        if lost and not sources:
            return "has no row that the reference is known to give to the same expert"
        fields = {name: rows[name] for name in ("position", "sequence", "expert", "data")}
        return ExpertRows(tuple(sources), source, index, **fields, batch=1, lost=lost)

    def _dispatched(self, number: int, key: CallKey, alone: str | None) -> Array | None:
        """Return the rows of a rank's experts; the key has their layer in the place of a module."""
        record = self._ranks[number]
        group = record.trace.place.experts
        sent = [known for one in group if (known := self._sent(one, key)) is not None]
        call = record.calls.get((*key[:3], f"{key[3]}.experts", key[4]))
        wide = {(known[1].shape[1], known[2].shape[1]) for known in sent}
        if len(wide) != 1 or len(sent) < len(group) or len(group) % self._parts:
            return None
        if call is None or not call.inputs:
            return None
        given = record.trace.tensors[next(iter(call.inputs.values()))].value
        count = wide.pop()[1] * self._parts // len(group)
        first = group.index(number) // self._parts * count
        # With experts' TP, the rows of its ranks are gathered before or after those of EP.
        parts = [self._ranks[one].trace.place.expert_tensor for one in group]
        best, found = 0.5, None
        for order in (range(len(group)), np.argsort(parts, kind="stable")) if count else ():
            both = [_to(first + expert, *sent[one]) for expert in range(count) for one in order]
            rows, values = map(np.concatenate, zip(*both, strict=True))
            if values.shape != given.shape:
                return None
            held = ~np.isnan(values).any(axis=1) & (np.arange(len(values)) % given.every == 0)
            same = (record.values(given) == values)[held].all(axis=1)
            share = same.mean() if len(same) else float(not len(rows))
            best, found = (share, rows) if share >= best else (best, found)
        return found if found is None or alone is None else found[found["expert"] == int(alone)]

    def _sending(self, number: int, key: CallKey) -> tuple[Array, Array, Array] | None:
        """Return the tokens of a rank as rows [t], their values [t, h] and experts [t, e].

        Values that the trace does not hold are NaN.
        """
        record = self._ranks.get(number)
        call = record and record.calls.get((*key[:3], f"{key[3]}.router", key[4]))
        rows = record and self._tokens(record, key[0], key[2])
        if not record or not call or not rows or not call.inputs or MAP not in call.outputs:
            return None
        place, held = record.trace.place, record.trace.tensors
        given = held[next(iter(call.inputs.values()))].value
        experts = record.values(held[call.outputs[MAP]].value)
        size = place.sizes[0] if place.sequence_parallel else 1
        part = np.array_split(np.arange(len(rows.index)), size)[place.tensor % size]
        shape = len(part), rows.batch
        flat = math.prod(shape), *experts.shape[-1:]
        if not experts.size or experts.shape != flat or given.shape[:-1] not in (shape, flat[:1]):
            return None
        found, samples = np.zeros(shape, ROW), np.arange(rows.batch)
        places = [(one.context, one.data, one.microbatch) for one in rows.sources]
        found["data"] = place.data
        found["position"] = rows.position[part, None]
        found["sequence"] = rows.sequence[part, None] + samples
        found["token"][..., :3] = np.array([*places, (-1, -1, -1)])[rows.source[part], None]
        found["token"][..., 3] = rows.index[part, None]
        found["token"][..., 4] = samples
        values = record.values(given).astype(np.float64).reshape(len(experts), -1)
        values[np.arange(len(values)) // rows.batch % given.every > 0] = np.nan
        return found.reshape(-1), values, experts

    def _index(
        self, call: tuple[int, int, str, int], alone: str | None, stage: int, part: int
    ) -> Mapping[bytes, tuple[Source, int]]:
        """Return where each row is that ranks of a pipeline stage get in a step."""
        step, chunk, layer, number = call
        found: dict[bytes, tuple[Source, int]] = {}
        for rank, record in self._ranks.items():
            place = record.trace.place
            for batch in record.trace.batches:
                here = batch.step, batch.chunk, place.pipeline, place.expert_tensor
                if here != (step, chunk, stage, part):
                    continue
                key = (step, chunk, batch.microbatch, layer, number)
                names = _names(self._rows(rank, key, alone))
                at = Source(place.context, place.data, batch.microbatch, len(names), place.tensor)
                found |= {name: (at, row) for row, name in enumerate(names)}
        return found


def _layer(rank: RankRecord, port: Port) -> tuple[str, str | None, int]:
    """Return the layer that a tensor is in, its expert if that is alone, and the layer's call."""
    layer, alone = INSIDE.findall(port.call[3])[0]
    call = rank.calls[port.call]
    while call.module != f"{layer}.experts" and call.parent >= 0:
        call = rank.trace.calls[call.parent]
    return layer, alone or None, call.number


def _to(expert: int, tokens: Array, values: Array, experts: Array) -> tuple[Array, Array]:
    """Return the rows that an expert gets, and their values."""
    sent = experts[:, expert] > 0
    rows = tokens[sent]
    rows["expert"] = expert
    return rows, values[sent]


def _names(rows: Array | None) -> list[bytes]:
    """Return the token and expert of each row; nothing where rows are not known."""
    known = np.zeros(0, ROW) if rows is None else rows
    return [one.tobytes() for one in np.column_stack([known["token"], known["expert"]])]
