"""Pitfalls of one process: each done right, then broken as a device would have it.

Others are in ``checks/graphs/test_pitfalls.py`` and ``test_pitfalls_rows.py``.
"""

from __future__ import annotations

import time
from functools import partial

import torch
import torch.distributed as dist

from checks.graphs.captures import Seen, compared, equal, graph, refusal, results, tensor
from checks.graphs.layer_slots import (
    CAPACITY,
    PACKS,
    capture_layer,
    layer_of,
    microbatch,
    rows,
)
from checks.graphs.test_pitfalls import FAITHFUL
from checks.graphs.test_pitfalls_cost import HALF, replayed, work
from checks.graphs.test_pitfalls_rows import WritesInside
from ringproof.reference.model.static import batch_tensors, static_batch
from ringproof.reference.packing.capacity import to_capacity
from ringproof.reference.packing.sequences import pack
from ringproof.reference.topology.dynamic import ContextParallelGroup
from smoke.model_batches import random_sequences, rank_batch


def stale_metadata(alone: ContextParallelGroup) -> Seen:
    """Rows of the new microbatch, boundaries of the one that was captured."""
    slot = capture_layer(layer_of("qwen3-tiny"), static_batch(microbatch(PACKS[0], alone)))
    batch = microbatch(PACKS[1], alone)
    x, weights = [rows(9)], list(slot.layer.parameters())
    captured = {name: kept.clone() for name, kept in batch_tensors(slot.static).items()}
    wanted = results(partial(slot.eager, batch=batch), x, weights)
    sound = equal(results(partial(slot.run, batch=batch), x, weights), wanted)
    for name, into in batch_tensors(slot.static).items():
        if name.startswith("metadata.table"):
            into.copy_(captured[name])
    return compared(results(slot.graphed, x, weights), wanted, sound=sound)


def hidden_tail(alone: ContextParallelGroup) -> Seen:
    """Rows past the last boundary, which a kernel for packed rows does not write."""
    packed = pack(PACKS[0], multiple=8)
    covered = torch.tensor(to_capacity(packed, CAPACITY).cu_seqlens_padded, dtype=torch.int32)
    last = packed.cu_seqlens_padded[-1]
    weight, real = tensor(6, 3, seed=1, grad=True), torch.arange(32) < last

    def function(x: torch.Tensor, boundaries: torch.Tensor) -> torch.Tensor:
        rotated = WritesInside.apply(x, boundaries)
        return torch.where(real.unsqueeze(1), rotated @ weight, 0.0)

    graphed = graph(
        function, tensor(32, 6, grad=True), covered.clone(), parameters={"weight": weight}
    )
    x = tensor(32, 6, seed=2, grad=True)
    wanted = results(function, [x, covered], [weight])
    sound = equal(results(graphed, [x, covered], [weight]), wanted)
    hidden = covered.clamp(max=last)
    return compared(results(graphed, [x, hidden], [weight]), wanted, sound=sound)


def expandable_segments(alone: ContextParallelGroup) -> Seen:
    """The buffer that a captured collective has registered is mapped elsewhere."""
    registered = tensor(4, seed=1)

    def function(x: torch.Tensor) -> torch.Tensor:
        gathered = torch.empty_like(registered)
        dist.all_gather([gathered], registered, group=alone.flat)
        return x * gathered

    graphed = graph(function, tensor(4, grad=True))
    silent = graph(function, tensor(4, grad=True), backend=FAITHFUL)
    given = [tensor(4, seed=2, grad=True)]
    registered.mul_(2)
    wanted = results(function, given)
    sound = equal(results(graphed, given), wanted)
    registered.data = registered.data.clone()
    said, deadline = "", time.monotonic() + 5
    while not said and time.monotonic() < deadline:
        # A thread of gloo lets the old memory go some time after its collective has answered.
        time.sleep(0.01)
        said = refusal(lambda: graphed(given[0]))
    return compared(results(silent, given), wanted, sound=sound, said=said)


def no_speed_up(alone: ContextParallelGroup) -> Seen:
    """A pack that fills half of the capacity: what the device has to do, counted."""
    layer, batch = layer_of("qwen3-tiny"), microbatch(HALF, alone)
    slot = capture_layer(layer, static_batch(batch))
    x, weights = [rows(9)], list(layer.parameters())
    wanted = results(partial(slot.eager, batch=batch), x, weights)
    sound = equal(results(partial(slot.run, batch=batch), x, weights), wanted)
    packed = work(layer, rank_batch(random_sequences(HALF), alone, multiple=8))["all"]
    ratio = work(layer, batch)["all"] / packed
    operations = sum(replayed(slot).values())
    note = f"{operations} operations, as eager; {ratio:.1f} times the work of the pack unpadded"
    return Seen(sound, "no faster" if ratio > 1 else "nothing", note=note)
