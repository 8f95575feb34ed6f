"""Pitfalls of graphs under Dynamic CP, injected one by one into layers on the tape.

Each test does it right first, bit by bit as eager. Then it makes the mistake, and shows what a user
gets: the refusal by name, and what a device would have computed in silence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch.nn.functional import dropout

from checks.graphs.captures import equal, graph, results, tensor
from checks.graphs.layer_slots import (
    CAPACITY,
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
from ringproof.harness.tape.backend import TapeBackend
from ringproof.harness.tape.segment import UndefinedBehaviour
from ringproof.reference.model import mla
from ringproof.reference.model.attention import rotation
from ringproof.reference.model.batch import PackedBatch
from ringproof.reference.model.static import batch_tensors, static_batch
from ringproof.reference.packing.capacity import to_capacity
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


@pytest.mark.parametrize("retained", [True, False])
def test_rope_tables_live_as_long_as_the_graphs(
    retained: bool, alone: ContextParallelGroup
) -> None:
    """The capture of the next CP size drives the table of the former out of the cache."""
    layer, batch = layer_of("moonlight-tiny"), microbatch(PACKS[1], alone)
    found = {}
    for way, backend in (("checked", TapeBackend()), ("faithful", FAITHFUL)):
        tables = RotaryTables(room=1)
        with patch.object(mla, "rotation", tables):
            slot = capture_layer(layer, static_batch(microbatch(PACKS[0], alone)), backend)
            references = list(tables.kept.values()) if retained else []
            small = static_batch(microbatch((5,), alone, SMALLER))
            capture_layer(layer, small, backend, name="layer 0 of the smaller size")
            found[way] = (slot, references)
    if retained:
        assert agrees(found["checked"][0], batch)
        return
    message = r"slot 0, forward: dangling address: `cosines` float64 \[32, 1, \d+\], first used at"
    with pytest.raises(InputError, match=rf"{message} graphs/test_pitfalls.py:\d+, was freed"):
        found["checked"][0].run(rows(9), batch)
    assert found["faithful"][0].run(rows(9), batch).isnan().any()


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


@pytest.mark.parametrize("branches", [False, True])
def test_a_branch_on_pad_between_seqs_is_baked_in(branches: bool) -> None:
    """Captured where no sequence had padding: the branch for padding is not in the graph."""

    def attention(x: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        if pad_between_seqs or not branches:
            x = torch.where(real.unsqueeze(1), x, 0.0)
        return x.cumsum(0)

    pad_between_seqs = False
    graphed = graph(attention, tensor(4, 2, grad=True), torch.ones(4, dtype=torch.bool))
    pad_between_seqs = True
    given = [tensor(4, 2, seed=3, grad=True), torch.tensor([True, True, False, True])]
    assert equal(results(graphed, given), results(attention, given)) == (not branches)


def test_a_change_of_what_is_baked_in_is_refused(alone: ContextParallelGroup) -> None:
    slot = capture_layer(layer_of("qwen3-tiny"), static_batch(microbatch(PACKS[0], alone)))
    batch = microbatch(PACKS[1], alone)
    other = microbatch(PACKS[1], alone, Capacity(rows=32, entries=6))
    for changed, problem in (
        (other, r"capacity: the static microbatch has Capacity\(rows=32, entries=4\)"),
        (replace(batch, comm_type="a2a"), "comm_type: the static microbatch has p2p"),
        (replace(batch, tokens=None), "batch.tokens: the static one is"),
    ):
        with pytest.raises(InputError, match=problem):
            slot.run(rows(0), changed)
    assert slot.graphed.replays.forward == 0
    slot.run(rows(0), batch)


def test_more_sequences_than_the_capacity_are_refused() -> None:
    with pytest.raises(InputError, match=r"capacity.entries: the pack has 4 sequences and a dummy"):
        to_capacity(pack([1, 2, 3, 4], multiple=4), CAPACITY)
    assert to_capacity(pack([1, 2, 3], multiple=4), CAPACITY).cu_seqlens_padded[-1] == 32


def slot_steps(slots: list[LayerSlot], batches: list[PackedBatch]) -> list[Callable[..., Any]]:
    """A microbatch takes the slot of its number modulo the number of slots."""
    return [
        partial(slots[number % len(slots)].run, batch=batch) for number, batch in enumerate(batches)
    ]


@pytest.mark.parametrize("count", [2, 1])
def test_a_slot_in_flight_is_not_used_again(count: int, alone: ContextParallelGroup) -> None:
    """Two microbatches in flight, as on the first of two stages, three in all."""
    layer = layer_of("qwen3-tiny")
    batches = [microbatch(lengths, alone) for lengths in PACKS]
    eager = [lambda x, batch=batch: layer(x, batch)[0] for batch in batches]
    wanted = one_forward_one_backward(eager, layer)
    slots = slots_for(layer, batches[0], count)
    if count == 2:
        assert equal(one_forward_one_backward(slot_steps(slots, batches), layer), wanted)
        return
    message = "layer 0, slot 0: its activations are gone: replayed again since this forward; give"
    with pytest.raises(InputError, match=f"{message} each microbatch in flight a slot of its own"):
        one_forward_one_backward(slot_steps(slots, batches), layer)
    silent = slots_for(layer, batches[0], count, FAITHFUL)
    found = one_forward_one_backward(slot_steps(silent, batches), layer)
    assert not equal(found, wanted)
    assert all(gradient.isfinite().all() for gradient in found), "nothing but the numbers tells"


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


@pytest.mark.parametrize("what", SYNCHRONISE)
def test_questions_about_cu_seqlens_synchronise(what: str) -> None:
    """Whether there are gaps, how many tokens, how long the longest: all of it is on the device."""
    packed = pack(PACKS[0], multiple=8)
    static = [torch.tensor(one) for one in (packed.cu_seqlens, packed.cu_seqlens_padded)]
    with pytest.raises(InputError, match=r"synchronises the device during capture") as caught:
        graph(SYNCHRONISE[what], tensor(4), *static)
    assert f"part, forward: {what} at graphs/test_pitfalls.py:" in str(caught.value)
    graphed = graph(lambda x, real, padded: x * real[-1], tensor(4), *static)
    given = [tensor(4, seed=1), static[0] * 2, static[1]]
    assert equal([graphed(*given)], [given[0] * 2 * packed.tokens])


def under_a_tracker(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """A tracker that forks: sets the generator to its own state, draws, and sets it back."""
    before = torch.get_rng_state()
    torch.set_rng_state(state)
    out = dropout(x, 0.5)
    torch.set_rng_state(before)
    return out


def drawn_from(generator: torch.Generator, x: torch.Tensor) -> torch.Tensor:
    return x * (torch.rand(x.shape, generator=generator, dtype=x.dtype) > 0.5)


def test_dropout_needs_a_registered_generator() -> None:
    generator, other = (torch.Generator().manual_seed(seed) for seed in (3, 3))
    x = tensor(64, seed=1)
    known = TapeBackend(generators=(generator,))
    registered = graph(partial(drawn_from, generator), tensor(64), backend=known)
    eager = [drawn_from(other, x) for _ in range(3)]
    assert equal([registered(x).clone() for _ in range(3)], eager)
    assert not equal(eager[:1], eager[1:2])
    with pytest.raises(InputError, match="a generator that is not registered with the graph"):
        graph(partial(drawn_from, generator), tensor(64))
    silent = TapeBackend(repeat_unregistered=True)
    repeats = graph(partial(drawn_from, generator), tensor(64), backend=silent)
    assert equal([repeats(x).clone()], [repeats(x).clone()]), "the same mask at every replay"
    with pytest.raises(InputError, match="state of a random generator was set before"):
        graph(partial(under_a_tracker, state=torch.get_rng_state()), tensor(64))
