"""A layer of a model captured on packs of fixed capacity, and run as a pipeline would."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from checks.graphs.captures import tensor
from checks.model.whole_model import whole
from ringproof.reference.graphs.backend import Capture
from ringproof.reference.graphs.replay import Graphed
from ringproof.reference.graphs.tape.backend import TapeBackend
from ringproof.reference.model.batch import PackedBatch
from ringproof.reference.model.config import preset
from ringproof.reference.model.static import load, static_batch
from ringproof.reference.packing.sequences import Capacity
from ringproof.reference.topology.dynamic import ContextParallelGroup
from smoke.model_batches import capacity_batch, random_sequences

CAPACITY = Capacity(rows=32, entries=4)
PACKS = ((5, 7), (11, 3), (16, 2, 6))
"""Lengths of packs; the first two leave a tail, the last fills the rows."""
Step = Callable[[torch.Tensor], torch.Tensor]


def microbatch(
    lengths: Sequence[int], group: ContextParallelGroup, capacity: Capacity = CAPACITY
) -> PackedBatch:
    return capacity_batch(random_sequences(lengths, seed=sum(lengths)), group, capacity, multiple=8)


def layer_of(name: str) -> nn.Module:
    """The first layer of a preset."""
    return whole(preset(name)).layers["0"]


def rows(seed: int, count: int = CAPACITY.rows) -> torch.Tensor:
    return tensor(count, preset("qwen3-tiny").hidden, seed=seed, grad=True)


@dataclass
class LayerSlot:
    """A captured layer and the static microbatch that it reads.

    Args:
        layer: The module.
        static: Overwritten before each replay.
        graphed: The captured layer.
    """

    layer: nn.Module
    static: PackedBatch
    graphed: Graphed

    def run(self, x: torch.Tensor, batch: PackedBatch) -> Any:
        """Fill the static microbatch and replay."""
        load(self.static, batch)
        return self.graphed(x)

    def eager(self, x: torch.Tensor, batch: PackedBatch) -> Any:
        """What the replay should give."""
        return self.layer(x, batch)[0]


def capture_layer(
    layer: nn.Module,
    static: PackedBatch,
    backend: TapeBackend | None = None,
    *,
    name: str = "layer 0, slot 0",
) -> LayerSlot:
    """Capture a layer; the static microbatch is memory that it reads, as parameters are."""

    def function(x: torch.Tensor) -> Any:
        return layer(x, static)[0]

    capture = Capture(
        name=name,
        function=function,
        inputs=(rows(0, static.rows),),
        parameters=dict(layer.named_parameters()),
    )
    (graphed,) = (backend or TapeBackend()).capture([capture], warm_up=1)
    return LayerSlot(layer, static, graphed)


def slots_for(
    layer: nn.Module, batch: PackedBatch, count: int, backend: TapeBackend | None = None
) -> list[LayerSlot]:
    """As many slots, each with memory of its own."""
    return [
        capture_layer(layer, static_batch(batch), backend, name=f"layer 0, slot {slot}")
        for slot in range(count)
    ]


def one_forward_one_backward(
    steps: Sequence[Step], layer: nn.Module, *, in_flight: int = 2
) -> list[torch.Tensor]:
    """The order of a pipeline's first stage; gradients of the weights.

    Args:
        steps: The forward of each microbatch.
        layer: Whose gradients.
        in_flight: Microbatches whose backward is to come, at most.
    """
    layer.zero_grad()
    waiting: list[torch.Tensor] = []
    for number, step in enumerate(steps):
        if len(waiting) == in_flight:
            waiting.pop(0).backward()
        waiting.append((step(rows(number)) * rows(100 + number).detach()).sum())
    for loss in waiting:
        loss.backward()
    return [weight.grad.clone() for weight in layer.parameters() if weight.grad is not None]
