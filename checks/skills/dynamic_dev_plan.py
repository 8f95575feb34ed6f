"""The scheduler of Megatron-LM's dev branch on one batch; it may fail, and it may never end."""

from __future__ import annotations

import importlib
import signal
import time
from types import FrameType
from typing import Any

from checks.skills.dynamic_batches import Batch

LIMIT = 5.0
"""Seconds of processor time; what ends takes thousandths of it."""


class StillPlanning(Exception):
    """The time is over."""


def plan(batch: Batch) -> list[list[list[int]]]:
    """The microbatches of upstream's scheduler; each is the sample ids of every rank."""
    schedule = importlib.import_module("megatron.core.datasets.data_schedule")
    scheduler = schedule.DefaultDynamicCPScheduler(
        batch.budget, 1, batch.ranks, batch.multiple, min_cp_size=batch.smallest
    )
    return list(scheduler.get_groups_and_subsamples(list(enumerate(batch.lengths))))


def outcome(batch: Batch, limit: float = LIMIT) -> dict[str, Any]:
    """The microbatches, or the error; and the seconds of processor time that it took.

    ``shared`` says whether two ranks of a microbatch have one list object.
    """

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise StillPlanning

    importlib.import_module("megatron.core.datasets.data_schedule")  # takes longer than planning
    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, limit)
    started = time.process_time()
    try:
        made = plan(batch)
        shared = any(len(set(map(id, microbatch))) < len(microbatch) for microbatch in made)
        found: dict[str, Any] = {"microbatches": made, "error": "", "shared": shared}
    except Exception as error:
        found = {"microbatches": None, "error": f"{type(error).__name__}: {error}"}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return {**found, "seconds": time.process_time() - started}
