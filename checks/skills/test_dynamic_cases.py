"""The limit of processor time under which upstream's planning runs."""

from __future__ import annotations

import sys
import time
from types import ModuleType
from typing import NoReturn

import pytest

from checks.skills import dynamic_batches as batches
from checks.skills import dynamic_cases


class Destroyed:
    """Its destructor runs until the first alarm, whose exception Python ignores there."""

    def __del__(self) -> None:
        started = time.process_time()
        while time.process_time() < started + 60:
            pass


def endless(_: batches.Batch) -> NoReturn:
    Destroyed()
    while True:
        pass


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.timeout(30)
def test_planning_ends_although_the_first_alarm_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = "megatron.core.datasets.data_schedule"
    monkeypatch.setitem(sys.modules, scheduler, ModuleType(scheduler))
    monkeypatch.setattr(dynamic_cases, "plan", endless)
    found = dynamic_cases.outcome(batches.MISALIGNED, limit=0.1)
    assert found["error"].startswith("StillPlanning")
    assert 1 < found["seconds"] < 20, "the second alarm ended it"
