"""Mamba-2 (arXiv 2405.21060) over a packed microbatch, under TP and CP together.

TP cuts the heads and their groups for good. CP cuts the rows, but a state runs over all rows of a
sequence in order; so around convolution and state space the CP ranks exchange rows for heads:

    rows, all heads:  in-projection to z, x, B, C, dt
    exchange:         x, B, C, dt of all rows in ascending order, of this CP rank's heads
    all rows, heads:  convolution, state space, skip; each sequence starts from nothing
    exchange back:    y, rows in the order in which attention wants them (zigzag)
    rows, all heads:  gate by z, RMS norm over each group of heads, out-projection

The exchange is one all-to-all over the flat CP group, whatever the communication type of attention.
Megatron-LM does the same (``MambaMixer``, ``MambaContextParallel``), but sends z along, because its
kernel gates. Gate and norm see whole groups here and there, so no cut over TP or CP changes them.

Parameters of the heads and channels are used by the CP rank that holds those. Their gradient on a
rank is a part like any other: the sum over the domain is the gradient.

Letters: ``R`` local rows, ``T`` rows of the pack, ``H`` heads of this CP rank, ``P`` head width.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import silu, softplus

from ringproof.reference.model.batch import PackedBatch
from ringproof.reference.model.config import ModelConfig, required
from ringproof.reference.model.convolution import causal_convolution
from ringproof.reference.model.linear import ColumnLinear, RowLinear
from ringproof.reference.model.mamba_shares import HeadShares
from ringproof.reference.model.norm import rms_norm
from ringproof.reference.model.parameters import Builder
from ringproof.reference.model.segments import blank
from ringproof.reference.model.state_space import state_space_scan
from ringproof.reference.model.tensor_parallel import enter, leave


class Mamba(nn.Module):
    """The Mamba-2 mixer.

    Args:
        config: Has a ``mamba`` shape.
        builder: Scoped to this module.

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
        """``[r or R, h]`` to the same. Rows without a real token give zero, whatever they hold.

        Raises:
            InputError: The microbatch's CP ranks cannot share the heads evenly.
        """
        tp, group = self.tensor_parallel, batch.group
        shares = HeadShares.of(self.shape, tp.size, group.size)
        exchange = batch.sequence_exchange
        projected = self.in_proj(blank(enter(x, tp), batch.real))
        inner, state, _ = shares.channels
        z, channels, dt = projected.split([inner, inner + 2 * state, shares.heads], dim=1)
        dealt = torch.cat([shares.deal(channels), dt.unflatten(1, (group.size, -1))], dim=2)
        (held,) = exchange.to_heads(dealt[None])
        (y,) = exchange.to_sequence(self._mix(held[0, :, 0], shares, batch)[None])
        return leave(self.out_proj(self._norm(y[0].flatten(1) * silu(z))), tp)

    def _mix(self, held: torch.Tensor, shares: HeadShares, batch: PackedBatch) -> torch.Tensor:
        """Rows in order, of this CP rank's heads: x, B, C and dt ``[T, …]`` to y ``[T, H, P]``."""
        segments, rank = batch.segments, batch.group.rank
        weight = shares.deal(self.conv_weight.t())[:, rank].t()
        bias = shares.deal(self.conv_bias[None])[0, rank]
        channels, dt = held.split([len(bias), shares.heads // shares.ranks], dim=1)
        x, b, c = shares.held(silu(causal_convolution(channels, weight, bias, segments)))
        wide = torch.promote_types(x.dtype, torch.float32)
        of_heads = (self.dt_bias, self.a_log, self.skip)
        dt_bias, a_log, skip = (p.unflatten(0, (shares.ranks, -1))[rank] for p in of_heads)
        step, rate = softplus(dt.to(wide) + dt_bias.to(wide)), -a_log.to(wide).exp()
        return state_space_scan(x, step, rate, b, c, segments) + skip[:, None] * x

    def _norm(self, gated: torch.Tensor) -> torch.Tensor:
        """RMS norm over each group's channels: a group is whole on its TP rank."""
        groups = (self.whole.groups, -1)
        weight = self.norm_weight.unflatten(0, groups)
        return rms_norm(gated.unflatten(1, groups), weight, self.epsilon).flatten(1)
