"""A graph bank on one rank: replays equal eager steps, and what it refuses leaves eager intact."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from checks.graphs.captures import equal
from checks.model.whole_model import whole
from ringproof.errors import InputError
from ringproof.reference.graphs.bank import BankOptions, GraphBank, capture_bank
from ringproof.reference.graphs.scopes import Part, parts_of
from ringproof.reference.graphs.tape.backend import TapeBackend
from ringproof.reference.model.batch import PackedBatch
from ringproof.reference.model.config import preset
from ringproof.reference.model.stage import Stage
from ringproof.reference.packing.sequences import Capacity
from ringproof.reference.topology.dynamic import ContextParallelGroup
from smoke.model_batches import capacity_batch, random_sequences

CAPACITY = Capacity(rows=64, entries=5)
LENGTHS = ((13, 1, 30), (5, 5, 3, 9), (31,))


def batches(group: ContextParallelGroup, capacity: Capacity = CAPACITY) -> list[PackedBatch]:
    return [
        capacity_batch(random_sequences(lengths, seed=seed), group, capacity)
        for seed, lengths in enumerate(LENGTHS)
    ]


def options(**changed: Any) -> BankOptions:
    settings: dict[str, Any] = {
        "backend": TapeBackend(),
        "slots": 1,
        "warm_up": 1,
        "shape": (CAPACITY.rows, 64),
        "dtype": torch.float64,
        "device": torch.device("cpu"),
    }
    return BankOptions(**{**settings, **changed})


def banked(
    stage: Stage, scope: str, group: ContextParallelGroup, **changed: Any
) -> tuple[GraphBank, tuple[Part, ...]]:
    parts = parts_of(stage, scope)
    return capture_bank(parts, batches(group)[:1], options(**changed)), parts


def stepped(stage: Stage, given: list[PackedBatch], bank: GraphBank | None) -> list[torch.Tensor]:
    """Loss of each microbatch, then the gradients that they add up to."""
    stage.zero_grad()
    losses = []
    for batch in given:
        assert batch.tokens is not None
        output = stage(batch.tokens, batch if bank is None else bank.enter(batch))
        losses.append(output.value.detach().clone())
        output.value.backward()
    return losses + [p.grad.clone() for p in stage.parameters() if p.grad is not None]


@pytest.mark.parametrize(
    ("name", "scope", "recompute", "count"),
    [
        ("qwen3-tiny", "layer", False, 4),
        ("qwen3-tiny", "layer", True, 4),
        ("qwen3-tiny", "attn", False, 4),
        ("moonlight-tiny", "attn", False, 4),
        ("moonlight-tiny", "router", False, 3),
    ],
)
def test_a_step_equals_the_eager_one(
    name: str, scope: str, recompute: bool, count: int, alone: ContextParallelGroup
) -> None:
    stage = whole(preset(name), recompute=recompute)
    given = batches(alone)
    expected = stepped(stage, given, None)
    bank, parts = banked(stage, scope, alone)
    assert len(parts) == len(bank.replays) == count
    assert equal(stepped(stage, given, bank), expected)
    assert {(r.forward, r.backward) for r in bank.replays.values()} == {(3, 3)}
    assert (bank.replayed, bank.eager) == ({1: 3}, 0)
    assert all(memory.private > 0 for memory in bank.memory.values())
    for parameter in stage.parameters():  # an optimizer's step needs no new capture
        parameter.data.mul_(1.01)
    again = stepped(stage, given, bank)
    bank.reset()
    assert equal(stepped(stage, given, None), again)
    assert not equal(again, expected)


def test_a_lost_operation_is_seen(alone: ContextParallelGroup) -> None:
    """Negative control."""
    stage, given = whole(preset("qwen3-tiny")), batches(alone)
    bank, _ = banked(stage, "layer", alone)
    expected = stepped(stage, given, None)
    break_slot(bank, 0)
    assert not equal(stepped(stage, given, bank), expected)


def test_metadata_that_are_not_copied_in_are_seen(
    alone: ContextParallelGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: every replay computes the pack of the capture."""
    stage, given = whole(preset("qwen3-tiny")), batches(alone)
    expected = stepped(stage, given, None)
    bank, _ = banked(stage, "layer", alone)
    monkeypatch.setattr("ringproof.reference.graphs.bank.load", lambda static, batch: None)
    assert not equal(stepped(stage, given, bank), expected)


@pytest.mark.parametrize("slots", [2, 3])
def test_a_slot_in_flight_is_not_given_away(slots: int, alone: ContextParallelGroup) -> None:
    """1F1B keeps several microbatches waiting; one more than there are slots is refused."""
    stage, given = whole(preset("qwen3-tiny")), batches(alone)
    expected = stepped(stage, given, None)
    bank, _ = banked(stage, "layer", alone, slots=slots)
    stage.zero_grad()
    entered = [bank.enter(given[0])]
    waiting = [stage(given[0].tokens, entered[0]).value]
    for batch in given[1:slots]:
        entered.append(bank.enter(batch))
        waiting.append(stage(batch.tokens, entered[-1]).value)
    assert len({id(one) for one in entered}) == slots
    with pytest.raises(InputError, match=f"graph_slots: {slots} microbatches wait"):
        bank.enter(given[-1])
    waiting.pop(0).backward()
    assert bank.enter(given[-1]).metadata is entered[0].metadata
    if slots == 3:
        for one in waiting:
            one.backward()
        found = [p.grad for p in stage.parameters() if p.grad is not None]
        assert equal(found, expected[3:])


def test_overflow_may_be_eager(alone: ContextParallelGroup) -> None:
    stage, given = whole(preset("qwen3-tiny"), recompute=True), batches(alone)
    expected = stepped(stage, given[:2], None)
    bank, _ = banked(stage, "layer", alone, overflow="eager")
    stage.zero_grad()
    losses = [stage(batch.tokens, bank.enter(batch)).value for batch in given[:2]]
    for loss in losses:
        loss.backward()
    found = [p.grad for p in stage.parameters() if p.grad is not None]
    assert equal([*(loss.detach() for loss in losses), *found], expected)
    assert (bank.replayed, bank.eager) == ({1: 1}, 1)
    bank.begin()
    assert (bank.replayed, bank.eager) == ({}, 0)
    assert bank.enter(replace(given[0], metadata=None)).metadata is None
    assert bank.eager == 1


def test_another_group_or_capacity_is_refused(alone: ContextParallelGroup) -> None:
    stage = whole(preset("qwen3-tiny"))
    bank, _ = banked(stage, "layer", alone)
    other = ContextParallelGroup(alone.flat)  # the same ranks, but not what was captured
    with pytest.raises(InputError, match=r"group: .* another CP group, of the same ranks \("):
        bank.enter(batches(other)[0])
    with pytest.raises(InputError, match=r"capacity: the static microbatch has Capacity\(rows=64"):
        bank.enter(batches(alone, replace(CAPACITY, rows=128))[0])


def test_a_cp_size_that_was_not_captured(alone: ContextParallelGroup) -> None:
    of_two: Any = SimpleNamespace(group=SimpleNamespace(size=2), metadata=object())
    stage = whole(preset("qwen3-tiny"))
    bank, _ = banked(stage, "attn", alone)
    with pytest.raises(InputError, match="cp_size: graphs were captured for 1 and not for 2"):
        bank.enter(of_two)
    bank.reset()
    bank, _ = banked(stage, "attn", alone, overflow="eager")
    assert bank.enter(of_two) is of_two
    assert bank.eager == 1


class Failing(TapeBackend):
    """Captures one slot and raises at the next."""

    def new_pool(self) -> Any:
        pools.append(super().new_pool())
        if len(pools) > 1:
            raise MemoryError("no more")
        return pools[0]


pools: list[Any] = []


def test_an_abort_leaves_eager_intact(alone: ContextParallelGroup) -> None:
    stage, given = whole(preset("qwen3-tiny")), batches(alone)
    expected = stepped(stage, given, None)
    pools.clear()
    with pytest.raises(MemoryError):
        banked(stage, "layer", alone, slots=2, backend=Failing())
    assert len(pools) == 2
    assert not any("forward" in layer.__dict__ for layer in stage.layers.values())
    assert equal(stepped(stage, given, None), expected)


def test_scopes_that_cannot_be() -> None:
    moonlight = whole(preset("moonlight-tiny"))
    with pytest.raises(InputError, match="graph_scope: layer 1 has experts"):
        parts_of(moonlight, "layer")
    assert parts_of(whole(preset("qwen3-tiny")), "router") == ()


def test_the_key_says_all(alone: ContextParallelGroup) -> None:
    bank, _ = banked(whole(preset("qwen3-tiny")), "attn", alone, slots=2)
    keys = list(bank.replays)
    assert len(set(keys)) == 8
    assert str(keys[0]) == "layers.0.attention, slot 0, CP size 1"
    assert {(key.group, key.capacity, key.dtype, key.recompute) for key in keys} == {
        ((0,), CAPACITY, torch.float64, False)
    }


def break_slot(bank: GraphBank, number: int) -> None:
    """Leave the last operation out of each forward of a slot."""
    graphs: Any = bank._slots[number].graphs.values()
    for graph in graphs:
        graph._segments[0].operations = graph._segments[0].operations[:-1]


def replayed_slots(bank: GraphBank) -> set[int]:
    return {key.slot for key, count in bank.replays.items() if count.forward}


def in_flight(stage: Stage, given: list[PackedBatch], bank: GraphBank) -> list[torch.Tensor]:
    """Gradients of microbatches that all wait before the first backward."""
    stage.zero_grad()
    losses = [stage(batch.tokens, bank.enter(batch)).value for batch in given]
    for loss in losses:
        loss.backward()
    return [loss.detach() for loss in losses] + [
        p.grad.clone() for p in stage.parameters() if p.grad is not None
    ]


def test_an_entry_that_is_never_replayed_proves_nothing(alone: ContextParallelGroup) -> None:
    """Two slots, the second broken: equal to eager for as long as no microbatch takes it."""
    stage, given = whole(preset("qwen3-tiny")), batches(alone)[:2]
    expected = stepped(stage, given, None)
    bank, _ = banked(stage, "layer", alone, slots=2)
    assert equal(in_flight(stage, given, bank), expected)
    assert replayed_slots(bank) == {0, 1}
    bank.reset()
    bank, _ = banked(stage, "layer", alone, slots=2)
    break_slot(bank, 1)
    assert equal(stepped(stage, given, bank), expected), "nobody sees it"
    assert replayed_slots(bank) == {0}, "but the counts do"
    assert not equal(in_flight(stage, given, bank), expected)
    assert replayed_slots(bank) == {0, 1}
