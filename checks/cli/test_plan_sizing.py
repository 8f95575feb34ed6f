"""What graphs have to hold for a plan: counted by hand, and as the trainer pads its packs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ringproof.errors import InputError
from ringproof.reference.graphs.sizing import GraphCapacity, graph_capacity, largest, static_inputs
from ringproof.reference.packing.capacity import RankCapacity
from ringproof.reference.planning.plan import Group, Metrics, Microbatch, Plan
from ringproof.reference.training.schedules import StepPlan

METRICS = Metrics("seconds", 1.0, 1.0, 0.0, {}, 0.0)
# Four ranks of 16 rows: sequences of 3 to 20 tokens, one group without any.
BY_HAND = Plan(
    ranks=4,
    max_tokens_per_rank=17,
    cp_sizes=(1, 2, 4),
    lengths=(20, 3, 5, 6, 7),
    microbatches=(
        Microbatch((Group(0, 2, (0,)), Group(2, 1, (1, 2)), Group(3, 1, ()))),
        Microbatch((Group(0, 2, (3,)), Group(2, 2, (4,)))),
    ),
    metrics=METRICS,
)


def by_hand(**changed: Any) -> GraphCapacity:
    return graph_capacity(BY_HAND, rank_multiple=2, slots=1, **changed)


def step_of(made: Plan, capacity: RankCapacity | None) -> StepPlan:
    """The plan as the trainer computes it."""
    lengths = tuple(made.lengths)
    return StepPlan(
        plan=made,
        documents=tuple(range(len(lengths))),
        computed=lengths,
        partition="zigzag",
        rank_multiple=2,
        capacity=capacity,
    )


def test_a_plan_counted_by_hand() -> None:
    found = by_hand()
    assert (found.rows, found.fullest, found.entries) == (16, 2, 3)
    assert dict(found.groups) == {4: 0, 2: 3, 1: 1}
    assert found.sizes == (4, 2, 1)
    assert found.never_used == (4,)
    assert found.microbatches == 2
    assert found.tokens == 20 + 3 + 5 + 6 + 7
    assert found.packed_rows == 20 + 4 + 6 + 8 + 8
    assert found.capacity_rows == 2 * 4 * 16
    assert found.times_the_rows == pytest.approx(128 / 46)
    assert found.padding == pytest.approx(1 - 41 / 128)
    assert found.packed_padding == pytest.approx(1 - 41 / 46)
    assert (found.pairs, found.upstream_pairs) == (3, 3)


def test_the_trainer_computes_that_many_rows() -> None:
    """Its own code pads the packs: with capacity, and without (one chunk for an idle rank)."""
    found = by_hand()
    capacity = RankCapacity(found.rows, found.entries)
    assert step_of(BY_HAND, capacity).rows == found.capacity_rows
    assert step_of(BY_HAND, None).rows == found.packed_rows + 2
    with pytest.raises(InputError, match="graph_sequences: a pack of CP size 1 has 3 entries"):
        _ = step_of(BY_HAND, replace(capacity, entries=found.entries - 1)).rows
    with pytest.raises(InputError, match="graph_rows: a pack of CP size 2 has 10 rows"):
        _ = step_of(BY_HAND, replace(capacity, rows=8)).rows


def test_a_limit_of_the_planner_is_the_capacity() -> None:
    assert by_hand(max_sequences=5).entries == 5 + 1
    assert by_hand(max_sequences=5).fullest == 2


def test_several_batches_take_the_largest_of_each() -> None:
    other = replace(by_hand(), fullest=7, entries=8, microbatches=1, tokens=9)
    both = largest([by_hand(), other])
    assert (both.batches, both.fullest, both.entries, both.microbatches) == (2, 7, 8, 2)
    assert both.groups == {4: 0, 2: 6, 1: 2}
    assert both.tokens == by_hand().tokens + 9
    assert both.capacity_rows == 2 * by_hand().capacity_rows
    for unlike in ([], [by_hand(), replace(other, rows=8)]):
        with pytest.raises(InputError, match="capacities"):
            largest(unlike)


def test_bytes_of_static_inputs() -> None:
    """The numbers of the skill: 4,096 rows of 4,096 in bf16, TP 2, 32 entries."""
    sizes = {8: 0, 4: 0, 2: 0, 1: 1}
    capacity = replace(by_hand(), rows=4096, entries=32, groups=sizes, slots=2)
    found = static_inputs(capacity, hidden=4096, rotary=128, layers=18, tp=2)
    assert (found.hidden, found.metadata, found.mask) == (16 << 20, 528, 2048)
    assert found.rope == 30 << 20
    assert found.copies == 18 * 2 * 4
    assert found.total == found.copies * ((16 << 20) + 528 + 2048) + (30 << 20)
    assert static_inputs(capacity, hidden=4096, rotary=0, layers=18).rope == 0


def test_a_pipeline_of_the_pull_request_has_a_slot_for_each_sequence() -> None:
    assert by_hand(pp=2).upstream_slots == 5
    assert by_hand(pp=2).upstream_pairs == 5 * 3
