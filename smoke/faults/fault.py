"""What a fault is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from smoke.faults.seams import Site

# What the proofs are is said in ``trial``. ``failure`` is none: a rank failed in another way.
PROOFS = (
    "loss",
    "gradient norm",
    "evaluation",
    "checkpoint",
    "plan validator",
    "plan agreement",
    "refusal",
    "hang",
    "failure",
)

QWEN3, QWEN3_DP = "qwen3, CP 2, sizes 2 and 1 in turn", "qwen3, DP 2, sizes 2 and 1 in turn"
NEMOTRON = "nemotron-h, CP 2, sizes 2 and 1 in turn"
MOONLIGHT = "moonlight, CP 2, sizes 2 and 1 in turn"


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong on purpose.

    Args:
        id: Its name.
        broken: What, in one sentence.
        stands_for: The upstream bug or user report; empty for a mistake that anybody may make.
        setup: Of :data:`smoke.faults.setups.SETUPS`.
        proof: Of :data:`PROOFS`: which has to turn red.
        inject: Puts it in place on one rank.
    """

    id: str
    broken: str
    stands_for: str
    setup: str
    proof: str
    inject: Callable[[Site], AbstractContextManager[Any]]
