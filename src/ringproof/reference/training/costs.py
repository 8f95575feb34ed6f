"""Cost of a sequence in a tiny model, as multiply-adds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ringproof.reference.model.config import LayerKind, ModelConfig
from ringproof.reference.planning.costs import FloatArray
from ringproof.reference.planning.domain import IntArray

RING_STEP_TOKENS = 16
"""A step of the ring costs as much as so many tokens: an estimate, not measured. It only keeps
short sequences from being spread over many ranks for nothing."""


@dataclass(frozen=True)
class MultiplyAdds:
    """Multiply-adds of the forward on one rank, as a ``CostModel`` of the planner.

    The backward takes twice as many for every sequence, so it does not change the plan.

    Args:
        per_token: Multiply-adds of all matrix products with weights, per token.
        per_pair: Multiply-adds of attention, per pair of a query and a visible key.
        unit: Name of the unit of the costs.
        microbatch_overhead: Fixed cost of a microbatch.
    """

    per_token: float
    per_pair: float
    unit: str = "multiply-adds per rank"
    microbatch_overhead: float = 0.0

    def cost(self, lengths: IntArray, size: int) -> FloatArray:
        """See ``CostModel``: ``(L * per_token + L * L / 2 * per_pair) / size``."""
        tokens = lengths.astype(np.float64)
        return tokens * (self.per_token + tokens * (0.5 * self.per_pair)) / size

    def group_overhead(self, size: int) -> float:
        """See ``CostModel``."""
        return RING_STEP_TOKENS * self.per_token * (size - 1)

    @classmethod
    def of_model(cls, config: ModelConfig) -> MultiplyAdds:
        """Count the multiply-adds of a model, without norms, convolutions and softmax."""
        head = config.hidden * config.vocabulary * (1 + config.mtp_depths)
        costs = [_layer(config, kind) for kind in config.layers]
        per_token = head + sum(tokens for tokens, _ in costs)
        return cls(float(per_token), float(sum(pairs for _, pairs in costs)))


def _layer(config: ModelConfig, kind: LayerKind) -> tuple[int, int]:
    """Return the multiply-adds of one layer per token and per pair."""
    tokens, pairs = _mixer(config, kind)
    return tokens + _feed_forward(config, kind), pairs


def _mixer(config: ModelConfig, kind: LayerKind) -> tuple[int, int]:
    hidden = config.hidden
    if kind.mixer == "attention" and config.attention:
        gqa = config.attention
        projected = 2 * (gqa.heads + gqa.kv_heads) * gqa.head_width
        return hidden * projected, 2 * gqa.heads * gqa.head_width
    if kind.mixer == "latent" and config.latent:
        mla = config.latent
        key = mla.content_width + mla.rotary_width
        down = mla.latent_width + mla.rotary_width
        up = mla.latent_width * mla.heads * (mla.content_width + mla.value_width)
        outer = mla.heads * (key + mla.value_width) + down
        return hidden * outer + up, mla.heads * (key + mla.value_width)
    if kind.mixer == "mamba" and config.mamba:
        ssm = config.mamba
        inner = ssm.heads * ssm.head_width
        projected = 3 * inner + 2 * ssm.groups * ssm.state_width + ssm.heads
        return hidden * projected + 2 * inner * ssm.state_width, 0
    return 0, 0


def _feed_forward(config: ModelConfig, kind: LayerKind) -> int:
    if kind.feed_forward == "experts" and config.experts:
        moe = config.experts
        return config.hidden * (3 * (moe.chosen * moe.width + moe.shared_width) + moe.experts)
    matrices = {"swiglu": 3, "squared-relu": 2}.get(kind.feed_forward or "", 0)
    return matrices * config.hidden * config.feed_forward
