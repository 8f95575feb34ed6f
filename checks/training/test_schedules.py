"""The plan of a step: legal under every schedule, the same everywhere, refused by name."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.training.steps import random_lengths, random_schedule
from ringproof.errors import InputError
from ringproof.reference.model.config import PRESETS
from ringproof.reference.planning import Group, Microbatch
from ringproof.reference.training.schedules import (
    MultiplyAdds,
    Schedule,
    StepPlan,
    check_plan,
    plan_digest,
    plan_step,
)


def checked(step: StepPlan, schedule: Schedule) -> None:
    check_plan(step, "plan", multiple=schedule.microbatch_multiple)


@given(st.integers(0, 2**32))
def test_every_schedule_makes_legal_plans(seed: int) -> None:
    draw = random.Random(seed)
    schedule = random_schedule(draw)
    lengths = random_lengths(draw, schedule.domain.longest)
    step = plan_step(lengths, schedule)
    checked(step, schedule)
    assert list(step.plan.lengths) == lengths
    assert {g.size for m in step.plan.microbatches for g in m.groups} <= set(schedule.sizes)
    assert 0 <= step.plan.metrics.padding_fraction < 1
    assert sum(step.plan.metrics.cp_histogram.values()) == len(lengths)
    packs = [step.pack(group) for m in step.plan.microbatches for group in m.groups]
    assert step.rows == sum(sum(pack.padded_lengths) for pack in packs) >= step.tokens


def test_padded_sequences_are_as_long_as_the_longest() -> None:
    schedule = Schedule(name="padded", ranks=4, cp_size=2, max_tokens_per_rank=64)
    step = plan_step([3, 50, 20, 7], schedule)
    assert step.computed == (50, 50, 50, 50)
    assert step.pack(step.group_of(0, 0)).lengths == (50, 50)
    assert step.plan.metrics.padding_fraction == 1 - 80 / (4 * 52)
    fixed = plan_step([3, 50, 20, 7], replace(schedule, padded_length=100))
    assert fixed.computed == (100,) * 4
    assert len(fixed.plan.microbatches) == 2


def test_forced_sizes_take_turns_and_all_have_sequences() -> None:
    sizes = (1, 2, 4, 8)
    schedule = Schedule(name="dynamic", ranks=8, max_tokens_per_rank=256, forced_sizes=sizes)
    step = plan_step([100, 30, 7, 200, 64, 90], schedule)
    assert [{g.size for g in m.groups} for m in step.plan.microbatches] == [{1}, {2}, {4}, {8}]
    assert step.plan.metrics.cp_histogram == {1: 2, 2: 2, 4: 1, 8: 1}
    # A sequence waits for a group that holds it.
    schedule = Schedule(name="dynamic", ranks=4, max_tokens_per_rank=16, forced_sizes=(1, 4))
    step = plan_step([64, 64, 64], schedule)
    checked(step, schedule)
    assert step.plan.metrics.cp_histogram == {4: 3}
    assert len(step.plan.microbatches) == 6


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_costs_grow_with_length_and_leave_short_sequences_alone(preset: str) -> None:
    model = MultiplyAdds.of_model(PRESETS[preset])
    assert model.per_token > 64 * 256 and model.per_pair > 0
    schedule = Schedule(
        name="dynamic", ranks=8, max_tokens_per_rank=512, cp_sizes=(1, 2, 4, 8), model=model
    )
    step = plan_step([4096, *[16] * 8], schedule)
    sizes = {s: g.size for m in step.plan.microbatches for g in m.groups for s in g.sequences}
    assert sizes[0] == 8 and {sizes[s] for s in range(1, 9)} == {1}


def test_costs_count_matrix_products() -> None:
    """Qwen3, by hand: four layers and the head; a pair meets in each head's keys and values."""
    model = MultiplyAdds.of_model(PRESETS["qwen3-tiny"])
    assert model.per_token == 4 * (64 * 2 * (8 + 4) * 16 + 3 * 64 * 128) + 64 * 256
    assert model.per_pair == 4 * 2 * 8 * 16


@pytest.mark.parametrize("name", ["padded", "packed", "dynamic"])
def test_a_sequence_that_does_not_fit_is_named(name: str) -> None:
    schedule = Schedule(name=name, ranks=4, cp_size=2, cp_sizes=(1, 2), max_tokens_per_rank=64)
    plan_step([128], schedule)
    with pytest.raises(InputError) as refusal:
        plan_step([5, 129], schedule, names=["a.py", "b.py"])
    assert str(refusal.value).startswith("b.py: 129 tokens are longer than the 128 tokens that the")
    with pytest.raises(InputError, match=r"sequence 1: .* longer than the 128 tokens"):
        plan_step([5, 129], schedule)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "ragged"}, "schedule: 'ragged' is unknown"),
        (
            {"name": "packed", "forced_sizes": (1,)},
            "forced_sizes: the packed schedule has one size",
        ),
        ({"name": "packed", "cp_size": 3}, "cp_sizes: 3 does not divide"),
        ({"name": "dynamic", "partition": "striped"}, "partition: 'striped' is unknown"),
        ({"name": "dynamic", "max_tokens_per_rank": 1}, "max_tokens_per_rank: 1 is less than"),
    ],
)
def test_bad_schedules_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Schedule(**{"ranks": 4, "max_tokens_per_rank": 64, **fields})


def test_padded_lengths_that_do_not_fit_are_refused() -> None:
    schedule = Schedule(name="padded", ranks=2, cp_size=2, max_tokens_per_rank=64)
    with pytest.raises(InputError, match=r"padded_length: .* more than the 128 tokens"):
        plan_step([5], replace(schedule, padded_length=129))
    with pytest.raises(
        InputError, match=r"sequence 0: .* longer than the 20 tokens that sequences"
    ):
        plan_step([21], replace(schedule, padded_length=20))


def test_the_digest_is_the_plan_and_not_its_time() -> None:
    schedule = Schedule(name="dynamic", ranks=4, max_tokens_per_rank=64, cp_sizes=(1, 2, 4))
    step = plan_step([10, 20, 30, 40], schedule, documents=[4, 3, 2, 1])
    again = plan_step([10, 20, 30, 40], schedule, documents=[4, 3, 2, 1])
    assert len(plan_digest(step)) == 16 and plan_digest(step) == plan_digest(again)
    moved = replace(step.plan, microbatches=(Microbatch((Group(0, 4, (0, 1, 2, 3)),)),))
    others = [
        plan_step([10, 20, 30, 41], schedule, documents=[4, 3, 2, 1]),
        plan_step([10, 20, 30, 40], schedule, documents=[4, 3, 2, 0]),
        replace(step, plan=moved),
        replace(step, partition="contiguous"),
        replace(step, rank_multiple=4),
        replace(step, computed=(40, 40, 40, 40)),
    ]
    assert len({plan_digest(step), *map(plan_digest, others)}) == 7


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"computed": (65, 62, 61, 60)}, "66 tokens per rank, more than 64"),
        ({"rank_multiple": 48}, "96 tokens per rank, more than 64"),
    ],
)
def test_a_plan_for_other_rows_is_refused(broken: dict[str, Any], message: str) -> None:
    schedule = Schedule(name="dynamic", ranks=4, max_tokens_per_rank=64, cp_sizes=(1,))
    step = plan_step([63, 62, 61, 60], schedule)
    checked(step, schedule)
    with pytest.raises(InputError, match=message):
        checked(replace(step, **broken), schedule)


def test_a_group_at_an_offset_that_does_not_exist_is_refused() -> None:
    """Ranks 1 and 2 would wait for each other in a group that nobody made."""
    schedule = Schedule(name="dynamic", ranks=4, max_tokens_per_rank=64, cp_sizes=(1, 2))
    groups = (Group(0, 1, (0,)), Group(1, 2, (1,)), Group(3, 1, (2,)))
    step = plan_step([8, 100, 8], schedule)
    moved = replace(step, plan=replace(step.plan, microbatches=(Microbatch(groups),)))
    checked(step, schedule)
    with pytest.raises(InputError, match="starts at rank 1, which is not a multiple of its size 2"):
        checked(moved, schedule)
