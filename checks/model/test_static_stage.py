"""Whole models on microbatches of fixed capacity: the same numbers, and nothing of a pack baked in.

One rank, float64. The static way is compared with the eager one, which takes integers of the pack.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch

from checks.graphs.captures import graph
from checks.model.whole_model import gradients, run, whole, worst
from ringproof.errors import InputError
from ringproof.reference.attention import plan as attention_plan
from ringproof.reference.model.batch import PackedBatch, Totals
from ringproof.reference.model.config import ModelConfig, preset
from ringproof.reference.model.static import (
    batch_tensors,
    load,
    static_batch,
    with_metadata,
)
from ringproof.reference.packing.sequences import Capacity, pack
from ringproof.reference.topology.dynamic import ContextParallelGroup
from smoke.model_batches import (
    capacity_batch,
    random_sequences,
    rank_batch,
)

TOLERANCE = 1e-10
CAPACITY = Capacity(rows=112, entries=6)
PACKS = ((13, 1, 32, 7), (40, 5, 21))
"""Lengths of two packs; both leave a tail."""
NAMES = ("qwen3-tiny", "moonlight-tiny")
CAPTURED = "qwen3-tiny"  # a mixture of experts sends rows by data


def model(name: str) -> ModelConfig:
    return replace(preset(name), mtp_depths=1)


def batch_of(lengths: tuple[int, ...], group: ContextParallelGroup, **options: Any) -> PackedBatch:
    sequences = random_sequences(lengths, seed=sum(lengths))
    return capacity_batch(sequences, group, options.pop("capacity", CAPACITY), depths=1, **options)


def eager(lengths: tuple[int, ...], group: ContextParallelGroup) -> PackedBatch:
    """The same sequences without capacity, tail and metadata."""
    sequences = random_sequences(lengths, seed=sum(lengths))
    return rank_batch(sequences, group, depths=1, multiple=16)


def same(
    found: tuple[float, dict[str, torch.Tensor]], wanted: tuple[float, dict[str, torch.Tensor]]
) -> bool:
    differs = abs(found[0] - wanted[0]) / wanted[0]
    return differs <= TOLERANCE and worst(found[1], wanted[1]) <= TOLERANCE


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_static_microbatch_computes_each_pack(
    name: str, recompute: bool, alone: ContextParallelGroup
) -> None:
    """One set of tensors, filled with one pack after the other; no integer of a pack is left."""
    static = static_batch(batch_of(PACKS[0], alone))
    assert (static.packed.tokens, static.totals) == (0, Totals(0, (0, 0)))
    for lengths in (*PACKS, (96,), (16,) * 5):
        wanted = run(whole(model(name)), eager(lengths, alone))
        load(static, batch_of(lengths, alone))
        assert same(run(whole(model(name), recompute=recompute), static), wanted)


def test_a_pack_without_a_token_is_computed(alone: ContextParallelGroup) -> None:
    """A rank that has nothing to do in a microbatch: zero loss and zero gradients, no NaN."""
    batch = replace(batch_of((), alone), totals=Totals(7, (5, 4)))
    loss, found = run(whole(model("qwen3-tiny")), with_metadata(batch, CAPACITY))
    assert loss == 0
    assert all((gradient == 0).all() for gradient in found.values())


def replays_compute_other_packs(name: str, alone: ContextParallelGroup, *, static: bool) -> bool:
    """What a CUDA graph does: recorded with one pack, run again over the tensors of others.

    The tape refuses whatever reads a value back.
    """
    stage, first = whole(model(name)), batch_of(PACKS[0], alone)
    held = static_batch(first)
    load(held, first)
    given = replace(held, packed=first.packed, totals=first.totals)  # what a capture may bake in
    if not static:
        given = replace(given, metadata=None)
    parameters = dict(stage.named_parameters())
    recorded = graph(lambda: stage(given.tokens, given).value, parameters=parameters)
    right = []
    for lengths in (*PACKS[::-1], (96,)):
        load(held, batch_of(lengths, alone))
        stage.zero_grad()
        value = recorded()
        value.backward()
        found = float(value.detach()), gradients(stage)
        right.append(same(found, run(whole(model(name)), eager(lengths, alone))))
    assert static or right[1], "the pack of the capture is computed in any case"
    return all(right)


def test_operations_of_one_pack_compute_another(alone: ContextParallelGroup) -> None:
    assert replays_compute_other_packs(CAPTURED, alone, static=True)


def test_operations_of_the_eager_way_differ(alone: ContextParallelGroup) -> None:
    """Negative control."""
    assert not replays_compute_other_packs(CAPTURED, alone, static=False)


# Bad input


def test_microbatches_that_are_no_replay_are_refused(alone: ContextParallelGroup) -> None:
    first = batch_of(PACKS[0], alone)
    static = static_batch(first)
    before = {name: tensor.clone() for name, tensor in batch_tensors(static).items()}
    other = batch_of(PACKS[1], alone)
    wrong = {
        "group": replace(other, group=ContextParallelGroup(alone.flat)),
        "comm_type": replace(other, comm_type="all_gather"),
        "partition": replace(other, partition="contiguous"),
        "capacity": batch_of(PACKS[1], alone, capacity=Capacity(rows=112, entries=7)),
        "metadata": replace(other, metadata=None),
        "batch.tokens": replace(other, tokens=None),
        "batch.metadata.predictions": with_metadata(
            replace(other, metadata=None, totals=Totals(9, (1, 2, 3))), CAPACITY
        ),
    }
    for field, batch in wrong.items():
        with pytest.raises(InputError, match=field):
            load(static, batch)
    for name, tensor in batch_tensors(static).items():
        assert torch.equal(tensor, before[name])


def test_a_pack_of_another_size_is_refused(alone: ContextParallelGroup) -> None:
    """Its tail would be nobody's."""
    batch = rank_batch(random_sequences((5, 3)), alone, multiple=4)
    with pytest.raises(InputError, match="cover the tail with a dummy"):
        with_metadata(batch, Capacity(rows=16, entries=2))
    batch = batch_of(PACKS[0], alone)
    with pytest.raises(InputError, match="metadata"):
        replace(batch, packed=pack([5], multiple=16), **dict.fromkeys(("tokens", "future")))


PLANNINGS = (
    (attention_plan, "step_table"),
    (attention_plan, "masked_steps"),
)
"""Functions that take host time in the number of sequences or of ranks."""


def counted(function: Callable[[], Any]) -> dict[str, int]:
    """How often a function plans, by the names of :data:`PLANNINGS`; others were not called."""
    with ExitStack() as stack:
        spies = {
            name: stack.enter_context(patch.object(module, name, wraps=getattr(module, name)))
            for module, name in PLANNINGS
        }
        function()
    return {name: spy.call_count for name, spy in spies.items() if spy.called}


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize(
    ("name", "plannings"),
    [
        ("qwen3-tiny", {"step_table": 1}),
        ("moonlight-tiny", {"step_table": 1}),
    ],
)
def test_a_microbatch_is_planned_once(
    name: str, plannings: dict[str, int], recompute: bool, alone: ContextParallelGroup
) -> None:
    stage = whole(preset(name), recompute=recompute)
    for lengths in ((13, 1), (7, 24)):
        batch = rank_batch(random_sequences(lengths), alone)
        assert counted(partial(run, stage, batch)) == plannings


def test_a_static_microbatch_is_planned_once(alone: ContextParallelGroup) -> None:
    stage = whole(preset("qwen3-tiny"))
    batch = rank_batch(random_sequences((13, 1)), alone)
    capacity = Capacity(rows=batch.packed.rows, entries=len(batch.packed.lengths))
    static = with_metadata(batch, capacity)
    assert counted(lambda: run(stage, static)) == {"masked_steps": 1}
    assert counted(lambda: run(stage, static)) == {}
