"""Kernel calls, each of which computes one tile of a step or several at once.

The tiles of a step (`steps`) belong to different sequences. On a CPU, short tiles of nearly the
same shape are stacked into a batch and padded to its longest (`TileBatch`). On a GPU all tiles of a
step are one call of the variable-length kernel (`VarlenTiles`). These two read their rows by index
tensors that the plan holds, so that a layer makes none. Memory is linear in the rows: the scores
are never stored.

`VarlenTiles` calls ``aten::_flash_attention_forward``, the operator under
``torch.nn.attention.varlen`` and a copy of the flash-attn package's kernel. It is checked against
a stand-in of the operator on CPUs; no GPU has run it yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from ringproof.reference.attention.kernels import (
    AttentionKernel,
    FlashKernel,
    TensorTriple,
    common_width,
    padded,
)
from ringproof.reference.attention.masks import MaskedKernel
from ringproof.reference.attention.steps import Tile
from ringproof.reference.packing.partition import Span

LONGEST_STACKED = 512
"""Tiles of more rows or columns than this fill a kernel by themselves."""
STEPS_PER_OCTAVE = 4
"""Padded lengths between a power of two and the next: at most a quarter is padding."""


@dataclass(frozen=True)
class SingleTile:
    """One tile, computed by a kernel."""

    tile: Tile
    kernel: AttentionKernel | MaskedKernel

    @property
    def rows(self) -> slice:
        """The query rows."""
        return self.tile.q.index

    @property
    def columns(self) -> slice:
        """The key/value rows."""
        return self.tile.kv.index

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See :class:`TileBatch`."""
        block = (q[:, self.rows], k[:, self.columns], v[:, self.columns])
        return self.kernel.forward(*block, causal=self.tile.causal, scale=scale)

    def backward(
        self,
        grad_out: torch.Tensor,
        inputs: TensorTriple,
        result: tuple[torch.Tensor, torch.Tensor],
        scale: float,
    ) -> TensorTriple:
        """See :class:`TileBatch`."""
        q, k, v = inputs
        grad, out, lse = (tensor[:, self.rows] for tensor in (grad_out, *result))
        block = (q[:, self.rows], k[:, self.columns], v[:, self.columns])
        return self.kernel.backward(grad, block, out, lse, causal=self.tile.causal, scale=scale)


@dataclass(frozen=True, eq=False)
class TileBatch:
    """Tiles of one shape, after padding, as a batch of ``n`` with ``S`` rows and ``T`` columns.

    Padded rows repeat the first row of their tile, so that they hold what the tile may read.
    What is computed for them is thrown away, and their gradients are zero.

    Args:
        rows: ``[m]`` int64, the query rows of all tiles, each once.
        columns: ``[n * T]`` int64, key/value rows.
        places: ``[n * S]`` int64, query row of each place of the batch.
        real: ``[m]`` int64, the places that are not padding, in the order of ``rows``.
        shape: ``(n, S, T)``.
        hidden: ``[n, 1, T]`` bool, which columns are padding; ``None`` where none is, or where the
            causal mask hides those that are.
        causal: Square lower-triangular masks; otherwise every row sees every column.
    """

    rows: torch.Tensor
    columns: torch.Tensor
    places: torch.Tensor
    real: torch.Tensor
    shape: tuple[int, int, int]
    hidden: torch.Tensor | None
    causal: bool

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Output ``[1, m, H, V]`` and LSE ``[1, m, H]`` of the rows, over this block's keys."""
        out, lse = FlashKernel().forward(
            *self._stacked(q, k, v), causal=self.causal, scale=scale, hidden=self.hidden
        )
        return self._of_rows(out), self._of_rows(lse)

    def backward(
        self,
        grad_out: torch.Tensor,
        inputs: TensorTriple,
        result: tuple[torch.Tensor, torch.Tensor],
        scale: float,
    ) -> TensorTriple:
        """Summands of dq of ``rows``, and of dk and dv of ``columns``."""
        out, lse = (self._of_places(tensor) for tensor in result)
        grad = self._of_places(grad_out.index_select(1, self.rows), self.real)
        dq, dk, dv = FlashKernel().backward(
            grad,
            self._stacked(*inputs),
            out,
            lse,
            causal=self.causal,
            scale=scale,
            hidden=self.hidden,
        )
        return self._of_rows(dq), dk.flatten(0, 1)[None], dv.flatten(0, 1)[None]

    def _stacked(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> TensorTriple:
        keys, values = (
            t[0].index_select(0, self.columns).unflatten(0, (self.shape[0], -1)) for t in (k, v)
        )
        return self._of_places(q), keys, values

    def _of_places(self, x: torch.Tensor, real: torch.Tensor | None = None) -> torch.Tensor:
        """``[1, R, …]`` to ``[n, S, …]``; given ``real``, zeros in all other places."""
        if real is None:
            stacked = x[0].index_select(0, self.places)
        else:
            stacked = x.new_zeros(len(self.places), *x.shape[2:]).index_copy_(0, real, x[0])
        return stacked.unflatten(0, (self.shape[0], -1))

    def _of_rows(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(0, 1)
        return (flat if len(self.real) == len(flat) else flat.index_select(0, self.real))[None]


@dataclass(frozen=True, eq=False)
class VarlenTiles:
    """All tiles of a step with one kind of mask, for the variable-length kernel of a GPU.

    Args:
        rows: ``[m]`` int64, the query rows of all tiles, one tile after the other.
        columns: ``[c]`` int64, key/value rows.
        cu_rows: ``[n + 1]`` int32, query rows before each tile, and in total.
        cu_columns: ``[n + 1]`` int32, the same for columns.
        most: Rows and columns of the longest tile.
    """

    rows: torch.Tensor
    columns: torch.Tensor
    cu_rows: torch.Tensor
    cu_columns: torch.Tensor
    most: tuple[int, int]
    causal: bool

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See :class:`TileBatch`."""
        out, lse = torch.ops.aten._flash_attention_forward(
            *self._rows_of(q, k, v), self.cu_rows, self.cu_columns, *self.most,
            0.0, self.causal, False, scale=scale,
        )[:2]  # fmt: skip
        return out[None, ..., : v.shape[-1]], lse.t()[None]

    def backward(
        self,
        grad_out: torch.Tensor,
        inputs: TensorTriple,
        result: tuple[torch.Tensor, torch.Tensor],
        scale: float,
    ) -> TensorTriple:
        """See :class:`TileBatch`."""
        q, k, v = inputs
        width = common_width(q, v)
        out, lse = (tensor[0].index_select(0, self.rows) for tensor in result)
        grad = grad_out[0].index_select(0, self.rows)
        unused = torch.empty(2, dtype=torch.int64, device=q.device)  # RNG state, no dropout
        dq, dk, dv = torch.ops.aten._flash_attention_backward(
            padded(grad, width), *self._rows_of(q, k, v), padded(out, width), lse.t().contiguous(),
            self.cu_rows, self.cu_columns, *self.most, 0.0, self.causal, unused, unused,
            scale=scale,
        )  # fmt: skip
        return (
            dq[None, ..., : q.shape[-1]],
            dk[None, ..., : k.shape[-1]],
            dv[None, ..., : v.shape[-1]],
        )

    def _rows_of(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> TensorTriple:
        """Rows and columns, one tile after the other, of the width that the kernel takes."""
        width = common_width(q, v)
        queries, keys, values = (
            padded(tensor[0].index_select(0, index), width)
            for tensor, index in ((q, self.rows), (k, self.columns), (v, self.columns))
        )
        return queries, keys, values


Call = SingleTile | TileBatch | VarlenTiles
"""What one kernel call computes of a step."""


def prepared_calls(tiles: Sequence[Tile], device: torch.device | None) -> tuple[Call, ...]:
    """The fewest kernel calls that flash attention needs for the tiles of a step.

    Args:
        tiles: Without masks of their own.
        device: Device of q, k and v; the CPU when ``None``.
    """
    if len(tiles) < 2:
        return tuple(SingleTile(tile, FlashKernel()) for tile in tiles)
    if device is not None and device.type != "cpu":
        kinds = sorted({tile.causal for tile in tiles})
        return tuple(_varlen([t for t in tiles if t.causal == kind], device) for kind in kinds)
    calls: list[Call] = []
    stacks: dict[tuple[int, int, bool], list[Tile]] = {}
    for tile in tiles:
        shape = _padded_length(len(tile.q)), _padded_length(len(tile.kv))
        if max(shape) > LONGEST_STACKED:
            calls.append(SingleTile(tile, FlashKernel()))
        else:
            stacks.setdefault((*shape, tile.causal), []).append(tile)
    for stack in stacks.values():
        calls.append(_stack(stack) if len(stack) > 1 else SingleTile(stack[0], FlashKernel()))
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
