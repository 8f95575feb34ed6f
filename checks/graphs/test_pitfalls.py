"""Pitfalls of graphs under Dynamic CP, injected one by one into layers on the tape.

Each test does it right first, bit by bit as eager. Then it makes the mistake, and shows what a user
gets: the refusal by name, and what a device would have computed in silence.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import dropout

from checks.graphs.captures import Seen, compared, equal, graph, refusal, results, tensor
from checks.graphs.layer_slots import (
    PACKS,
    LayerSlot,
    capture_layer,
    layer_of,
    microbatch,
    one_forward_one_backward,
    rows,
    slots_for,
)
from ringproof.errors import InputError
from ringproof.reference.graphs.tape.backend import TapeBackend
from ringproof.reference.graphs.tape.segment import UndefinedBehaviour
from ringproof.reference.model import mla
from ringproof.reference.model.attention import rotation
from ringproof.reference.model.batch import PackedBatch
from ringproof.reference.model.static import batch_tensors, static_batch
from ringproof.reference.packing.sequences import Capacity, pack
from ringproof.reference.topology.dynamic import ContextParallelGroup

FAITHFUL = TapeBackend(UndefinedBehaviour(faithful=True))
SMALLER = Capacity(rows=16, entries=4)


def agrees(slot: LayerSlot, batch: PackedBatch) -> bool:
    """Whether a replay gives what eager gives: output and all gradients, bit by bit."""
    weights = list(slot.layer.parameters())
    x = [rows(9, batch.rows)]
    wanted = results(partial(slot.eager, batch=batch), x, weights)
    return equal(results(partial(slot.run, batch=batch), x, weights), wanted)


class RotaryTables:
    """Tables by number of rows, the last ones made: as MLA's rotary embedding upstream keeps them.

    Args:
        room: Tables at a time; one that makes way is freed.
    """

    def __init__(self, room: int) -> None:
        self.room = room
        self.kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(self, positions: torch.Tensor, *shape: Any) -> tuple[torch.Tensor, torch.Tensor]:
        count = len(positions)
        if count not in self.kept:
            if len(self.kept) == self.room:
                self.kept.pop(next(iter(self.kept)))
            self.kept[count] = rotation(torch.arange(count), *shape)
        cosines, sines = self.kept[count]
        mine = positions.clamp(min=0)
        return cosines.index_select(0, mine), sines.index_select(0, mine)


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


def test_rope_tables_live_as_long_as_the_graphs(alone: ContextParallelGroup) -> None:
    """The capture of the next CP size drives the table of the former out of the cache."""
    seen = rope_lifetime(alone)
    assert (seen.sound, seen.silent) == (True, "NaN")
    message = r"slot 0, forward: dangling address: `cosines` float64 \[32, 1, \d+\], first used at"
    assert re.search(rf"{message} graphs/test_pitfalls.py:\d+, was freed", seen.said)


@pytest.mark.parametrize("stale", ["", "metadata.table", "positions", "everything"])
def test_metadata_that_is_not_copied_in_is_stale(stale: str, alone: ContextParallelGroup) -> None:
    """Nothing refuses it, on no device: shapes and addresses are right. Compare with eager."""
    slot = capture_layer(layer_of("qwen3-tiny"), static_batch(microbatch(PACKS[0], alone)))
    batch = microbatch(PACKS[1], alone)
    given = batch_tensors(batch)
    for name, kept in batch_tensors(slot.static).items():
        if stale == "everything" or (stale and name.startswith(stale)):
            given[name] = kept.clone()

    def careless(x: torch.Tensor) -> Any:
        for name, into in batch_tensors(slot.static).items():
            into.copy_(given[name])
        return slot.graphed(x)

    x, weights = [rows(9)], list(slot.layer.parameters())
    wanted = results(partial(slot.eager, batch=batch), x, weights)
    found = results(careless, x, weights)
    assert equal(found, wanted) == (not stale)
    assert all(one.isfinite().all() for one in found)


@pytest.mark.parametrize("baked", [False, True])
def test_a_pack_in_python_integers_is_baked_in(baked: bool, alone: ContextParallelGroup) -> None:
    """Eager code takes boundaries from integers; a capture of it computes its own pack for ever."""
    static = static_batch(microbatch(PACKS[0], alone))
    seen = replace(microbatch(PACKS[0], alone), metadata=None) if baked else static
    slot = capture_layer(layer_of("qwen3-tiny"), seen)
    slot.static = static
    assert agrees(slot, microbatch(PACKS[1], alone)) == (not baked)


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


def test_a_branch_on_pad_between_seqs_is_baked_in(alone: ContextParallelGroup) -> None:
    """Nothing refuses it."""
    seen = python_branch(alone)
    assert (seen.sound, seen.silent, seen.said) == (True, "finite, wrong", "")


def slot_steps(slots: list[LayerSlot], batches: list[PackedBatch]) -> list[Callable[..., Any]]:
    """A microbatch takes the slot of its number modulo the number of slots."""
    return [
        partial(slots[number % len(slots)].run, batch=batch) for number, batch in enumerate(batches)
    ]


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


def test_a_slot_in_flight_is_not_used_again(alone: ContextParallelGroup) -> None:
    """As on the first of two stages, three microbatches in all; nothing but the numbers tells."""
    seen = slot_reuse(alone)
    assert (seen.sound, seen.silent) == (True, "finite, wrong")
    message = "layer 0, slot 0: its activations are gone: replayed again since this forward; give"
    assert seen.said.startswith(f"{message} each microbatch in flight a slot of its own")


def test_slots_must_not_share_metadata(alone: ContextParallelGroup) -> None:
    """The backward reads the masks again: of the microbatch that came after, without a word."""
    layer = layer_of("qwen3-tiny")
    batches = [microbatch(lengths, alone) for lengths in PACKS]
    slots = slots_for(layer, batches[0], 2)
    wanted = one_forward_one_backward(slot_steps(slots, batches), layer)
    shared = [capture_layer(layer, slots[0].static) for _ in range(2)]
    assert not equal(one_forward_one_backward(slot_steps(shared, batches), layer), wanted)
    alternating = one_forward_one_backward(slot_steps(shared, batches), layer, in_flight=1)
    assert equal(alternating, one_forward_one_backward(slot_steps(slots, batches), layer))


def max_seqlen(cu_seqlens: torch.Tensor) -> Any:
    return (cu_seqlens[1:] - cu_seqlens[:-1]).max().item()


SYNCHRONISE = {
    "torch.equal": lambda x, real, padded: x if torch.equal(real, padded) else x * 2,
    "int(tensor)": lambda x, real, padded: x * int(real[-1]),
    ".item()": lambda x, real, padded: x * max_seqlen(real),
    "torch.nonzero": lambda x, real, padded: x + torch.nonzero(real)[0],
}


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
    reads = "synchronises the device during capture"
    places = {name: f"part, forward: {name} at graphs/test_pitfalls.py:" for name in said}
    refused = all(places[name] in one and reads in one for name, one in said.items())
    silent = "refused" if refused else "nothing"
    return Seen(sound, silent, said[".item()"], note=f"{len(said)} ways to ask, each refused")


def test_questions_about_cu_seqlens_synchronise(alone: ContextParallelGroup) -> None:
    """Whether there are gaps, how many tokens, how long the longest: all of it is on the device."""
    seen = device_sync(alone)
    assert (seen.sound, seen.silent) == (True, "refused")
    assert len(SYNCHRONISE) == 4


def under_a_tracker(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """A tracker that forks: sets the generator to its own state, draws, and sets it back."""
    before = torch.get_rng_state()
    torch.set_rng_state(state)
    out = dropout(x, 0.5)
    torch.set_rng_state(before)
    return out


def drawn_from(generator: torch.Generator, x: torch.Tensor) -> torch.Tensor:
    return x * (torch.rand(x.shape, generator=generator, dtype=x.dtype) > 0.5)


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


def test_dropout_needs_a_registered_generator(alone: ContextParallelGroup) -> None:
    seen = random_numbers(alone)
    assert (seen.sound, seen.note) == (True, "the same mask three times")
    assert "a generator that is not registered with the graph" in seen.said
    with pytest.raises(InputError, match="state of a random generator was set before"):
        graph(partial(under_a_tracker, state=torch.get_rng_state()), tensor(64))


def test_a_registered_buffer_that_moves_dangles(alone: ContextParallelGroup) -> None:
    """Expandable segments: what NCCL registered at capture may be mapped elsewhere later."""
    registered = tensor(4, seed=1)

    def function(x: torch.Tensor) -> torch.Tensor:
        gathered = torch.empty_like(registered)
        dist.all_gather([gathered], registered, group=alone.flat)
        return x * gathered

    graphed = graph(function, tensor(4, grad=True))
    silent = graph(function, tensor(4, grad=True), backend=FAITHFUL)
    given = [tensor(4, seed=2, grad=True)]
    registered.mul_(2)
    assert equal(results(graphed, given), results(function, given))
    registered.data = registered.data.clone()
    said, deadline = "", time.monotonic() + 5
    while not said and time.monotonic() < deadline:
        # A thread of gloo lets the old memory go some time after its collective has answered.
        time.sleep(0.01)
        said = refusal(lambda: graphed(given[0]))
    assert re.search(
        r"dangling address: `registered` float64 \[4\], first used at "
        r"graphs/test_pitfalls.py:\d+, was freed or moved after the capture",
        said,
    )
    assert not all(one.isfinite().all() for one in results(silent, given))
