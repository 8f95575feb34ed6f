"""Compute how long a sequence keeps the ranks of a group busy, in seconds.

Per layer, ``s`` tokens on ``d`` ranks, ``H`` query heads per rank of head dimensions ``D`` (q, k)
and ``V`` (v):

    attention, forward   s^2 * H * (D + V) / d operations: 2 s^2 H (D + V) for both products, half
                         of it above the diagonal; zigzag gives every rank the same part of it
    attention, backward  s^2 * H * (3 D + 2 V) / d: five products instead of two, three of them of
                         width D; 2.5 times as many where D is V
    at a rate of         peak * share * rows / (rows + half), rows being those of one call
    everything else      2 operations per weight and token forward, twice that backward

Source of the counts and the 2.5: FlashAttention-2 (arXiv 2307.08691), section 4.1. With
``rows = w * s / d`` the rate turns attention into ``s^2 / d + s * half / w``, times a constant:
what short rows lose does not shrink with more ranks, so splitting a short sequence wastes them.
That is why dynamic CP pays.

A ring is overlapped with attention step by step, and costs what its messages take longer than the
steps. Exchanges and gathering stand alone. Latencies belong to the group (`group_overhead`), what
a layer costs whatever is in it to the microbatch. Not counted: communication of tensor and expert
parallelism, and of recurrent layers.

Every operation is one of + - * / and maximum, rounds monotonically and increases with the length;
so the sum does, too, to the last bit, and is the same on every machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ringproof.errors import InputError
from ringproof.reference.planning.costs import FloatArray
from ringproof.reference.planning.domain import IntArray
from ringproof.reference.planning.hardware import Hardware
from ringproof.reference.planning.shapes import ModelShape
from ringproof.reference.planning.traffic import BACKWARD_RING, COMM_TYPES, Layout, layout

LINEAR_BACKWARD = 2.0
GRADIENT_BYTES = 4
"""Gradients are accumulated and reduced in fp32."""


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """Forward and backward time of a model on a machine; a `CostModel`.

    The ranks that are planned are those of data times context parallelism; each stands for
    ``tp`` GPUs of one node, which share heads and operations.

    Attributes:
        shape: The model.
        machine: The hardware.
        comm_type: One of ``p2p``, ``all_gather``, ``a2a``, ``a2a+p2p``.
        inner_size: Ranks that exchange under ``a2a+p2p``.
        tp: Tensor parallel size.
        recompute: Whether the forward of every layer runs a second time before its backward.

    Raises:
        InputError: An unknown type, or sizes that do not divide heads or node.
    """

    shape: ModelShape
    machine: Hardware
    comm_type: str = "p2p"
    inner_size: int = 1
    tp: int = 1
    recompute: bool = False

    def __post_init__(self) -> None:
        if self.comm_type not in COMM_TYPES:
            remedy = f"use one of {', '.join(COMM_TYPES)}"
            raise InputError("comm-type", self.comm_type, "unknown name", remedy)
        if self.inner_size < 1:
            raise InputError("inner-size", self.inner_size, "is less than 1", "give 1 or more")
        if self.inner_size > 1 and self.comm_type != "a2a+p2p":
            problem = f"has no meaning for {self.comm_type}"
            raise InputError("inner-size", self.inner_size, problem, "leave it out")
        if self.comm_type == "a2a+p2p" and self.inner_size == 1:
            problem = "a2a+p2p needs the number of ranks that exchange"
            raise InputError("inner-size", None, problem, "give 2 or more, or use p2p")
        if self.tp < 1 or self.shape.heads % self.tp:
            problem = f"does not divide the {self.shape.heads} heads"
            raise InputError("tp", self.tp, problem, "choose a divisor")
        if self.machine.gpus_per_node % self.tp:
            problem = f"does not divide the {self.machine.gpus_per_node} GPUs of a node"
            raise InputError("tp", self.tp, problem, "choose a divisor")

    @property
    def unit(self) -> str:
        """See `CostModel`."""
        return "seconds"

    @property
    def microbatch_overhead(self) -> float:
        """See `CostModel`; a recomputed forward is launched again, a third of the whole."""
        times = 4 / 3 if self.recompute else 1.0
        return self.shape.layers * self.machine.layer_launch_seconds * times

    @property
    def node_ranks(self) -> int:
        """Ranks of a node."""
        return self.machine.gpus_per_node // self.tp

    @property
    def kv_heads(self) -> int:
        """Key/value heads of one rank; fewer than ``tp`` are repeated."""
        return -(-self.shape.kv_heads // self.tp)

    def layout(self, size: int) -> Layout:
        """How a group of that size communicates."""
        return layout(self.comm_type, size, self.kv_heads, self.inner_size)

    def inside(self, size: int) -> bool:
        """Whether every aligned group of that size stays inside a node."""
        return self.node_ranks % size == 0

    def cost(self, lengths: IntArray, size: int) -> FloatArray:
        """See `CostModel.cost`."""
        tokens = lengths.astype(np.float64)
        how = self.layout(size)
        attention = self._attention(tokens, how)
        forward = self._layer(attention, tokens, how, 1)
        backward = self._layer(attention * self.attention_backward, tokens, how, BACKWARD_RING)
        passes = forward + backward + (forward if self.recompute else 0.0)
        return passes * self.shape.attention_layers + tokens * (self._linear_seconds / size)

    def group_overhead(self, size: int) -> float:
        """See `CostModel.group_overhead`."""
        how = self.layout(size)
        forward, backward = how.forward_messages, how.backward_messages
        messages = forward * (2 if self.recompute else 1) + backward
        near, far = self.machine.intra_latency_seconds, self.machine.inter_latency_seconds
        return self.shape.attention_layers * messages * (near if self.inside(size) else far)

    @property
    def attention_flops_factor(self) -> float:
        """``H * (D + V)`` of one rank: times ``s^2`` it is one layer's forward."""
        return self.shape.heads / self.tp * (self.shape.head_dim + self.shape.v_head_dim)

    @property
    def attention_backward(self) -> float:
        """Operations backward over those forward: the scores again and the gradients of q and k
        have width D, those of the weights and of v width V."""
        qk, v = self.shape.head_dim, self.shape.v_head_dim
        return (3 * qk + 2 * v) / (qk + v)

    @property
    def linear_flops(self) -> float:
        """Operations per token and rank, forward, backward and recomputation."""
        layers, head = self.shape.layer_flops_per_token, self.shape.head_flops_per_token
        times = 1 + LINEAR_BACKWARD
        return (layers * (times + (1 if self.recompute else 0)) + head * times) / self.tp

    @property
    def q_and_out_bytes(self) -> float:
        """Per token and rank."""
        return (self.shape.q_bytes_per_token + self.shape.out_bytes_per_token) / self.tp

    @property
    def kv_bytes(self) -> float:
        """Per token and rank."""
        return self.shape.kv_bytes_per_token / self.shape.kv_heads * self.kv_heads

    @property
    def _linear_seconds(self) -> float:
        rate = self.machine.peak_flops_per_second * self.machine.linear_share
        return self.linear_flops / rate

    def _attention(self, tokens: FloatArray, how: Layout) -> FloatArray:
        """Forward, one layer, without communication."""
        rate = self.machine.peak_flops_per_second * self.machine.attention_share
        short = self.machine.attention_half_rows / how.row_share
        done = tokens * tokens / how.size + tokens * short
        return done * (self.attention_flops_factor / rate)

    def _layer(
        self, attention: FloatArray, tokens: FloatArray, how: Layout, times: int
    ) -> FloatArray:
        """One layer and direction; the ring, or the gathering, moves kv ``times`` times."""
        share = tokens / how.size
        near, far = self.machine.intra_bytes_per_second, self.machine.inter_bytes_per_second
        step = attention / how.ring
        message = share * (self.kv_bytes * times / (near if self.inside(how.size) else far))
        found = step
        if how.ring > 1:
            found = step + np.maximum(step, message) * (how.ring - 1)
        if how.gathers:
            found = found + message * (how.size - 1)
        if how.inner > 1:
            found = found + share * self._exchange_seconds(how.inner)
        return found

    def _exchange_seconds(self, inner: int) -> float:
        """Per token of a rank's share: to its own node and to others at the same time."""
        near, far = exchanged(self.node_ranks, inner)
        moved = self.q_and_out_bytes + self.kv_bytes
        return max(
            moved * near / self.machine.intra_bytes_per_second,
            moved * far / self.machine.inter_bytes_per_second,
        )


def exchanged(node_ranks: int, inner: int) -> tuple[float, float]:
    """Which parts of what is exchanged stay in the node and leave it.

    Of aligned ranks, as many share a node as the largest common divisor says.

    >>> exchanged(8, 16)
    (0.4375, 0.5)
    """
    together = math.gcd(node_ranks, inner)
    return (together - 1) / inner, (inner - together) / inner


def reduction_seconds(parameters: float, ranks: int, machine: Hardware, *, tp: int = 1) -> float:
    """Time of the all-reduce of fp32 gradients over data times context parallel ranks.

    A ring moves ``2 (n - 1) / n`` of the bytes through every link; across nodes, the cards of all
    of a node's ranks that reduce together carry a part of it each.

    Args:
        parameters: Weights that one GPU holds.
        ranks: Ranks that reduce together.
        machine: The hardware.
        tp: GPUs of a node that hold different weights, so that each of them reduces with others.
    """
    moved = 2 * (ranks - 1) / ranks * parameters * GRADIENT_BYTES
    near, together = moved / machine.intra_bytes_per_second, machine.gpus_per_node // tp
    if ranks <= together:
        return near
    far = moved / (machine.inter_bytes_per_second * together)
    return far if together == 1 else max(near, far)
