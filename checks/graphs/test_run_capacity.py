"""Rows, entries and slots of a run with graphs are fitted, or refused before the first step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ringproof.errors import InputError
from ringproof.reference.packing.capacity import RankCapacity
from ringproof.reference.packing.sequences import Capacity, pack
from ringproof.reference.training.banks import check_slots
from ringproof.reference.training.options import GraphOptions, TrainOptions, microbatches_in_flight
from ringproof.reference.training.schedules import Schedule, plan_digest, plan_step
from smoke.training_matrix import Spread, options_of

ROOM = RankCapacity(rows=16, entries=3)


def bank(spread: Spread, **graphs: Any) -> TrainOptions:
    return options_of("qwen3-tiny", spread, graphs=GraphOptions(graphs="bank", **graphs))


def test_rows_are_a_multiple_of_what_ranks_cut_them_by() -> None:
    """Two chunks of zigzag for each of two tensor parallel ranks: 60 of 63 rows."""
    run = bank(Spread({"tp": 2}))
    assert run.capacity == RankCapacity(64, 9)
    cut = replace(run, batch=replace(run.batch, max_tokens_per_rank=63))
    assert cut.capacity == RankCapacity(60, 9)
    assert options_of("qwen3-tiny", Spread()).capacity is None


def test_a_pack_is_fitted_or_refused_or_left_as_it_is() -> None:
    packed = pack([13, 5], multiple=8)
    fitted = ROOM.fitted(packed, 2)
    assert fitted is not None
    assert ROOM.has(fitted, 2)
    assert not ROOM.has(packed, 2)
    assert (fitted.rows, fitted.sequences) == (32, 2)
    assert ROOM.of_group(2) == Capacity(rows=32, entries=3)
    for large, message in (
        (pack([40], multiple=8), r"graph_rows: a pack of CP size 2 has 20 rows on a rank"),
        (pack([1, 1, 1], multiple=8), r"graph_sequences: a pack of CP size 2 has 4 entries"),
    ):
        with pytest.raises(InputError, match=message):
            ROOM.fitted(large, 2)
        assert replace(ROOM, overflow="eager").fitted(large, 2) is None


def test_the_longest_sequence_is_refused_before_the_first_step() -> None:
    ROOM.check_longest(32, 2, 2)
    with pytest.raises(InputError, match="graph_rows: the longest sequence has 18 rows on each"):
        ROOM.check_longest(33, 2, 2)
    replace(ROOM, overflow="eager").check_longest(33, 2, 2)


@pytest.mark.parametrize(
    ("layout", "vpp", "slots"), [({}, 1, 1), ({"pp": 2}, 1, 2), ({"pp": 2}, 2, 4)]
)
def test_slots_are_what_the_pipeline_needs(layout: dict[str, int], vpp: int, slots: int) -> None:
    assert bank(Spread(layout, {"vpp": vpp})).slots == slots
    assert bank(Spread(layout, {"vpp": vpp}), graph_slots=7).slots == 7


def test_fewer_microbatches_need_fewer_slots() -> None:
    assert microbatches_in_flight(3, pp=4, vpp=1) == 3
    assert microbatches_in_flight(4, pp=4, vpp=2) == 4


def test_a_plan_with_more_microbatches_than_slots() -> None:
    schedule = Schedule(name="packed", ranks=1, max_tokens_per_rank=16, capacity=ROOM)
    plan = plan_step([16, 16, 16], schedule)
    short = bank(Spread({"pp": 2}), graph_slots=1)
    with pytest.raises(InputError, match=r"graph_slots: a plan of 3 microbatches has 2 in flight"):
        check_slots(short, plan)
    check_slots(bank(Spread({"pp": 2})), plan)
    check_slots(bank(Spread({"pp": 2}), graph_slots=1, graphs_overflow="eager"), plan)
    assert plan.rows == 3 * 16
    other = plan_step([16, 16, 16], replace(schedule, capacity=None))
    assert plan_digest(plan) != plan_digest(other)
