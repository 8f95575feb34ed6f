"""Pitfalls of graphs under Dynamic CP, injected one by one into layers on the tape.

Each test does it right first, bit by bit as eager. Then it makes the mistake, and shows what a user
gets: the refusal by name, and what a device would have computed in silence, which is what the
tape's faithful mode computes.
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
from ringproof.reference.attention.attention import context_parallel_attention
from ringproof.reference.attention.masks import RowMask
from ringproof.reference.graphs.tape.backend import TapeBackend
from ringproof.reference.graphs.tape.segment import UndefinedBehaviour
from ringproof.reference.model import mla
from ringproof.reference.model.attention import rotation
from ringproof.reference.model.batch import PackedBatch
from ringproof.reference.model.static import batch_tensors, load, static_batch
from ringproof.reference.packing.capacity import to_capacity
from ringproof.reference.packing.sequences import Capacity, pack
from ringproof.reference.topology.dynamic import ContextParallelGroup

FAITHFUL = TapeBackend(UndefinedBehaviour(faithful=True))
SMALLER = Capacity(rows=16, entries=4)


def is_finite(found: list[torch.Tensor]) -> bool:
    return all(bool(one.isfinite().all()) for one in found)


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


def test_rope_tables_live_as_long_as_the_graphs(alone: ContextParallelGroup) -> None:
    """A cache of one table: the capture of the next CP size drives the former table out."""
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
    assert equal(results(captured(TapeBackend(), retained=True), x, weights), wanted)
    broken = captured(TapeBackend(), retained=False)
    message = r"slot 0, forward: dangling address: `cosines` float64 \[32, 1, \d+\], first used at"
    with pytest.raises(InputError, match=rf"{message} graphs/test_pitfalls.py:\d+, was freed"):
        broken(rows(9))
    assert not is_finite(results(captured(FAITHFUL, retained=False), x, weights))


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
    assert is_finite(found)


@pytest.mark.parametrize("baked", [False, True])
def test_a_pack_in_python_integers_is_baked_in(baked: bool, alone: ContextParallelGroup) -> None:
    """Eager code takes boundaries from integers; a capture of it computes its own pack for ever."""
    static = static_batch(microbatch(PACKS[0], alone))
    seen = replace(microbatch(PACKS[0], alone), metadata=None) if baked else static
    slot = capture_layer(layer_of("qwen3-tiny"), seen)
    slot.static = static
    assert agrees(slot, microbatch(PACKS[1], alone)) == (not baked)


def test_a_branch_on_pad_between_seqs_is_baked_in() -> None:
    """Captured where no sequence had padding, a graph has no branch for it. Nothing refuses it."""
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
    assert equal([always(*given)], wanted)
    found = [baked(*given)]
    assert is_finite(found) and not equal(found, wanted)


def slot_steps(slots: list[LayerSlot], batches: list[PackedBatch]) -> list[Callable[..., Any]]:
    """A microbatch takes the slot of its number modulo the number of slots."""
    return [
        partial(slots[number % len(slots)].run, batch=batch) for number, batch in enumerate(batches)
    ]


def test_a_slot_in_flight_is_not_used_again(alone: ContextParallelGroup) -> None:
    """As on the first of two stages: two microbatches in flight, and room for one.

    Nothing but the numbers tells.
    """
    layer = layer_of("qwen3-tiny")
    batches = [microbatch(lengths, alone) for lengths in PACKS]
    eager = [lambda x, batch=batch: layer(x, batch)[0] for batch in batches]
    wanted = one_forward_one_backward(eager, layer)

    def with_slots(count: int, backend: TapeBackend | None = None) -> list[torch.Tensor]:
        slots = slots_for(layer, batches[0], count, backend)
        return one_forward_one_backward(slot_steps(slots, batches), layer)

    assert equal(with_slots(2), wanted)
    message = "layer 0, slot 0: its activations are gone: replayed again since this forward; give"
    with pytest.raises(InputError, match=f"^{message} each microbatch in flight a slot of its own"):
        with_slots(1)
    found = with_slots(1, FAITHFUL)
    assert is_finite(found) and not equal(found, wanted)


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


def test_questions_about_cu_seqlens_synchronise() -> None:
    """Whether there are gaps, how many tokens, how long the longest: all of it is on the device."""
    packed = pack(PACKS[0], multiple=8)
    static = [torch.tensor(one) for one in (packed.cu_seqlens, packed.cu_seqlens_padded)]
    for name, function in SYNCHRONISE.items():
        said = rf"part, forward: {re.escape(name)} at graphs/test_pitfalls.py:.*"
        with pytest.raises(InputError, match=f"{said}synchronises the device during capture"):
            graph(function, tensor(4), *static)
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
    drawn = torch.rand(x.shape, generator=generator, dtype=x.dtype, device=x.device)
    return x * (drawn > 0.5)


def test_dropout_needs_a_registered_generator() -> None:
    """With a generator that no graph was told of, every replay drops what the first one dropped."""
    generator, other = (torch.Generator().manual_seed(seed) for seed in (3, 3))
    x, function = tensor(64, seed=1), partial(drawn_from, generator)
    registered = graph(function, tensor(64), backend=TapeBackend(generators=(generator,)))
    wanted = [drawn_from(other, x) for _ in range(3)]
    assert equal([registered(x).clone() for _ in range(3)], wanted)
    with pytest.raises(InputError, match="a generator that is not registered with the graph"):
        graph(function, tensor(64))
    silent = graph(function, tensor(64), backend=TapeBackend(repeat_unregistered=True))
    found = [silent(x).clone() for _ in range(3)]
    assert equal(found[:1], found[1:2]) and not equal(found, wanted)
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
    dangles = r"dangling address: `registered` float64 \[4\], first used at graphs/test_pitfalls.py"
    deadline = time.monotonic() + 5
    with pytest.raises(InputError, match=rf"{dangles}:\d+, was freed or moved after the capture"):
        while time.monotonic() < deadline:
            # A thread of gloo lets the old memory go some time after its collective has answered.
            time.sleep(0.01)
            graphed(given[0])
    assert not is_finite(results(silent, given))


# Rows that belong to no sequence: undefined in a replay, and NaN in a gradient.


class WritesInside(torch.autograd.Function):
    """A kernel for packed rows, as fused RoPE: writes those inside of the padded boundaries."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, cu_seqlens_padded: torch.Tensor) -> torch.Tensor:
        inside = torch.arange(len(x), device=x.device) < cu_seqlens_padded[-1]
        ctx.save_for_backward(inside)
        return torch.where(inside.unsqueeze(1), -x, torch.empty_like(x))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (inside,) = ctx.saved_tensors
        return torch.where(inside.unsqueeze(1), -gradient, 0.0), None


@pytest.mark.parametrize("dummy", [True, False])
def test_rows_past_the_last_boundary_are_undefined(dummy: bool) -> None:
    """The loss masks padding, so it stays finite; the weight gradient has 0 times NaN."""
    packed = pack(PACKS[0], multiple=8)
    covered = to_capacity(packed, CAPACITY).cu_seqlens_padded
    hidden = (*packed.cu_seqlens_padded, *packed.cu_seqlens_padded[-1:] * 2)
    assert (covered[-1], hidden[-1], len(covered)) == (32, 16, len(hidden))
    weight, real = tensor(6, 3, seed=1, grad=True), torch.arange(32) < 16

    def function(x: torch.Tensor, boundaries: torch.Tensor) -> torch.Tensor:
        rotated = WritesInside.apply(x, boundaries)
        return torch.where(real.unsqueeze(1), rotated @ weight, 0.0)

    static = torch.tensor(covered, dtype=torch.int32)
    graphed = graph(function, tensor(32, 6, grad=True), static, parameters={"weight": weight})
    given = [tensor(32, 6, seed=2, grad=True), static.clone()]
    wanted = results(function, given, [weight])
    given[1] = torch.tensor(covered if dummy else hidden, dtype=torch.int32)
    output, input_gradient, weight_gradient = results(graphed, given, [weight])
    assert torch.equal(output, wanted[0])
    assert torch.equal(input_gradient, wanted[1])
    assert torch.equal(weight_gradient, wanted[2]) == dummy
    assert bool(weight_gradient.isnan().all()) == (not dummy)


def test_undefined_rows_poison_the_gradients_of_attention(alone: ContextParallelGroup) -> None:
    """A captured ring whose padded keys are not blanked: a weight of zero does not keep NaN out."""
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
    assert equal(results(graph(attention, *inputs(batch, 1)), given), results(attention, given))
    with patch.object(RowMask, "of_keys", lambda self, x: x):
        broken = graph(attention, *inputs(batch, 1))
    assert not is_finite(results(broken, given))


class ClearsBySlice(torch.autograd.Function):
    """A ring's backward that clears rows past the last boundary: up to TE 2.17 by a slice."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, cu_seqlens_padded: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(cu_seqlens_padded)
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (boundaries,) = ctx.saved_tensors
        gradient = gradient * 2
        gradient[boundaries[-1] :].zero_()
        return gradient, None


class ClearsByMask(ClearsBySlice):
    """Since TE 2.18."""

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (boundaries,) = ctx.saved_tensors
        past = torch.arange(len(gradient), device=gradient.device) >= boundaries[-1]
        return (gradient * 2).masked_fill(past.unsqueeze(1), 0.0), None


def test_clearing_rows_by_a_number_of_the_device_is_refused() -> None:
    static = [tensor(8, 2, grad=True), torch.tensor([0, 4, 6])]
    line = ClearsBySlice.backward.__code__.co_firstlineno + 4
    with pytest.raises(
        InputError,
        match=r"part, backward: (\.item\(\)|a tensor as a Python index) at "
        rf"graphs/test_pitfalls.py:{line}: "
        "the host reads a value, which synchronises",
    ):
        graph(ClearsBySlice.apply, *static)
    given = [tensor(8, 2, seed=4, grad=True), torch.tensor([0, 2, 4])]
    graphed = graph(ClearsByMask.apply, *static)
    assert equal(results(graphed, given), results(ClearsBySlice.apply, given))
