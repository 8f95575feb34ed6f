"""Parity with its evidence: the groups that exist, the errors, and the bytes that were sent."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch

from ringproof.reference.attention.case import ParityCase
from ringproof.reference.attention.communicator import Traffic
from ringproof.reference.attention.parity import measure
from ringproof.reference.topology.catalogue import CONTEXT_PARALLEL
from ringproof.reference.topology.census import print_census
from ringproof.reference.topology.context import ParallelContext, parallel_context
from ringproof.reference.topology.layout import RankLayout

# The flat CP group, its levels, and a one-rank group for the single-rank comparison.
GROUPS = (CONTEXT_PARALLEL, "TENSOR_MODEL_PARALLEL_GROUP")


def demonstrate(
    cases: Sequence[ParityCase], device: torch.device, *, evidence: bool = False
) -> list[dict[str, Any]]:
    """Measure cases of one world and level sizes. A collective over that world.

    Args:
        cases: They share ``world`` and, where they have them, ``hierarchical_sizes``.
        device: Device of the tensors.
        evidence: Write census and traffic lines to stderr, for ``ringproof logs groups``.
    """
    sizes = next((case.hierarchical_sizes for case in cases if case.hierarchical_sizes), ())
    traffic = Traffic()
    layout = RankLayout(cp=cases[0].world)
    with parallel_context(layout, sizes, descriptions=GROUPS) as context:
        if evidence:
            print_census(sys.stderr)
        results = [measure(case, context, device, traffic=traffic) for case in cases]
        if evidence:
            print_traffic(traffic, context)
    return results


def print_traffic(traffic: Traffic, context: ParallelContext) -> None:
    """Write one marker line per group of this rank to stderr."""
    sys.stderr.writelines(line.format() + "\n" for line in traffic.lines(context.groups))
