"""Transformer Engine's own graph code captures and replays on the tape, bit by bit as eager."""

from __future__ import annotations

from typing import Any

import pytest

from ringproof.rehearsal.fixtures import SessionServers
from ringproof.rehearsal.standins.graphs.cuda_graph import DeviceGenerator

COMPARE = "checks.rehearsal.graph_cases:compare"


def compared(stage: SessionServers, ranks: int, fault: str | None = None) -> list[dict[str, Any]]:
    """Train four steps eager and graphed in every rank."""
    case = {"steps": 4, "fault": fault}
    found: list[dict[str, Any]] = stage.call(COMPARE, ranks, case)
    return found


@pytest.mark.parametrize("ranks", [1, 2])
def test_replays_are_eager_bit_by_bit(stage: SessionServers, ranks: int) -> None:
    for found in compared(stage, ranks):
        assert found["equal"] == [True] * 4, found
        assert found["graphs"] == 4 and found["replays"] == [4]
        assert bool(found["transfers"]) == (ranks > 1)


def test_a_freed_weight_is_refused_by_name(stage: SessionServers) -> None:
    (found,) = compared(stage, 1, "free_a_weight")
    assert "dangling address" in found["error"] and not found["equal"]


@pytest.mark.parametrize("fault", ["replace_a_weight", "write_a_weight", "replay_a_graph_between"])
def test_what_is_stale_or_changed_differs(stage: SessionServers, fault: str) -> None:
    (found,) = compared(stage, 1, fault)
    assert not found["error"]
    assert not all(found["equal"]), found


@pytest.mark.parametrize("always", [False, True])
def test_an_input_is_copied_unless_its_address_is_that_of_the_capture(
    stage: SessionServers, always: bool
) -> None:
    """The control lets every address seem another one."""
    (found,) = stage.call("checks.rehearsal.graph_cases:copies", 1, {"always": always})
    assert {name: one["copied"] for name, one in found.items()} == {
        "its own": int(always),
        "another": 1,
        "its own, rewritten": int(always),
    }
    assert all(one["right"] for one in found.values()), "what is written in place is seen"


def test_a_state_of_a_generator_takes_over_another() -> None:
    """As Megatron does with each state before it captures local graphs."""
    default = DeviceGenerator(lambda action: action())
    state, other = default.clone_state(), default.clone_state()
    other.manual_seed(5)
    assert not state.get_state().equal(other.get_state())
    assert state.graphsafe_set_state(other.graphsafe_get_state()) is state
    assert state.get_state().equal(other.get_state())
