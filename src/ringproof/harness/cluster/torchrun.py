"""Runs a case on the ranks that a launcher such as torchrun started."""

from __future__ import annotations

import os
from typing import Any

from ringproof.harness.cluster.case import CaseFunction, ClusterOptions


def launched_world() -> tuple[int, int] | None:
    """Return ``(rank, world size)`` under a launcher such as torchrun, otherwise ``None``."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    if any(name not in os.environ for name in names):
        return None
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def run_launched(
    function: CaseFunction, options: ClusterOptions, arguments: dict[str, Any]
) -> list[Any]:
    """Run a case in the launched world, and return the values of all ranks on every rank.

    Args:
        function: Function, called as ``function(context, **arguments)``.
        options: Backend, timeout of each collective, and whether ranks may share GPUs.
        arguments: Arguments of the function.
    """
    from ringproof.harness.cluster.worker import run_in_launched_world  # imports torch

    return run_in_launched_world(function, arguments, options)
