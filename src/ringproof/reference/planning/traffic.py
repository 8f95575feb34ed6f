"""Bytes that context parallel attention moves: one layer, one rank, per type of communication.

With local byte counts Q, KV (keys and values) and O of a rank's share, over ``C = a * p`` ranks:

    type         exchange over a     ring over p, per step   gathered over C    a    p
    p2p          -                   KV                      -                  1    C
    all_gather   -                   -                       (C - 1) * KV       1    1
    a2a          Q + KV + O          -                       -                  C    1
    a2a+p2p      Q + KV + O          KV                      -                  a    p

An exchange sends ``(a - 1) / a`` of what it exchanges and a ring passes on ``p - 1`` times;
backward exchanges as much again, passes on twice as much (k, v and their gradients) and gathers
twice. Source: Transformer Engine's ``context_parallel.py``; counted message by message in
``checks/skills/test_hierarchical_arithmetic.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ringproof.errors import InputError

COMM_TYPES = ("p2p", "all_gather", "a2a", "a2a+p2p")
BACKWARD_RING = 2
"""The ring carries k and v, and behind them dk and dv."""
EXCHANGED_TENSORS = 4
"""q, k, v before attention, its output after; backward their gradients."""


@dataclass(frozen=True)
class Layout:
    """How a group communicates.

    Attributes:
        comm_type: One of `COMM_TYPES`.
        size: Ranks of the group.
        inner: Ranks that exchange sequence for heads; 1 for none.
        ring: Ranks of each ring; 1 for none.
    """

    comm_type: str
    size: int
    inner: int
    ring: int

    @property
    def gathers(self) -> bool:
        """Whether keys and values are gathered."""
        return self.comm_type == "all_gather" and self.size > 1

    @property
    def row_share(self) -> float:
        """Rows of one attention call, as a multiple of a rank's share of the sequence.

        An exchange leaves a rank with ``inner`` shares of fewer heads. Gathering calls attention
        once for each of the two zigzag chunks.
        """
        return 0.5 if self.gathers else float(self.inner)

    @property
    def forward_messages(self) -> int:
        """One after the other: a ring's steps, an exchange's tensors, a gathering's hops."""
        exchanged = EXCHANGED_TENSORS if self.inner > 1 else 0
        return exchanged + self.ring - 1 + (self.size - 1 if self.gathers else 0)

    @property
    def backward_messages(self) -> int:
        """A ring sends once more: the gradients follow one step behind k and v."""
        exchanged = EXCHANGED_TENSORS if self.inner > 1 else 0
        ring = self.ring if self.ring > 1 else 0
        return exchanged + ring + (2 * (self.size - 1) if self.gathers else 0)


def layout(comm_type: str, size: int, heads: int, inner_size: int = 1) -> Layout:
    """How a group of ``size`` ranks communicates.

    Args:
        comm_type: One of `COMM_TYPES`.
        size: Ranks of the group.
        heads: Key/value heads of one rank; an exchange hands out whole heads.
        inner_size: ``a2a+p2p``: ranks that exchange. A group that is no multiple of them
            exchanges over the largest common divisor, and a smaller group over itself.

    Raises:
        InputError: Heads that the exchanging ranks do not divide.
    """
    inner = {"a2a": size, "a2a+p2p": math.gcd(size, inner_size)}.get(comm_type, 1)
    if heads % inner:
        problem = f"{inner} ranks cannot share {heads} key/value heads equally"
        remedy = "choose group sizes that divide the heads, or p2p"
        raise InputError("comm-type", comm_type, problem, remedy)
    ring = {"p2p": size, "a2a+p2p": size // inner}.get(comm_type, 1)
    return Layout(comm_type, size, inner, ring)


def forward_bytes(how: Layout, q: float, kv: float, out: float) -> float:
    """Bytes one rank sends per layer, forward; arguments are its own shares in bytes."""
    exchanged = (q + kv + out) * (how.inner - 1) / how.inner
    return exchanged + (how.ring - 1) * kv + ((how.size - 1) * kv if how.gathers else 0.0)


def backward_bytes(how: Layout, q: float, kv: float, out: float) -> float:
    """The same, backward."""
    exchanged = (q + kv + out) * (how.inner - 1) / how.inner
    moved = (how.ring - 1) * kv + ((how.size - 1) * kv if how.gathers else 0.0)
    return exchanged + BACKWARD_RING * moved
