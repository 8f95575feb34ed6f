"""Where a launcher has already made the ranks, a case runs on those."""

from __future__ import annotations

import os
from typing import Any

from ringproof.harness.cluster.case import CaseFunction, ClusterOptions


def launched_world() -> tuple[int, int] | None:
    """``(rank, world size)`` under torchrun or its kin, otherwise ``None``."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    if any(name not in os.environ for name in names):
        return None
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def run_launched(
    function: CaseFunction, options: ClusterOptions, arguments: dict[str, Any]
) -> list[Any]:
    """Run a case in the launched world; the values of all ranks, on every rank.

    Args:
        function: Called as ``function(context, **arguments)``.
        options: Backend, time limit of each collective, and whether ranks may share GPUs.
        arguments: Of the function.
    """
    from ringproof.harness.cluster.worker import run_in_launched_world  # imports torch

    return run_in_launched_world(function, arguments, options)
