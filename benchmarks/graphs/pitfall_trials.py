"""The pitfalls of one process: each done right, then broken as a device would have it.

A trial computes three times with the same numbers: eager, replayed as it should be, replayed with
the mistake. Where the tape refuses the mistake, its faithful mode goes on as a device would.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from checks.graphs.captures import equal, graph, results, tensor
from checks.graphs.layer_slots import (
    CAPACITY,
    PACKS,
    capture_layer,
    layer_of,
    microbatch,
    one_forward_one_backward,
    rows,
    slots_for,
)
from checks.graphs.test_pitfalls import (
    FAITHFUL,
    SMALLER,
    SYNCHRONISE,
    RotaryTables,
    drawn_from,
    slot_steps,
)
from checks.graphs.test_pitfalls_cost import HALF, replayed, work
from checks.graphs.test_pitfalls_rows import WritesInside
from ringproof.errors import InputError
from ringproof.harness.tape.backend import TapeBackend
from ringproof.reference.attention.attention import context_parallel_attention
from ringproof.reference.attention.masks import RowMask
from ringproof.reference.model import mla
from ringproof.reference.model.static import batch_tensors, load, static_batch
from ringproof.reference.packing.capacity import to_capacity
from ringproof.reference.packing.sequences import pack
from ringproof.reference.topology.dynamic import ContextParallelGroup
from smoke.model_batches import random_sequences, rank_batch

Tensors = Sequence[torch.Tensor]


@dataclass(frozen=True)
class Seen:
    """What came of a mistake.

    Args:
        sound: Whether the same without the mistake was as eager, bit by bit.
        silent: What a device would do: ``NaN``, ``finite, wrong``, ``refused``, ``hang`` or
            ``no faster``; ``nothing`` would mean that the mistake is none.
        said: The message of a refusal; empty where nothing can refuse it.
        difference: The largest, relative to the largest number that is right; where finite.
        note: What else was counted.
    """

    sound: bool
    silent: str
    said: str = ""
    difference: float | None = None
    note: str = ""


def refusal(call: Callable[[], object]) -> str:
    """What is said of it; empty where nothing is."""
    try:
        call()
    except InputError as error:
        return str(error)
    return ""


def compared(found: Tensors, wanted: Tensors, *, sound: bool, said: str = "") -> Seen:
    """What the mistake did to results and gradients."""
    if equal(found, wanted):
        return Seen(sound, "nothing", said)
    if not all(bool(one.isfinite().all()) for one in found):
        return Seen(sound, "NaN", said)
    pairs = list(zip(found, wanted, strict=True))
    off = max(((one - other).abs().max() / other.abs().max()).item() for one, other in pairs)
    return Seen(sound, "finite, wrong", said, off)


def rope_lifetime(alone: ContextParallelGroup) -> Seen:
    """A cache of one table; the capture of the next CP size drives the former one out."""
    layer, batch = layer_of("moonlight-tiny"), microbatch(PACKS[1], alone)

    def captured(backend: TapeBackend, *, retained: bool) -> Any:
        tables = RotaryTables(room=1)
        with patch.object(mla, "rotation", tables):
            slot = capture_layer(layer, static_batch(microbatch(PACKS[0], alone)), backend)
            kept = list(tables.kept.values()) if retained else []
            small = static_batch(microbatch((5,), alone, SMALLER))
            capture_layer(layer, small, backend, name="layer 0 of the smaller size")
        return lambda x: (slot.run(x, batch), len(kept))[0]

    x, weights = [rows(9)], list(layer.parameters())
    wanted = results(lambda x: layer(x, batch)[0], x, weights)
    sound = equal(results(captured(TapeBackend(), retained=True), x, weights), wanted)
    broken = captured(TapeBackend(), retained=False)
    said = refusal(lambda: broken(rows(9)))
    found = results(captured(FAITHFUL, retained=False), x, weights)
    return compared(found, wanted, sound=sound, said=said)


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


def slot_reuse(alone: ContextParallelGroup) -> Seen:
    """Two microbatches in flight, and room for one."""
    layer = layer_of("qwen3-tiny")
    batches = [microbatch(lengths, alone) for lengths in PACKS]
    eager = [lambda x, batch=batch: layer(x, batch)[0] for batch in batches]
    wanted = one_forward_one_backward(eager, layer)

    def with_slots(count: int, backend: TapeBackend | None = None) -> list[torch.Tensor]:
        slots = slots_for(layer, batches[0], count, backend)
        return one_forward_one_backward(slot_steps(slots, batches), layer)

    sound = equal(with_slots(2), wanted)
    said = refusal(lambda: with_slots(1))
    return compared(with_slots(1, FAITHFUL), wanted, sound=sound, said=said)


def python_branch(alone: ContextParallelGroup) -> Seen:
    """Captured where no sequence had padding: the branch for it is not in the graph."""
    pad_between_seqs, branches = False, True

    def attention(x: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        if pad_between_seqs or not branches:
            x = torch.where(real.unsqueeze(1), x, 0.0)
        return x.cumsum(0)

    static = tensor(4, 2, grad=True), torch.ones(4, dtype=torch.bool)
    baked = graph(attention, *static)
    branches = False
    always = graph(attention, *(one.clone().detach() for one in static))
    pad_between_seqs = True
    given = [tensor(4, 2, seed=3), torch.tensor([True, True, False, True])]
    wanted = [attention(*given)]
    sound = equal([always(*given)], wanted)
    return compared([baked(*given)], wanted, sound=sound)


def device_sync(alone: ContextParallelGroup) -> Seen:
    """What attention asks of ``cu_seqlens``; the message is that for the longest sequence."""
    packed = pack(PACKS[0], multiple=8)
    static = [torch.tensor(one) for one in (packed.cu_seqlens, packed.cu_seqlens_padded)]
    said = {
        name: refusal(partial(graph, function, tensor(4), *static))
        for name, function in SYNCHRONISE.items()
    }
    graphed = graph(lambda x, real, padded: x * real[-1], tensor(4), *static)
    given = [tensor(4, seed=1), static[0] * 2, static[1]]
    sound = equal([graphed(*given)], [given[0] * 2 * packed.tokens])
    silent = "refused" if all(said.values()) else "nothing"
    return Seen(sound, silent, said[".item()"], note=f"{len(said)} ways to ask, each refused")


def random_numbers(alone: ContextParallelGroup) -> Seen:
    """A generator that no graph was told of: every replay drops what the first one dropped."""
    generator, other = (torch.Generator().manual_seed(seed) for seed in (3, 3))
    x = tensor(64, seed=1)
    function = partial(drawn_from, generator)
    registered = graph(function, tensor(64), backend=TapeBackend(generators=(generator,)))
    wanted = [drawn_from(other, x) for _ in range(3)]
    sound = equal([registered(x).clone() for _ in range(3)], wanted)
    said = refusal(lambda: graph(function, tensor(64)))
    silent = graph(function, tensor(64), backend=TapeBackend(repeat_unregistered=True))
    found = [silent(x).clone() for _ in range(3)]
    note = "the same mask three times" if equal(found[:1], found[1:2]) else ""
    seen = compared(found, wanted, sound=sound, said=said)
    return Seen(seen.sound, seen.silent, seen.said, seen.difference, note)


def undefined_rows(alone: ContextParallelGroup) -> Seen:
    """NaN in padded rows of a captured ring whose keys are not blanked first."""
    static = static_batch(microbatch(PACKS[0], alone))
    batch, table = microbatch(PACKS[1], alone), static.metadata.table

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out, _ = context_parallel_attention(q, k, v, comm_type="p2p", group=alone.flat, table=table)
        return out

    def inputs(like: Any, seed: int) -> list[torch.Tensor]:
        drawn = [tensor(like.rows, 2, 8, seed=seed + i) for i in range(3)]
        padding = (~like.real).nonzero()[:, 0]
        return [x.index_fill(0, padding, torch.nan).requires_grad_() for x in drawn]

    given = inputs(batch, 5)
    load(static, batch)
    wanted = results(attention, given)
    sound = equal(results(graph(attention, *inputs(batch, 1)), given), wanted)
    with patch.object(RowMask, "of_keys", lambda self, x: x):
        broken = graph(attention, *inputs(batch, 1))
    return compared(results(broken, given), wanted, sound=sound)


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
