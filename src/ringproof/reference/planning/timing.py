"""The time that a sequence keeps the ranks of a group busy, from a model's shape and a machine.

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
what short rows lose does not shrink with more ranks.

With the byte counts Q, KV (keys and values) and O of a rank's share, a layer moves over
``C = a * p`` ranks:

    type         exchange over a     ring over p, per step   gathered over C    a    p
    p2p          -                   KV                      -                  1    C
    all_gather   -                   -                       (C - 1) * KV       1    1
    a2a          Q + KV + O          -                       -                  C    1
    a2a+p2p      Q + KV + O          KV                      -                  a    p

An exchange sends ``(a - 1) / a`` of what it exchanges and a ring passes on ``p - 1`` times. The
backward exchanges as much again, passes on twice as much (k, v and their gradients) and gathers
twice. Source: Transformer Engine's ``context_parallel.py``; counted message by message in
``checks/skills/test_hierarchical_arithmetic.py``.

A ring overlaps with attention step by step, and costs what its messages take longer than the steps.
Exchanges and gathering are not hidden. Not counted: communication of tensor and expert parallelism,
and of recurrent layers.

Every operation is one of + - * / and maximum, rounds monotonically and increases with the length,
so the time does, too, to the last bit, and is the same on every machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ringproof.errors import InputError, check_name
from ringproof.reference.planning.elementwise import maximum
from ringproof.reference.planning.hardware import Hardware
from ringproof.reference.planning.shapes import ModelShape

COMM_TYPES = ("p2p", "all_gather", "a2a", "a2a+p2p")
BACKWARD_RING = 2
"""The ring carries k and v, and behind them dk and dv."""
EXCHANGED_TENSORS = 4
"""q, k, v before attention, its output after; in the backward their gradients."""
LINEAR_BACKWARD = 2.0
GRADIENT_BYTES = 4
"""Gradients are accumulated and reduced in fp32."""


@dataclass(frozen=True)
class GroupCommunication:
    """How a group of ``size`` ranks communicates.

    ``inner`` ranks exchange sequence for heads, and ``ring`` ranks form each ring; 1 for none.
    ``gathers`` says whether keys and values are gathered.
    """

    size: int
    inner: int
    ring: int
    gathers: bool

    @property
    def row_share(self) -> float:
        """Rows of one attention call, as a multiple of a rank's share of the sequence.

        An exchange leaves a rank with ``inner`` shares of fewer heads. Gathering makes one call for
        each of the two zigzag chunks.
        """
        return 0.5 if self.gathers else float(self.inner)

    @property
    def messages(self) -> int:
        """Messages of one layer, forward and backward, that follow one after the other.

        These are a ring's steps, an exchange's tensors and a gathering's hops. In the backward a
        ring sends once more, because the gradients follow one step behind k and v.
        """
        exchanged = EXCHANGED_TENSORS if self.inner > 1 else 0
        hops = self.size - 1 if self.gathers else 0
        forward = exchanged + self.ring - 1 + hops
        backward = exchanged + (self.ring if self.ring > 1 else 0) + 2 * hops
        return forward + backward


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

    Raises:
        InputError: An unknown type, or sizes that do not divide heads or node.
    """

    shape: ModelShape
    machine: Hardware
    comm_type: str = "p2p"
    inner_size: int = 1
    tp: int = 1

    def __post_init__(self) -> None:
        check_name("comm-type", self.comm_type, COMM_TYPES)
        if self.inner_size < 1:
            raise InputError("inner-size", f"{self.inner_size} is less than 1; give 1 or more")
        if self.inner_size > 1 and self.comm_type != "a2a+p2p":
            problem = f"{self.inner_size} has no meaning for {self.comm_type}"
            raise InputError("inner-size", f"{problem}; leave it out")
        if self.comm_type == "a2a+p2p" and self.inner_size == 1:
            problem = "a2a+p2p needs the number of ranks that exchange"
            raise InputError("inner-size", f"{problem}; give 2 or more, or use p2p")
        heads, gpus = f"{self.shape.heads} heads", f"{self.machine.gpus_per_node} GPUs of a node"
        for count, what in ((self.shape.heads, heads), (self.machine.gpus_per_node, gpus)):
            if self.tp < 1 or count % self.tp:
                raise InputError("tp", f"{self.tp} does not divide the {what}; choose a divisor")

    @property
    def unit(self) -> str:
        """See `CostModel`."""
        return "seconds"

    @property
    def node_ranks(self) -> int:
        """Ranks of a node."""
        return self.machine.gpus_per_node // self.tp

    @property
    def kv_heads(self) -> int:
        """Key/value heads of one rank; fewer than ``tp`` are repeated."""
        return -(-self.shape.kv_heads // self.tp)

    def layout(self, size: int) -> GroupCommunication:
        """How a group of that size communicates.

        Under ``a2a+p2p`` a group that is not a multiple of the exchanging ranks exchanges over the
        largest common divisor.

        Raises:
            InputError: The exchanging ranks do not divide the key/value heads, which Transformer
                Engine requires.
        """
        inner = {"a2a": size, "a2a+p2p": math.gcd(size, self.inner_size)}.get(self.comm_type, 1)
        if self.kv_heads % inner:
            problem = (
                f"{inner} ranks cannot share {self.kv_heads} key/value heads equally under "
                f"{self.comm_type}, and Transformer Engine refuses that"
            )
            remedy = "choose group sizes that divide the heads, or p2p"
            raise InputError("comm-type", f"{problem}; {remedy}")
        ring = {"p2p": size, "a2a+p2p": size // inner}.get(self.comm_type, 1)
        return GroupCommunication(size, inner, ring, self.comm_type == "all_gather" and size > 1)

    def inside(self, size: int) -> bool:
        """Whether every aligned group of that size stays inside a node."""
        return self.node_ranks % size == 0

    @property
    def microbatch_overhead(self) -> float:
        """See `CostModel`."""
        return self.machine.layer_launch_seconds * self.shape.layers

    def group_overhead(self, size: int) -> float:
        """See `CostModel.group_overhead`."""
        messages = self.shape.attention_layers * self.layout(size).messages
        if self.inside(size):
            return messages * self.machine.intra_latency_seconds
        return messages * self.machine.inter_latency_seconds

    def cost(self, lengths: Any, size: int) -> Any:
        """See `CostModel.cost`."""
        tokens, how, machine = lengths * 1.0, self.layout(size), self.machine
        flops = self.shape.heads / self.tp * (self.shape.head_dim + self.shape.v_head_dim)
        operation = 1 / (machine.peak_flops_per_second * machine.attention_share)
        attention = (tokens * tokens / size * flops) * operation
        short_rows = operation * machine.attention_half_rows
        attention = attention + (tokens / how.row_share * flops) * short_rows
        # The scores again and the gradients of q and k have width D, those of weights and v V.
        qk, v = self.shape.head_dim, self.shape.v_head_dim
        forward = self._layer(attention, tokens, how, 1)
        backward = self._layer(
            attention * ((3 * qk + 2 * v) / (qk + v)), tokens, how, BACKWARD_RING
        )
        return (forward + backward) * self.shape.attention_layers + self._linear(tokens, size)

    def _linear(self, tokens: Any, size: int) -> Any:
        """The part of the cost that is neither attention nor its communication."""
        layers, head = self.shape.layer_flops_per_token, self.shape.head_flops_per_token
        flops = (layers + head) * (1 + LINEAR_BACKWARD) / self.tp
        operation = 1 / (self.machine.peak_flops_per_second * self.machine.linear_share)
        return (tokens / size * flops) * operation

    def _layer(self, attention: Any, tokens: Any, how: GroupCommunication, times: int) -> Any:
        """One layer and direction; the ring, or the gathering, moves kv ``times`` times."""
        share = tokens / how.size
        kv_bytes = self.shape.kv_bytes_per_token / self.shape.kv_heads * self.kv_heads
        near_byte = 1 / self.machine.intra_bytes_per_second
        far_byte = 1 / self.machine.inter_bytes_per_second
        message = share * (kv_bytes * times) * (near_byte if self.inside(how.size) else far_byte)
        found = attention / how.ring
        if how.ring > 1:
            found = found + maximum(found, message) * (how.ring - 1)
        if how.gathers:
            found = found + message * (how.size - 1)
        if how.inner > 1:  # to the own node and to others at the same time
            near, far = exchanged(self.node_ranks, how.inner)
            q_and_out = self.shape.q_bytes_per_token + self.shape.out_bytes_per_token
            moved = share * (q_and_out / self.tp + kv_bytes)
            found = found + maximum(moved * near * near_byte, moved * far * far_byte)
        return found


def exchanged(node_ranks: int, inner: int) -> tuple[float, float]:
    """The parts of what is exchanged that stay in the node and that leave it.

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
        tp: GPUs of a node that hold different weights.
    """
    moved = 2 * (ranks - 1) / ranks * parameters * GRADIENT_BYTES
    near, together = moved / machine.intra_bytes_per_second, machine.gpus_per_node // tp
    if ranks <= together:
        return near
    far = moved / (machine.inter_bytes_per_second * together)
    return far if together == 1 else max(near, far)
