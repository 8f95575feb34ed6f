"""Convolution and state-space recurrence of Mamba-2, in chunks (arXiv 2405.21060, section 6).

Both run over the rows of a pack in order and start anew with each sequence. A tensor has the number
of each row's sequence, so a captured graph can be replayed with other sequences.

Each head keeps a state ``h [P, N]``, which is zero before the first row of every sequence:

    h[t] = exp(step[t] * rate) * h[t - 1] + step[t] * outer(x[t], b[t])
    y[t] = h[t] @ c[t]

Row by row that is a chain as long as the pack. In chunks of ``L`` rows it is three products and a
short chain, all exact. Within a chunk row ``j`` reaches row ``t >= j`` with the weight

    (c[t] . b[j]) * exp(s[t] - s[j]),       s: sum of step * rate from the chunk's start

which is a masked product like attention's. Between chunks only the state at a chunk's end
matters, and that is a chain over ``T / L`` states. A border cuts both: the weight is zero
between rows of different sequences, and a state enters a chunk only for the rows that go on with
the sequence at the end of the chunk before.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from ringproof.reference.packing.capacity import PADDING

CHUNK = 32
"""Near the fastest on a CPU for states of 16 x 16; the result does not depend on it."""


def blank(values: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """Return ``values [n, …]`` with zeros where ``keep [n]`` is false.

    This is a choice, not a product: NaN becomes zero, and the gradient of a zero is zero.
    """
    return torch.where(keep.reshape(-1, *(1,) * (values.dim() - 1)), values, 0)


def causal_convolution(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, segments: torch.Tensor
) -> torch.Tensor:
    """Compute each channel's weighted sum of a row and the few before it in the same sequence.

    ``y[t] = bias + sum over k of weight[:, K - 1 - k] * x[t - k]``, over those ``t - k`` that are
    rows of the same sequence as ``t``. Rows of padding give zero.

    Args:
        x: ``[T, C]``.
        weight: ``[C, K]``; the last tap belongs to the row itself, as in ``torch.nn.Conv1d``.
        bias: ``[C]``.
        segments: ``[T]``, see :func:`~ringproof.reference.model.batch.row_segments`.
    """
    real = segments != PADDING
    x = blank(x, real)
    taps = weight.unbind(1)
    total = bias + taps[-1] * x
    for back in range(1, min(len(taps), len(x))):
        earlier = blank(x[:-back], segments[:-back] == segments[back:])
        total = total + taps[-1 - back] * functional.pad(earlier, (0, 0, back, 0))
    return blank(total, real)


def state_space_scan(
    x: torch.Tensor,
    step: torch.Tensor,
    rate: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    segments: torch.Tensor,
    *,
    chunk: int = CHUNK,
) -> torch.Tensor:
    """Compute the recurrence over a pack, in float32 or wider. Work grows with ``T * chunk``.

    Shapes, loops and kernels are the same for every pack of ``T`` rows.

    Args:
        x: ``[T, H, P]``.
        step: ``[T, H]``, positive.
        rate: ``[H]``, negative: a state decays.
        b: ``[T, G, N]``; the heads are ``G`` equal runs, each of which shares one.
        c: ``[T, G, N]``, likewise.
        segments: ``[T]``: the number of a row's sequence, :data:`PADDING` for rows of none. The
            rows of a sequence are neighbours. Rows of padding give zero and may hold anything.
        chunk: Rows of a chunk.

    Returns:
        ``y [T, H, P]``, in the type of ``x``.
    """
    (rows, _, _), groups = x.shape, b.shape[1]
    wide = torch.promote_types(x.dtype, torch.float32)
    real, missing = segments != PADDING, -rows % chunk

    def chunked(values: torch.Tensor) -> torch.Tensor:
        values = blank(values.to(wide), real)
        tail = (0, 0) * (values.dim() - 1) + (0, missing)
        return functional.pad(values, tail).unflatten(0, (-1, chunk))

    ids = functional.pad(segments, (0, missing), value=PADDING).unflatten(0, (-1, chunk))
    step, b, c = chunked(step), chunked(b), chunked(c)
    heads = (groups, -1)  # [G, K]: K heads share b and c
    passed = (step * rate.to(wide)).cumsum(1).unflatten(2, heads)
    driven = (chunked(x) * step[..., None]).unflatten(2, heads)
    y = _within(driven, passed, b, c, ids) + _across(driven, passed, b, c, ids)
    return y.flatten(2, 3).flatten(0, 1)[:rows].to(x.dtype)


# Letters: n chunks of rows t or j, g groups of k heads, channels p, state s.


def _within(
    driven: torch.Tensor, passed: torch.Tensor, b: torch.Tensor, c: torch.Tensor, ids: torch.Tensor
) -> torch.Tensor:
    """Sum over the rows of the same chunk."""
    seen = (ids[:, :, None] == ids[:, None, :]).tril()
    gap = passed[:, :, None] - passed[:, None, :]
    # The mask comes before the exponential: gaps to later rows are positive and may overflow.
    decay = gap.masked_fill(~seen[..., None, None], -torch.inf).exp()
    weights = decay * torch.einsum("ntgs,njgs->ntjg", c, b)[..., None]
    return torch.einsum("ntjgk,njgkp->ntgkp", weights, driven)


def _across(
    driven: torch.Tensor, passed: torch.Tensor, b: torch.Tensor, c: torch.Tensor, ids: torch.Tensor
) -> torch.Tensor:
    """Sum over earlier chunks, by the state at their end."""
    last = ids[:, -1]
    before = functional.pad(last[:-1], (1, 0), value=PADDING)
    to_end = _where((passed[:, -1:] - passed).exp(), ids == last[:, None])
    made = torch.einsum("njgkp,njgs->ngkps", driven * to_end[..., None], b)
    through = _where(passed[:, -1].exp(), last == before)
    states = _chain(through[..., None, None], made)
    entering = functional.pad(states[:-1], (0, 0) * (states.dim() - 1) + (1, 0))
    from_start = _where(passed.exp(), ids == before[:, None])
    return torch.einsum("ngkps,ntgs->ntgkp", entering, c) * from_start[..., None]


def _where(decay: torch.Tensor, connected: torch.Tensor) -> torch.Tensor:
    """Return a decay ``[…, G, K]``, zero across a border."""
    return torch.where(connected[..., None, None], decay, 0)


def _chain(decay: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """Compute ``state[n] + decay[n] * (the result for n - 1)`` for all ``n``, in log2 rounds.

    Each round doubles the number of states that are summed in every result.
    """
    distance = 1
    while distance < len(state):
        reached = state[distance:] + decay[distance:] * state[:-distance]
        state = torch.cat([state[:distance], reached])
        decay = torch.cat([decay[:distance], decay[distance:] * decay[:-distance]])
        distance *= 2
    return state
