"""How the heads of a Mamba-2 mixer are shared out: over TP ranks for good, over CP ranks by need.

A state runs over all rows of a sequence in order, so it cannot be cut by rows as attention is.
Under CP each rank takes all rows of some of the heads instead (Megatron-LM's
``MambaContextParallel``). Worked table, 6 heads in 2 groups over 3 CP ranks:

    rank   heads   group of each   B and C held
    0      0 1     0 0             0 0
    1      2 3     0 1             0 1
    2      4 5     1 1             1 1

``run`` heads stay together: they are of one group and on one rank (here 1). Each run has a copy
of its group's B and C. Where a rank holds whole groups, or a group spans whole ranks, there are
no more copies than Megatron-LM makes; other cuts, which it refuses, need a few more.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import torch

from ringproof.errors import InputError
from ringproof.reference.model.config import MambaShape


@dataclass(frozen=True, kw_only=True)
class HeadShares:
    """The heads of one TP rank, dealt out to the ranks of a CP group.

    Args:
        heads: Of the TP rank.
        groups: Of the TP rank; each has its own B and C.
        head_width: Channels of a head.
        state_width: Channels of B and of C.
        ranks: In the CP group.
    """

    heads: int
    groups: int
    head_width: int
    state_width: int
    ranks: int

    @classmethod
    def of(cls, shape: MambaShape, tensor_parallel: int, context_parallel: int) -> HeadShares:
        """The shares of a shape under these parallel sizes.

        Whoever may use several CP sizes asks for each before the first step: a size that does
        not fit is otherwise found when the first long sequence needs it.

        Raises:
            InputError: Heads are not whole groups, TP ranks do not get whole groups, or CP ranks
                do not get whole heads.
        """
        sizes = f"TP {tensor_parallel}, CP {context_parallel}"
        if shape.heads % shape.groups:
            raise InputError(
                "mamba heads", shape.heads, f"not {shape.groups} equal groups", "use a multiple"
            )
        if shape.groups % tensor_parallel:
            raise InputError(
                "mamba groups",
                shape.groups,
                f"the {shape.heads} heads' groups cannot be cut over TP ranks evenly ({sizes})",
                f"use a TP size that divides {shape.groups}",
            )
        heads = shape.heads // tensor_parallel
        if heads % context_parallel:
            raise InputError(
                "mamba heads",
                shape.heads,
                f"a TP rank has {heads}, which CP ranks cannot share evenly ({sizes})",
                f"use CP sizes that divide {heads}",
            )
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
        """Heads that are of one group and on one CP rank."""
        return gcd(self.heads // self.ranks, self.heads // self.groups)

    def deal(self, channels: torch.Tensor) -> torch.Tensor:
        """The channels of each CP rank: ``[n, x B C]`` to ``[n, ranks, its x, its B, its C]``.

        Rows of activations and, laid out likewise, the taps and the bias of the convolution: what
        convolves a copy of B is a copy of what convolves B, and gradients of copies add up.
        """
        x, b, c = channels.split(self.channels, dim=1)
        shares = (x, self._copies(b), self._copies(c))
        return torch.cat([share.unflatten(1, (self.ranks, -1)) for share in shares], dim=2)

    def held(self, share: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """A CP rank's x ``[n, H, P]``, B and C ``[n, G, N]`` from its share of channels."""
        heads = self.heads // self.ranks
        states = heads // self.run * self.state_width
        x, b, c = share.split([heads * self.head_width, states, states], dim=1)
        by_run = (-1, self.state_width)
        return x.unflatten(1, (heads, -1)), b.unflatten(1, by_run), c.unflatten(1, by_run)

    def _copies(self, states: torch.Tensor) -> torch.Tensor:
        """B or C ``[n, groups * N]``, as often as its group has runs: ``[n, runs * N]``."""
        copies = self.heads // self.groups // self.run
        by_group = states.unflatten(1, (self.groups, 1, self.state_width))
        return by_group.expand(-1, -1, copies, -1).flatten(1)
