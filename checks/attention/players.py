"""All ranks of a CP group, played in one process: every block is at hand, nothing is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch

from ringproof.reference.attention.blocks import BlockShape
from ringproof.reference.attention.calls import prepared_calls
from ringproof.reference.attention.dense import DenseResult
from ringproof.reference.attention.kernels import choose_kernel
from ringproof.reference.attention.loop import BlockwiseAttention, LoopPlan
from ringproof.reference.attention.steps import Step, step_table
from ringproof.reference.packing.partition import Span
from ringproof.reference.packing.shards import Sharding


@dataclass(frozen=True)
class Board:
    """The blocks of all ranks, and the gradients that come back to them.

    Args:
        rank: Who plays.
        blocks_of: Flat key/value block of each rank.
        gradients: What each block has been given so far; shared by all players.
    """

    rank: int
    blocks_of: Sequence[torch.Tensor]
    gradients: list[torch.Tensor]
    _sources: list[int] = field(default_factory=list)

    def blocks(self, own: torch.Tensor) -> Iterator[torch.Tensor]:
        for step in range(len(self.blocks_of)):
            yield self.blocks_of[(self.rank - step) % len(self.blocks_of)]

    def gradient_sink(self) -> Board:
        return Board(self.rank, self.blocks_of, self.gradients)

    def add(self, gradient: torch.Tensor) -> None:
        source = (self.rank - len(self._sources)) % len(self.blocks_of)
        self._sources.append(source)
        self.gradients[source] += gradient

    def total(self) -> torch.Tensor:
        return torch.zeros_like(self.gradients[self.rank])  # read from the board at the end


def indices(shard: Sequence[Span]) -> torch.Tensor:
    return torch.cat([torch.arange(span.start, span.stop) for span in shard])


def play(
    inputs: Sequence[torch.Tensor], sharding: Sharding, *, causal: bool, kernel: str = "auto"
) -> DenseResult:
    """Every rank's loop over a step table, forward and backward, put together again.

    Args:
        inputs: q, k, v and the output's gradient, ``[1, T, heads, width]``, all rows.
        sharding: Who holds which rows, and the sequences.
        causal: Which mask.
        kernel: Which kernel.
    """

    def steps(rank: int) -> tuple[Step, ...]:
        table = step_table(sharding, rank, causal=causal)
        device = inputs[0].device
        return tuple(replace(step, calls=prepared_calls(step.tiles, device)) for step in table)

    return play_steps(inputs, [indices(shard) for shard in sharding.shards], steps, kernel=kernel)


def play_steps(
    inputs: Sequence[torch.Tensor],
    rows: Sequence[torch.Tensor],
    steps: Callable[[int], tuple[Step, ...]],
    *,
    kernel: str,
) -> DenseResult:
    """The loops of ranks that hold these rows and go these steps."""
    q, k, v, grad_out = inputs
    blocks = [BlockShape.pack(k[:, held], v[:, held]) for held in rows]
    gradients = [torch.zeros_like(block) for block in blocks]
    whole = DenseResult(
        torch.full_like(grad_out, torch.nan),
        torch.full(q.shape[:3], torch.nan, dtype=q.dtype),
        *(torch.full_like(tensor, torch.nan) for tensor in (q, k, v)),
    )
    for rank, held in enumerate(rows):
        plan = LoopPlan(
            steps(rank),
            Board(rank, blocks, gradients),
            choose_kernel(kernel, q, v),
            scale=q.shape[-1] ** -0.5,
        )
        local = [tensor[:, held].clone().requires_grad_() for tensor in (q, k, v)]
        out, lse = BlockwiseAttention.apply(*local, plan)
        out.backward(grad_out[:, held])
        whole.out[:, held], whole.lse[:, held] = out.detach(), lse
        whole.dq[:, held] = local[0].grad
    for held, gradient in zip(rows, gradients, strict=True):
        shape = BlockShape.of(k[:, held], v[:, held])
        whole.dk[:, held], whole.dv[:, held] = shape.split(gradient)
    return whole
