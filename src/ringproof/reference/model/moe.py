"""A mixture of experts: a few routed ones for each row, and one that serves them all.

Experts are cut over TP along their hidden width; there is no expert parallelism, so a row never
leaves its rank.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import linear

from ringproof.reference.model.batch import PackedBatch
from ringproof.reference.model.config import ModelConfig, required
from ringproof.reference.model.feed_forward import swiglu
from ringproof.reference.model.linear import ColumnLinear, RowLinear
from ringproof.reference.model.parameters import Builder
from ringproof.reference.model.router import Router
from ringproof.reference.model.tensor_parallel import enter, leave


class MixtureOfExperts(nn.Module):
    """Router, routed experts and the shared expert.

    Args:
        config: The model; ``config.experts`` is the shape.
        builder: Scoped to this module.

    Raises:
        InputError: The model has no experts, TP does not divide their width, or see ``Router``.
    """

    def __init__(self, config: ModelConfig, builder: Builder) -> None:
        super().__init__()
        self.tensor_parallel = builder.tensor_parallel
        self.router = Router(config, builder.scope("router"))
        self.experts = RoutedExperts(config, builder.scope("experts"))
        self.shared = SharedExpert(config, builder.scope("shared"))

    def forward(self, x: torch.Tensor, batch: PackedBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """The experts' outputs for each row, and the router's auxiliary loss.

        Args:
            x: ``[r, h]`` (sequence parallelism) or ``[R, h]``.
            batch: The microbatch that the rows belong to.

        Returns:
            The same shape, and the loss that :class:`Router` gives for these rows.
        """
        tp = self.tensor_parallel
        routing, auxiliary = self.router(x, batch)
        rows = enter(x, tp)
        # Weights enter, too: each TP rank has only a part of their gradient, that of its columns.
        weights, chosen = enter(routing.weights.to(x.dtype), tp), enter(routing.chosen, tp)
        partial = self.experts(rows, chosen, weights) + self.shared(rows)
        return leave(partial, tp), auxiliary


class RoutedExperts(nn.Module):
    """``E`` SwiGLU experts, each applied to the rows that chose it.

    Rows are sorted by expert, so the shape of each product depends on data and is read back to the
    host: this module cannot be captured in a CUDA graph.

    Args:
        config: The model; ``config.experts`` is the shape.
        builder: Scoped to this module.
    """

    def __init__(self, config: ModelConfig, builder: Builder) -> None:
        super().__init__()
        shape, hidden = required(config.experts, "experts"), config.hidden
        count, width = shape.experts, shape.width
        self.gate_up = builder.parameter(
            "gate_up",
            (count, 2 * width, hidden),
            split=1,
            blocks=(width, width),
            std=hidden**-0.5,
        )
        self.down = builder.parameter("down", (count, hidden, width), split=2, std=width**-0.5)

    def forward(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """The weighted sum of the chosen experts' outputs, before the sum over TP.

        Copies of rows are moved by permutations only, there and back, and summed in the order of
        the choices: no two results meet in an order that depends on timing.

        Args:
            x: ``[R, h]``, after ``enter``.
            chosen: ``[R, K]`` int64.
            weights: ``[R, K]``.

        Returns:
            ``[R, h]``, partial over TP.
        """
        copies = x.unsqueeze(1).expand(-1, chosen.shape[1], -1).flatten(0, 1)
        order = chosen.flatten().argsort(stable=True)
        loads = torch.bincount(chosen.flatten(), minlength=self.down.shape[0]).tolist()
        outputs = [
            linear(swiglu(linear(rows, gate_up)), down)
            for rows, gate_up, down in zip(
                copies[order].split(loads), self.gate_up, self.down, strict=True
            )
        ]
        returned = torch.cat(outputs)[order.argsort()].view(*chosen.shape, -1)
        return (returned * weights.unsqueeze(-1)).sum(1)


class SharedExpert(nn.Module):
    """One SwiGLU expert for every row; several shared experts are one of their summed width.

    Args:
        config: The model; ``config.experts.shared_width`` is the hidden width.
        builder: Scoped to this module.
    """

    def __init__(self, config: ModelConfig, builder: Builder) -> None:
        super().__init__()
        hidden, width = config.hidden, required(config.experts, "experts").shared_width
        self.gate_up = ColumnLinear(
            builder.scope("gate_up"), hidden, 2 * width, blocks=(width, width)
        )
        self.down = RowLinear(builder.scope("down"), width, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[R, h]`` after ``enter`` to ``[R, h]``, partial over TP."""
        return self.down(swiglu(self.gate_up(x)))
