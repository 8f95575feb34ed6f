"""Ranks that raise, die or hang are named, and nothing of them is left."""

from __future__ import annotations

import time

import psutil
import pytest

from ringproof.rehearsal import running
from ringproof.rehearsal.fixtures import RanksFailed, Stage

MODULE = "checks.rehearsal.misbehaving"


def failure(stage: Stage, function: str, argument: object) -> running.Failure:
    with pytest.raises(RanksFailed) as caught:
        stage.call(f"{MODULE}:{function}", 2, argument)
    return caught.value.failure


def test_a_rank_that_raises_is_named_before_those_that_lost_it(stage: Stage) -> None:
    found = failure(stage, "raise_on", 1)
    assert (found.kind, found.rank) == ("raised", 1)
    assert found.message == "ValueError: rank 1 does not want to"


def test_a_rank_that_dies_is_named_with_its_signal(stage: Stage) -> None:
    found = failure(stage, "die_on", 1)
    assert (found.kind, found.rank) == ("died", 1)
    assert "SIGKILL" in found.message


def test_a_hang_names_what_each_rank_waits_in(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "STILL_SECONDS", 2.0)
    started = time.monotonic()
    found = failure(stage, "never_send", 1)
    assert time.monotonic() - started < 10
    assert found.kind == "hung"
    assert "all_reduce in WORLD [0, 1]" in found.waiting[0]
    assert "irecv in PAIR [0, 1]" in found.waiting[1]
    assert "misbehaving.py" in found.waiting[1]


def test_a_request_may_be_waited_for_twice(stage: Stage) -> None:
    assert stage.call(f"{MODULE}:wait_twice", 2) == [1.0, 0.0]


def test_what_a_rank_started_ends_with_it(stage: Stage) -> None:
    children = stage.call(f"{MODULE}:start_a_child", 2)
    time.sleep(0.2)
    for child in children:
        assert not psutil.pid_exists(child) or psutil.Process(child).status() == "zombie"


def test_a_missing_stand_in_is_named_with_its_caller(stage: Stage) -> None:
    found = failure(stage, "call_missing", "fused_multi_row_padding")
    assert found.symbol == "transformer_engine_torch.fused_multi_row_padding"
    assert "misbehaving.py" in found.message
