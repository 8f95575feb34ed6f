"""One kernel call for all sequences of a step, instead of one for each.

On a CPU, short tiles of nearly the same shape are stacked into a batch and padded to its longest
(:class:`~ringproof.reference.attention.calls.TileBatch`). On a GPU all tiles of a step are one call
of the variable-length kernel (:class:`~ringproof.reference.attention.calls.VarlenTiles`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch

from ringproof.reference.attention.calls import TileBatch, VarlenTiles
from ringproof.reference.attention.steps import Call, Tile
from ringproof.reference.packing.partition import Span

LONGEST_STACKED = 512
"""Tiles of more rows or columns than this fill a kernel by themselves."""
STEPS_PER_OCTAVE = 4
"""Padded lengths between a power of two and the next: at most a quarter is padding."""


def prepared_calls(tiles: Sequence[Tile], device: torch.device | None) -> tuple[Call, ...]:
    """The fewest kernel calls that flash attention needs for the tiles of a step.

    Args:
        tiles: Without masks of their own.
        device: Device of q, k and v; the CPU when ``None``.
    """
    if len(tiles) < 2:
        return tuple(tiles)
    if device is not None and device.type != "cpu":
        kinds = sorted({tile.causal for tile in tiles})
        return tuple(_varlen([t for t in tiles if t.causal == kind], device) for kind in kinds)
    calls: list[Call] = []
    stacks: dict[tuple[int, int, bool], list[Tile]] = {}
    for tile in tiles:
        shape = _padded_length(len(tile.q)), _padded_length(len(tile.kv))
        if max(shape) > LONGEST_STACKED:
            calls.append(tile)
        else:
            stacks.setdefault((*shape, tile.causal), []).append(tile)
    calls += [_stack(stack) if len(stack) > 1 else stack[0] for stack in stacks.values()]
    return tuple(calls)


def _padded_length(length: int) -> int:
    """The length rounded up to a quarter of an octave.

    >>> [_padded_length(length) for length in (1, 7, 9, 17, 100)]
    [1, 7, 10, 20, 112]
    """
    unit = max(1, (1 << (length - 1).bit_length()) // (2 * STEPS_PER_OCTAVE))
    return -(-length // unit) * unit


def _stack(tiles: Sequence[Tile]) -> TileBatch:
    height = max(len(tile.q) for tile in tiles)
    width = max(len(tile.kv) for tile in tiles)
    rows, columns, places, real = (list[int]() for _ in range(4))
    for number, tile in enumerate(tiles):
        rows += range(tile.q.start, tile.q.stop)
        places += [*range(tile.q.start, tile.q.stop), *[tile.q.start] * (height - len(tile.q))]
        columns += [*range(tile.kv.start, tile.kv.stop), *[tile.kv.start] * (width - len(tile.kv))]
        real += range(number * height, number * height + len(tile.q))
    counts = torch.tensor([len(tile.kv) for tile in tiles])
    hidden = (torch.arange(width) >= counts[:, None])[:, None]
    causal = tiles[0].causal
    return TileBatch(
        rows=torch.tensor(rows),
        columns=torch.tensor(columns),
        places=torch.tensor(places),
        real=torch.tensor(real),
        shape=(len(tiles), height, width),
        hidden=None if causal or not hidden.any() else hidden,
        causal=causal,
    )


def _varlen(tiles: Sequence[Tile], device: torch.device) -> VarlenTiles:
    queries, keys = [tile.q for tile in tiles], [tile.kv for tile in tiles]
    return VarlenTiles(
        rows=_rows_in(queries).to(device),
        columns=_rows_in(keys).to(device),
        cu_rows=_cumulative(queries).to(device),
        cu_columns=_cumulative(keys).to(device),
        most=(max(map(len, queries)), max(map(len, keys))),
        causal=tiles[0].causal,
    )


def _rows_in(spans: Sequence[Span]) -> torch.Tensor:
    return torch.cat([torch.arange(span.start, span.stop) for span in spans])


def _cumulative(spans: Sequence[Span]) -> torch.Tensor:
    return torch.tensor([0, *accumulate(map(len, spans))], dtype=torch.int32)
