"""What a graph saves and what it costs, in units that need no GPU: operations and their work.

A replay spares the host. It spares the device nothing: the same operations run, over all rows of
the capacity. Whether that is faster is a question to a GPU, and no answer follows from here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from checks.graphs.layer_slots import (
    PACKS,
    LayerSlot,
    capture_layer,
    layer_of,
    microbatch,
    rows,
)
from ringproof.reference.model.static import static_batch
from ringproof.reference.topology.dynamic import ContextParallelGroup
from smoke.model_batches import op_stream, random_sequences, rank_batch

PROSE = Path(__file__).parents[2] / "skills/dynamic-cp-cuda-graphs/references/pitfalls.md"
HALF = PACKS[0]
"""Takes 16 of the 32 rows."""


def replayed(slot: LayerSlot) -> Counter[str]:
    """Operations of the tape, forward and backward, by name; without allocations."""
    segments: Any = slot.graphed._segments
    return Counter(
        operation.function.name() for segment in segments for operation in segment.operations
    )


def run(function: Callable[..., Any], x: torch.Tensor) -> None:
    output = function(x)
    output.backward(torch.ones_like(output))


def attention(q: Sequence[int], k: Sequence[int], *_: Any, **options: Any) -> int:
    """Two products of every query with every key, in each head."""
    return 2 * 2 * math.prod(q) * k[-2]


def attention_backward(
    _: Any, q: Sequence[int], k: Sequence[int], *rest: Any, **options: Any
) -> int:
    """Five products: the scores again, and one for each gradient and that of the scores."""
    return 5 * 2 * math.prod(q) * k[-2]


ATTENTION_ON_CPUS = (
    (torch.ops.aten._scaled_dot_product_flash_attention_for_cpu, attention),
    (torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward, attention_backward),
)
"""Torch's counter knows the operators of GPUs only."""


def work(layer: torch.nn.Module, batch: Any) -> dict[str, int]:
    """Floating-point operations of forward and backward, by part of the layer."""
    counter = FlopCounterMode(display=False, custom_mapping=dict(ATTENTION_ON_CPUS))
    with counter:
        run(lambda x: layer(x, batch)[0], rows(1, batch.rows))
    parts = {name.rpartition(".")[2]: sum(of.values()) for name, of in counter.flop_counts.items()}
    return {**parts, "all": counter.get_total_flops()}


@pytest.mark.parametrize("lost", [False, True])
def test_a_replay_runs_what_eager_runs_at_the_same_padding(
    lost: bool, alone: ContextParallelGroup
) -> None:
    layer, batch = layer_of("qwen3-tiny"), microbatch(HALF, alone)
    slot = capture_layer(layer, static_batch(batch))
    forward: Any = slot.graphed._segments[0]
    if lost:
        forward.operations = forward.operations[1:]
    stream = op_stream((), lambda: run(lambda x: slot.eager(x, batch), rows(1)))
    names = [f"aten::{line[0].removeprefix('aten.')}".removesuffix(".default") for line in stream]
    found = replayed(slot)
    eager = Counter(name for name in names if name in found)
    assert sum(found.values()) > 100
    assert (found == eager) == (not lost)


def test_padding_to_capacity_is_computed(alone: ContextParallelGroup) -> None:
    """Twice the work in every product with a weight, and more where rows meet rows."""
    layer = layer_of("qwen3-tiny")
    padded = work(layer, microbatch(HALF, alone))
    packed = work(layer, rank_batch(random_sequences(HALF), alone, multiple=8))
    assert padded["feed_forward"] == 2 * packed["feed_forward"] > 0
    ratio = padded["all"] / packed["all"]
    assert 2 < ratio < 4
    prose = " ".join(PROSE.read_text(encoding="utf-8").split())
    assert f"{ratio:.1f} times the floating-point operations" in prose
    full = PACKS[2]
    tight = rank_batch(random_sequences(full), alone, multiple=8)
    assert (
        work(layer, microbatch(full, alone))["feed_forward"] == work(layer, tight)["feed_forward"]
    )
