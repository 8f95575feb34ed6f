"""Mamba-2 (arXiv 2405.21060) over a packed microbatch, under TP and CP together.

TP divides the heads and their groups. CP divides the rows, but a state runs over all rows of a
sequence in order; so around convolution and state space the CP ranks exchange rows for heads:

    rows, all heads:  in-projection to z, x, B, C, dt
    exchange:         x, B, C, dt of all rows in ascending order, of this CP rank's heads
    all rows, heads:  convolution, state space, skip; each sequence starts with a zero state
    exchange back:    y, rows in the order of attention (zigzag)
    rows, all heads:  gate by z, RMS norm over each group of heads, out-projection

The exchange is one all-to-all over the flat CP group, whatever the communication type of attention.
Megatron-LM does the same (``MambaMixer``, ``MambaContextParallel``), but sends z along, because its
kernel gates. Parameters of heads and channels are used by the CP rank that has those heads. Their
gradient on a rank is a part, and the sum over the domain is the gradient.

Letters: ``R`` local rows, ``T`` rows of the pack, ``H`` heads of this CP rank, ``P`` head width.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import torch
from torch import nn
from torch.nn.functional import silu, softplus

from ringproof.errors import InputError
from ringproof.reference.model.batch import PackedBatch
from ringproof.reference.model.config import MambaShape, ModelConfig, required
from ringproof.reference.model.linear import ColumnLinear, RowLinear
from ringproof.reference.model.norm import rms_norm
from ringproof.reference.model.parameters import Builder
from ringproof.reference.model.state_space import blank, causal_convolution, state_space_scan
from ringproof.reference.model.tensor_parallel import copy_to_region, reduce_from_region


@dataclass(frozen=True, kw_only=True)
class HeadShares:
    """Distribution of the heads of one TP rank over the ranks of a CP group.

    Each CP rank takes all rows of some of the heads (Megatron-LM's ``MambaContextParallel``).
    Worked table, 6 heads in 2 groups over 3 CP ranks:

        rank   heads   group of each   B and C held
        0      0 1     0 0             0 0
        1      2 3     0 1             0 1
        2      4 5     1 1             1 1

    ``run`` heads stay together: they are of one group and on one rank (here 1). Each run has a copy
    of its group's B and C. If a rank holds whole groups, or a group spans whole ranks, there are no
    more copies than in Megatron-LM; other distributions, which it refuses, need a few more.

    Args:
        heads: Heads of the TP rank.
        groups: Groups of the TP rank; each has its own B and C.
        head_width: Channels of a head.
        state_width: Channels of B and of C.
        ranks: Ranks of the CP group.
    """

    heads: int
    groups: int
    head_width: int
    state_width: int
    ranks: int

    @classmethod
    def of(cls, shape: MambaShape, tensor_parallel: int, context_parallel: int) -> HeadShares:
        """Return the shares of a shape under these parallel sizes.

        Raises:
            InputError: Heads are not whole groups, TP ranks do not get whole groups, or CP ranks
                do not get whole heads.
        """
        sizes = f"TP {tensor_parallel}, CP {context_parallel}"
        if shape.heads % shape.groups:
            problem = f"{shape.heads} are not {shape.groups} equal groups"
            raise InputError("mamba heads", f"{problem}; use a multiple")
        if shape.groups % tensor_parallel:
            problem = f"{shape.groups} groups cannot be divided over TP ranks evenly ({sizes})"
            raise InputError("mamba groups", f"{problem}; use a TP size that divides them")
        heads = shape.heads // tensor_parallel
        if heads % context_parallel:
            problem = f"a TP rank has {heads}, which CP ranks cannot share evenly ({sizes})"
            raise InputError("mamba heads", f"{problem}; use CP sizes that divide {heads}")
        return cls(
            heads=heads,
            groups=shape.groups // tensor_parallel,
            head_width=shape.head_width,
            state_width=shape.state_width,
            ranks=context_parallel,
        )

    @property
    def channels(self) -> tuple[int, int, int]:
        """Channels of x, B and C on the TP rank."""
        state = self.groups * self.state_width
        return self.heads * self.head_width, state, state

    @property
    def run(self) -> int:
        """Number of heads that are of one group and on one CP rank."""
        return gcd(self.heads // self.ranks, self.heads // self.groups)

    def divide(self, channels: torch.Tensor) -> torch.Tensor:
        """Split channels by CP rank: ``[n, x B C]`` to ``[n, ranks, its x, its B, its C]``.

        ``n`` counts rows of activations, or taps of the convolution, whose copies convolve the
        copies of B and C. Gradients of copies add up.
        """
        x, b, c = channels.split(self.channels, dim=1)
        shares = (x, self._copies(b), self._copies(c))
        return torch.cat([share.unflatten(1, (self.ranks, -1)) for share in shares], dim=2)

    def held(self, share: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Split a CP rank's channels into x ``[n, H, P]``, B and C ``[n, G, N]``."""
        heads = self.heads // self.ranks
        states = heads // self.run * self.state_width
        x, b, c = share.split([heads * self.head_width, states, states], dim=1)
        by_run = (-1, self.state_width)
        return x.unflatten(1, (heads, -1)), b.unflatten(1, by_run), c.unflatten(1, by_run)

    def _copies(self, states: torch.Tensor) -> torch.Tensor:
        """Repeat B or C ``[n, groups * N]`` for each run of its group: ``[n, runs * N]``."""
        copies = self.heads // self.groups // self.run
        by_group = states.unflatten(1, (self.groups, 1, self.state_width))
        return by_group.expand(-1, -1, copies, -1).flatten(1)


class Mamba(nn.Module):
    """The Mamba-2 mixer.

    Raises:
        InputError: The model has no such shape, or TP ranks cannot get whole groups of heads.
    """

    def __init__(self, config: ModelConfig, builder: Builder) -> None:
        super().__init__()
        self.shape, self.epsilon = required(config.mamba, "mamba"), config.norm_epsilon
        self.tensor_parallel = builder.tensor_parallel
        self.whole = HeadShares.of(self.shape, self.tensor_parallel.size, 1)
        heads, taps = self.shape.heads, self.shape.convolution
        inner, state = heads * self.shape.head_width, self.shape.groups * self.shape.state_width
        convolved = (inner, state, state)
        blocks = (inner, *convolved, heads)
        self.in_proj = ColumnLinear(builder.scope("in_proj"), config.hidden, sum(blocks), blocks)
        self.conv_weight = builder.parameter(
            "conv_weight", (sum(convolved), taps), split=0, std=(3 * taps) ** -0.5, blocks=convolved
        )
        self.conv_bias = builder.parameter(
            "conv_bias", (sum(convolved),), split=0, std=(3 * taps) ** -0.5, blocks=convolved
        )
        # Over the ranges from which Mamba-2 draws them, so that heads forget at different speeds.
        rate = torch.linspace(1, 16, heads, dtype=torch.float64)
        step = torch.logspace(-3, -1, heads, dtype=torch.float64)
        self.a_log = builder.parameter("a_log", (heads,), split=0, values=rate.log())
        inverse_softplus = step + torch.log(-torch.expm1(-step))
        self.dt_bias = builder.parameter("dt_bias", (heads,), split=0, values=inverse_softplus)
        self.skip = builder.parameter("skip", (heads,), split=0, fill=1.0)
        self.norm_weight = builder.parameter("norm_weight", (inner,), split=0, fill=1.0)
        self.out_proj = RowLinear(builder.scope("out_proj"), inner, config.hidden)

    def forward(self, x: torch.Tensor, batch: PackedBatch) -> torch.Tensor:
        """Map rows ``[r or R, h]`` to the same shape; rows without a real token give zero.

        Raises:
            InputError: The microbatch's CP ranks cannot share the heads evenly.
        """
        tp, group = self.tensor_parallel, batch.group
        shares = HeadShares.of(self.shape, tp.size, group.size)
        exchange = batch.sequence_exchange
        projected = self.in_proj(blank(copy_to_region(x, tp), batch.real))
        inner, state, _ = shares.channels
        z, channels, dt = projected.split([inner, inner + 2 * state, shares.heads], dim=1)
        divided = torch.cat([shares.divide(channels), dt.unflatten(1, (group.size, -1))], dim=2)
        (held,) = exchange.to_heads(divided[None])
        (y,) = exchange.to_sequence(self._mix(held[0, :, 0], shares, batch)[None])
        return reduce_from_region(self.out_proj(self._norm(y[0].flatten(1) * silu(z))), tp)

    def _mix(self, held: torch.Tensor, shares: HeadShares, batch: PackedBatch) -> torch.Tensor:
        """Map x, B, C and dt ``[T, …]`` of this CP rank's heads to y ``[T, H, P]``."""
        segments, rank = batch.segments, batch.group.rank
        weight = shares.divide(self.conv_weight.t())[:, rank].t()
        bias = shares.divide(self.conv_bias[None])[0, rank]
        channels, dt = held.split([len(bias), shares.heads // shares.ranks], dim=1)
        x, b, c = shares.held(silu(causal_convolution(channels, weight, bias, segments)))
        wide = torch.promote_types(x.dtype, torch.float32)
        of_heads = (self.dt_bias, self.a_log, self.skip)
        dt_bias, a_log, skip = (p.unflatten(0, (shares.ranks, -1))[rank] for p in of_heads)
        step, rate = softplus(dt.to(wide) + dt_bias.to(wide)), -a_log.to(wide).exp()
        return state_space_scan(x, step, rate, b, c, segments) + skip[:, None] * x

    def _norm(self, gated: torch.Tensor) -> torch.Tensor:
        """Normalize over each group's channels: a group is whole on its TP rank."""
        groups = (self.whole.groups, -1)
        weight = self.norm_weight.unflatten(0, groups)
        return rms_norm(gated.unflatten(1, groups), weight, self.epsilon).flatten(1)
