"""What the graph bank skill says of this repository's own bank, where no other test does."""

from __future__ import annotations

from checks.graphs.captures import equal
from checks.graphs.test_bank import banked, batches, stepped
from checks.model.whole_model import whole
from ringproof.reference.model.config import preset
from smoke.model_batches import group_of_one


def break_slot(bank, number):
    """Leave the last operation out of each forward of a slot."""
    for graph in bank._slots[number].graphs.values():
        graph._segments[0].operations = graph._segments[0].operations[:-1]


def replayed_slots(bank):
    return {key.slot for key, count in bank.replays.items() if count.forward}


def in_flight(stage, given, bank):
    """Gradients of microbatches that all wait before the first backward."""
    stage.zero_grad()
    losses = [stage(batch.tokens, bank.enter(batch)).value for batch in given]
    for loss in losses:
        loss.backward()
    return [loss.detach() for loss in losses] + [
        p.grad.clone() for p in stage.parameters() if p.grad is not None
    ]


def test_an_entry_that_is_never_replayed_proves_nothing():
    """Two slots, the second broken: equal to eager for as long as no microbatch takes it."""
    with group_of_one() as alone:
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
