"""Mamba-2 as its equations say it: one sequence at a time, one row after the other."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import torch
from torch.nn import functional

from ringproof.reference.model.config import MambaShape
from ringproof.reference.packing.capacity import PADDING
from ringproof.reference.packing.partition import Span

NAN = float("nan")


def random_segments(seed: int, rows: int) -> torch.Tensor:
    """Runs of one to twenty rows; some are padding, sometimes several in a row."""
    draw, numbers, entry = random.Random(seed), [], 0
    while len(numbers) < rows:
        entry += 1
        number = PADDING if draw.random() < 0.3 else entry
        numbers += [number] * draw.randint(1, draw.choice([1, 3, 20]))
    return torch.tensor(numbers[:rows])


def runs(segments: torch.Tensor) -> list[Span]:
    """Where the sequences are."""
    spans: list[Span] = []
    values = segments.tolist()
    for row, number in enumerate(values):
        if row and number == values[row - 1]:
            spans[-1] = Span(spans[-1].start, row + 1)
        else:
            spans.append(Span(row, row + 1))
    return [span for span in spans if values[span.start] != PADDING]


def recur(
    x: torch.Tensor, step: torch.Tensor, rate: torch.Tensor, b: torch.Tensor, c: torch.Tensor
) -> torch.Tensor:
    """One sequence's state, row after row: see ``state_space``'s docstring for the shapes."""
    heads = x.shape[1]
    b, c = (t.repeat_interleave(heads // t.shape[1], dim=1) for t in (b, c))
    state = x.new_zeros(heads, x.shape[2], b.shape[2])
    outputs = []
    for x_t, step_t, b_t, c_t in zip(x, step, b, c, strict=True):
        driven = torch.einsum("h,hp,hn->hpn", step_t, x_t, b_t)
        state = torch.exp(step_t * rate)[:, None, None] * state + driven
        outputs.append(torch.einsum("hpn,hn->hp", state, c_t))
    return torch.stack(outputs)


def mix(
    x: torch.Tensor,
    spans: Sequence[Span],
    weights: Mapping[str, torch.Tensor],
    shape: MambaShape,
    epsilon: float,
) -> torch.Tensor:
    """The whole mixer on ``x [T, h]`` with full weights; rows outside of the spans give zero."""
    y = torch.zeros_like(x)
    for span in spans:
        y[span.index] = _mix_one(x[span.index], weights, shape, epsilon)
    return y


def _mix_one(
    x: torch.Tensor, weights: Mapping[str, torch.Tensor], shape: MambaShape, epsilon: float
) -> torch.Tensor:
    inner, state = shape.heads * shape.head_width, shape.groups * shape.state_width
    projected = x @ weights["in_proj.weight"].T
    z, convolved, dt = projected.split([inner, inner + 2 * state, shape.heads], dim=1)
    convolved = functional.conv1d(
        functional.pad(convolved.T, (shape.convolution - 1, 0)),
        weights["conv_weight"][:, None],
        weights["conv_bias"],
        groups=inner + 2 * state,
    ).T
    inputs, b, c = functional.silu(convolved).split([inner, state, state], dim=1)
    inputs = inputs.unflatten(1, (shape.heads, -1))
    by_group = (shape.groups, -1)
    y = recur(
        inputs,
        functional.softplus(dt + weights["dt_bias"]),
        -torch.exp(weights["a_log"]),
        b.unflatten(1, by_group),
        c.unflatten(1, by_group),
    )
    y = (y + weights["skip"][:, None] * inputs).flatten(1) * functional.silu(z)
    grouped = y.unflatten(1, by_group)
    normed = grouped / torch.sqrt(grouped.square().mean(2, keepdim=True) + epsilon)
    return (normed.flatten(1) * weights["norm_weight"]) @ weights["out_proj.weight"].T
