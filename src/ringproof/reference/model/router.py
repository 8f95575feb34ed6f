"""The router: which experts a row goes to, with what weight, and at what cost to the balance.

Shapes depend on the number of rows and of the pack's entries alone, and nothing is read back from
the device, so the router can be captured in a graph. What its choice leads to (``moe``) cannot.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from ringproof.errors import InputError
from ringproof.reference.model.balance import (
    balance_loss,
    count_entries,
    counting_groups,
)
from ringproof.reference.model.batch import PackedBatch
from ringproof.reference.model.config import ExpertsShape, ModelConfig, required
from ringproof.reference.model.parameters import Builder
from ringproof.reference.model.tensor_parallel import scatter_rows

SCORES = ("softmax", "sigmoid")


@dataclass(frozen=True)
class Routing:
    """Where rows go. ``r`` rows, ``K`` choices, ``E`` experts.

    Args:
        chosen: ``[r, K]`` int64, best first; experts with equal scores in ascending order.
        weights: ``[r, K]``, of the chosen experts' outputs.
        probabilities: ``[r, E]``, what the balance loss pushes; each row sums to 1.
    """

    chosen: torch.Tensor
    weights: torch.Tensor
    probabilities: torch.Tensor


def route(logits: torch.Tensor, *, chosen: int, scale: float, score: str) -> Routing:
    """Choose the best experts of each row.

    Scores are ``softmax(logits)`` (DeepSeek-V2) or ``sigmoid(logits)`` (DeepSeek-V3, Moonlight;
    their bias for choosing without an auxiliary loss is left out). Weights are the chosen scores
    over their sum, as in DeepSeek-V3 and Moonlight (``norm_topk_prob``), times ``scale``; a single
    choice keeps its score, since over itself it would be constant. Probabilities are the scores
    over their sum over all experts. All is taken in logarithms, where a quotient of scores is a
    softmax and cannot divide by zero.

    Args:
        logits: ``[r, E]``, float32 or float64.
        chosen: ``K``.
        scale: Of the routed experts' sum.
        score: One of :data:`SCORES`.
    """
    if score == "sigmoid":
        log_scores = functional.logsigmoid(logits)
    else:
        log_scores = functional.log_softmax(logits, dim=-1)
    # A stable sort, because the order in which topk returns equal scores is not defined.
    order = log_scores.detach().sort(dim=-1, descending=True, stable=True).indices
    best = order[:, :chosen]
    found = log_scores.gather(-1, best)
    return Routing(
        chosen=best,
        weights=scale * (found.softmax(-1) if chosen > 1 else found.exp()),
        probabilities=log_scores.softmax(-1),
    )


class Router(nn.Module):
    """A linear layer, in float32 or higher, and a choice.

    Under sequence parallelism each TP rank routes its own rows, so that its gradient of the
    weight is a part of the whole; without, all of them route all rows alike.

    Args:
        config: The model; ``config.experts`` is its shape.
        builder: Makes the parameter, named ``weight``.

    Raises:
        InputError: An unknown score, or more choices than experts.
    """

    def __init__(self, config: ModelConfig, builder: Builder) -> None:
        super().__init__()
        self.shape = _checked(config)
        self.tensor_parallel = builder.tensor_parallel
        self.weight = builder.parameter(
            "weight",
            (self.shape.experts, config.hidden),
            std=config.hidden**-0.5,
            partial=self.tensor_parallel.rows_are_cut,
        )

    def forward(self, x: torch.Tensor, batch: PackedBatch) -> tuple[Routing, torch.Tensor]:
        """Route rows.

        Args:
            x: ``[r, h]`` (sequence parallelism) or ``[R, h]``.
            batch: What the rows are, and the CP group over which choices are counted.

        Returns:
            The routing of these rows, and their additive share of the auxiliary loss of the
            global batch, 0-dim. TP ranks that route the same rows (no sequence parallelism) have
            the same share, which counts once.
        """
        dtype = torch.promote_types(x.dtype, torch.float32)
        logits = functional.linear(x.to(dtype), self.weight.to(dtype))
        shape, tp = self.shape, self.tensor_parallel
        routing = route(logits, chosen=shape.chosen, scale=shape.scale, score=shape.score)
        loss = balance_loss(
            routing.probabilities,
            routing.chosen,
            scatter_rows(batch.sequences, tp),
            scatter_rows(batch.real, tp),
            entries=count_entries(batch),
            groups=counting_groups(batch, tp),
        )
        if batch.metadata is None:
            return routing, loss * (shape.auxiliary / batch.totals.tokens)
        weight = shape.auxiliary / batch.metadata.tokens.to(torch.float64)
        return routing, loss * weight.to(loss.dtype)


def _checked(config: ModelConfig) -> ExpertsShape:
    shape = required(config.experts, "experts")
    if shape.score not in SCORES:
        raise InputError("score", shape.score, "unknown", f"use one of {', '.join(SCORES)}")
    if not 1 <= shape.chosen <= shape.experts:
        raise InputError(
            "chosen", shape.chosen, f"there are {shape.experts} experts", "choose 1 to all of them"
        )
    return shape
