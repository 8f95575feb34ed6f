"""A mixture of experts: a router, a few routed experts for each row, and one shared expert.

Experts are divided over TP along their hidden width; there is no expert parallelism, so a row never
leaves its rank. The shapes of the router depend only on the number of rows and of entries of the
pack, and nothing is read by the host, so it can be captured in a graph. The dispatch to the routed
experts cannot.

For a sequence ``s`` of ``L_s`` tokens, each sent to ``K`` of ``E`` experts, DeepSeek's balance loss
(arXiv 2405.04434, 2412.19437; ``seq_aux_loss`` in Megatron-LM) is ``E * sum_e f_e(s) P_e(s)``:

    f_e(s)  share of the sequence's ``L_s * K`` choices that went to expert ``e``
    P_e(s)  mean probability of expert ``e`` over the sequence's tokens

Weighted by ``L_s``, it is ``E * sum_e f_e(s) * (sum of e's probability over the tokens)``, which is
linear in the probabilities. So each rank adds the share of its own rows, and only the counts of
``f`` are needed from all ranks that hold a part of the sequence. Those are the ranks of the
microbatch's CP group; counts over other ranks silently give another loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.functional import linear

from ringproof.reference.model.batch import PackedBatch
from ringproof.reference.model.config import ModelConfig, required
from ringproof.reference.model.feed_forward import swiglu
from ringproof.reference.model.linear import ColumnLinear, RowLinear
from ringproof.reference.model.parameters import Builder
from ringproof.reference.model.tensor_parallel import (
    TensorParallel,
    copy_to_region,
    reduce_from_region,
    scatter_rows,
)


class MixtureOfExperts(nn.Module):
    """Router, routed experts and the shared expert.

    Raises:
        InputError: The model has no experts, or TP does not divide their width.
    """

    def __init__(self, config: ModelConfig, builder: Builder) -> None:
        super().__init__()
        self.tensor_parallel = builder.tensor_parallel
        self.router = Router(config, builder.scope("router"))
        self.experts = RoutedExperts(config, builder.scope("experts"))
        self.shared = SharedExpert(config, builder.scope("shared"))

    def forward(self, x: torch.Tensor, batch: PackedBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Map rows ``[r or R, h]`` to the same shape, and return the router's auxiliary loss."""
        tp = self.tensor_parallel
        routing, auxiliary = self.router(x, batch)
        rows = copy_to_region(x, tp)
        # Each TP rank has only a part of the gradient of the weights, too: that of its columns.
        weights = copy_to_region(routing.weights.to(x.dtype), tp)
        partial = self.experts(rows, copy_to_region(routing.chosen, tp), weights)
        return reduce_from_region(partial + self.shared(rows), tp), auxiliary


class RoutedExperts(nn.Module):
    """``E`` SwiGLU experts, each applied to the rows that chose it.

    Rows are sorted by expert, so the shape of each product depends on data and is read by the host:
    this module cannot be captured in a CUDA graph.
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
        """Return the weighted sum of the chosen experts' outputs ``[R, h]``, partial over TP.

        Copies of rows are moved by permutations only, and summed in the order of the choices, so
        that no sum depends on timing.

        Args:
            x: ``[R, h]``, after ``copy_to_region``.
            chosen: ``[R, K]`` int64.
            weights: ``[R, K]``.
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
    """One SwiGLU expert for every row; several shared experts are one of their summed width."""

    def __init__(self, config: ModelConfig, builder: Builder) -> None:
        super().__init__()
        hidden, width = config.hidden, required(config.experts, "experts").shared_width
        self.gate_up = ColumnLinear(
            builder.scope("gate_up"), hidden, 2 * width, blocks=(width, width)
        )
        self.down = RowLinear(builder.scope("down"), width, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map ``[R, h]``, after ``copy_to_region``, to ``[R, h]``, partial over TP."""
        return self.down(swiglu(self.gate_up(x)))


class Routing(NamedTuple):
    """Choices of ``r`` rows: ``K`` of ``E`` experts each.

    Args:
        chosen: ``[r, K]`` int64, best first; experts with equal scores in ascending order.
        weights: ``[r, K]``, weights of the chosen experts' outputs.
        probabilities: ``[r, E]`` for the balance loss; each row sums to 1.
    """

    chosen: torch.Tensor
    weights: torch.Tensor
    probabilities: torch.Tensor


class Router(nn.Module):
    """A linear layer, in float32 or higher, and a choice.

    Under sequence parallelism each TP rank routes its own rows, so that its gradient of the weight
    is partial; without, all of them route all rows alike.
    """

    def __init__(self, config: ModelConfig, builder: Builder) -> None:
        super().__init__()
        self.shape = required(config.experts, "experts")
        self.tensor_parallel = builder.tensor_parallel
        self.weight = builder.parameter(
            "weight",
            (self.shape.experts, config.hidden),
            std=config.hidden**-0.5,
            partial=self.tensor_parallel.rows_are_cut,
        )

    def forward(self, x: torch.Tensor, batch: PackedBatch) -> tuple[Routing, torch.Tensor]:
        """Route rows ``[r or R, h]``.

        Returns:
            The routing of these rows, and their additive share of the auxiliary loss of the global
            batch, 0-dim. TP ranks that route the same rows (no sequence parallelism) have the same
            share, which counts once.
        """
        dtype = torch.promote_types(x.dtype, torch.float32)
        logits = linear(x.to(dtype), self.weight.to(dtype))
        shape, tp, metadata = self.shape, self.tensor_parallel, batch.metadata
        routing = route(logits, chosen=shape.chosen, scale=shape.scale, score=shape.score)
        loss = balance_loss(
            routing.probabilities,
            routing.chosen,
            scatter_rows(batch.entries, tp),
            scatter_rows(batch.real, tp),
            entries=metadata.capacity.entries if metadata else len(batch.packed.lengths),
            groups=counting_groups(batch, tp),
        )
        if metadata is None:
            return routing, loss * (shape.auxiliary / batch.totals.tokens)
        weight = shape.auxiliary / metadata.tokens.to(torch.float64)
        return routing, loss * weight.to(loss.dtype)


def route(logits: torch.Tensor, *, chosen: int, scale: float, score: str) -> Routing:
    """Choose the best experts of each row.

    Scores are ``softmax(logits)`` (DeepSeek-V2) or ``sigmoid(logits)`` (DeepSeek-V3, Moonlight;
    without their bias for choosing). Weights are the chosen scores over their sum, as in
    DeepSeek-V3 and Moonlight (``norm_topk_prob``), times ``scale``; a single choice keeps its
    score, since over itself it would be constant. Probabilities are the scores over their sum over
    all experts. All is computed in logarithms, where a quotient of scores is a softmax and cannot
    divide by zero.

    Args:
        logits: ``[r, E]``, float32 or float64.
        chosen: ``K``.
        scale: Factor of the routed experts' sum.
        score: ``softmax`` or ``sigmoid``.
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


def counting_groups(
    batch: PackedBatch, tensor_parallel: TensorParallel
) -> tuple[dist.ProcessGroup, ...]:
    """Return the groups over which a microbatch's choices are summed, one after the other.

    These are the CP group of the microbatch, and the TP group if sequence parallelism divides the
    rows of a CP rank. Otherwise TP ranks hold the same rows, which count once.
    """
    if tensor_parallel.rows_are_cut:
        return batch.group.flat, tensor_parallel.group
    return (batch.group.flat,)


def balance_loss(
    probabilities: torch.Tensor,
    chosen: torch.Tensor,
    sequences: torch.Tensor,
    real: torch.Tensor,
    *,
    entries: int,
    groups: Sequence[dist.ProcessGroup],
) -> torch.Tensor:
    """Return these rows' share of ``sum_s L_s * E * sum_e f_e(s) P_e(s)``, 0-dim.

    Args:
        probabilities: ``[r, E]``. The loss is differentiable in them alone.
        chosen: ``[r, K]`` int64.
        sequences: ``[r]`` int64, the entry of the pack that a row belongs to.
        real: ``[r]`` bool; rows of padding do not count.
        entries: Entries of the pack, the same on every rank of the groups.
        groups: Groups that hold the other rows of the same sequences.
    """
    experts = probabilities.shape[-1]
    cells = sequences.unsqueeze(-1) * experts + chosen
    counts = torch.zeros(entries * experts, dtype=torch.int64, device=chosen.device)
    ones = real.unsqueeze(-1).expand_as(chosen).to(torch.int64)
    counts = counts.index_add_(0, cells.flatten(), ones.flatten()).view(entries, experts)
    for group in groups:
        dist.all_reduce(counts, group=group)
    total = counts.sum(-1, keepdim=True).clamp(min=1)  # an entry may have no real row
    fractions = counts.to(probabilities.dtype) / total
    costs = (fractions[sequences] * probabilities).sum(-1)
    return experts * torch.where(real, costs, 0.0).sum()
