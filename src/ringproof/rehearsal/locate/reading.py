"""Traces as they lie on disk, read for comparison."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from ringproof.rehearsal.protocol.trace import (
    Place,
    RankTrace,
    TracedBatch,
    TracedCall,
    TracedParameter,
    Values,
)

Array = NDArray[Any]
CallKey = tuple[int, int, int, str, int]
"""Step, chunk, microbatch, module, and how often it was called before in the microbatch."""


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

    def of(self, microbatch: int) -> Port:
        """Return the same port in another microbatch."""
        return replace(self, call=(*self.call[:2], microbatch, *self.call[3:]))


@dataclass(frozen=True)
class RankRecord:
    """What one rank recorded, with its values.

    Attributes:
        data: The file of values, as bytes.
    """

    trace: RankTrace
    data: Array

    def values(self, stored: Values) -> Array:
        """Return a tensor; a row that is not held is the last one before it that is."""
        dtype = np.dtype(stored.dtype)
        count = int(np.prod(stored.held, dtype=np.int64))
        part = self.data[stored.offset : stored.offset + count * dtype.itemsize]
        value = part.view(dtype).reshape(stored.held)
        if stored.every == 1:
            return value
        return np.repeat(value, stored.every, axis=0)[: stored.shape[0]]

    def stored(self, port: Port) -> Values | None:
        """Return where a tensor or its gradient is; ``None`` where the rank has none."""
        call = self.calls.get(port.call)
        index = getattr(call, port.side).get(port.name) if call else None
        held = None if index is None else self.trace.tensors[index]
        return held and (held.gradient if port.backward else held.value)

    def is_last(self, chunk: int) -> bool:
        """Whether a chunk of this rank computes the loss."""
        place = self.trace.place
        chunks = 1 + max((one.chunk for one in self.trace.batches), default=0)
        return place.pipeline == place.sizes[3] - 1 and chunk == chunks - 1

    @cached_property
    def calls(self) -> Mapping[CallKey, TracedCall]:
        """Calls by what identifies them."""
        return {
            (one.step, one.chunk, one.microbatch, one.module, one.number): one
            for one in self.trace.calls
        }

    @cached_property
    def batches(self) -> Mapping[tuple[int, int, int], TracedBatch]:
        """Microbatches by step, chunk and number."""
        return {(one.step, one.chunk, one.microbatch): one for one in self.trace.batches}

    @cached_property
    def parameters(self) -> Mapping[tuple[int, str, int, str], TracedParameter]:
        """Parameters and their gradients by step, kind, chunk and name."""
        return {(one.step, one.kind, one.chunk, one.name): one for one in self.trace.parameters}


@dataclass(frozen=True)
class RunTrace:
    """What all ranks of a run recorded."""

    ranks: tuple[RankRecord, ...]

    @property
    def ended(self) -> bool:
        """Whether the program ran through on all ranks that wrote a trace."""
        return all(one.trace.ended for one in self.ranks)

    @cached_property
    def at(self) -> Mapping[tuple[int, int, int, int], RankRecord]:
        """Ranks by their TP, CP, DP and PP coordinates."""
        return {coordinates(one.trace.place): one for one in self.ranks}


def coordinates(place: Place) -> tuple[int, int, int, int]:
    """Return the TP, CP, DP and PP coordinates of a rank."""
    return place.tensor, place.context, place.data, place.pipeline


def read_run(folder: Path, ranks: int, *, partly: bool = False) -> RunTrace | None:
    """Read the traces of a run of our own; ``None`` where a rank wrote none.

    Args:
        partly: Whether those of some ranks are enough.
    """
    found = []
    for rank in range(ranks):
        path = folder / f"trace-{rank}.json"
        if not path.is_file():
            if partly:
                continue
            return None
        found.append(read_rank(path, path.with_suffix(".bin")))
    return RunTrace(tuple(found)) if found else None


def read_rank(path: Path, values: Path) -> RankRecord:
    """Read what a rank wrote; its values stay on disk until they are used.

    Raises:
        OSError: A file cannot be read.
        ValueError: ``path`` is not what a rank writes.
    """
    empty = not values.stat().st_size
    data = np.zeros(0, np.uint8) if empty else np.memmap(values, np.uint8, "r")
    return RankRecord(TypeAdapter(RankTrace).validate_json(path.read_bytes()), data)
