"""Faults injected into the reference trainer, one at a time: each turns a named proof red.

The same run is green first, so that nothing but the fault can be what is seen. What each fault
looks like over more steps is recorded by `benchmarks/training/faults.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from ringproof.cluster import Cluster, ClusterOptions, drop
from smoke.faults import FAULTS, Fault
from smoke.trials import NOTHING, PROOFS, SETUPS, Laboratory, Observed

STEPS = 2
"""Enough for each fault to show; one more after a run was resumed."""
AT_LEAST = 20
STOPPING = tuple(fault for fault in FAULTS if fault.proof == "hang")
SLOW = frozenset(
    {
        "qwen3, CP 3, sizes 3 and 1 in turn",
        "qwen3, TP 2",
        "qwen3, FSDP2 on 2",
        "qwen3, CP 2, resumed after step 1",
    }
)
"""Setups that few faults share, each of which needs clean runs of its own."""
OTHERS = tuple(fault for fault in FAULTS if fault.proof != "hang")


@pytest.fixture(scope="module")
def laboratories(cluster: Cluster) -> dict[bool, Laboratory]:
    """By whether runs are resumed."""
    return {resumed: Laboratory(cluster, STEPS + resumed) for resumed in (False, True)}


@pytest.fixture
def others() -> Iterator[Cluster]:
    """Ranks of its own for what ends them."""
    with Cluster(2, ClusterOptions(timeout_seconds=60, log_sink=drop)) as workers:
        yield workers


def named(faults: tuple[Fault, ...]) -> list[object]:
    return [
        pytest.param(fault, id=fault.id, marks=pytest.mark.slow if fault.setup in SLOW else ())
        for fault in faults
    ]


def sees(laboratory: Laboratory, fault: Fault) -> Observed:
    """Green without the fault, red with it."""
    clean = laboratory.clean(fault.setup)
    assert not clean.red, clean.said
    if not SETUPS[fault.setup].only_plans:
        assert clean.trace is not None
        assert len(clean.trace.steps) == STEPS + (fault.proof == "checkpoint")
        assert len(clean.trace.evaluations) == (fault.proof == "evaluation")
        assert len(clean.resumed) == STEPS * (fault.proof == "checkpoint")
    broken = laboratory.broken(fault)
    assert fault.proof in broken.red, broken.said
    return broken


@pytest.mark.parametrize("fault", named(OTHERS))
def test_a_fault_is_seen(laboratories: dict[bool, Laboratory], fault: Fault) -> None:
    broken = sees(laboratories[fault.proof == "checkpoint"], fault)
    if fault.proof == "plan agreement":
        assert "rank 1 made another" in broken.said
    if fault.proof in ("evaluation", "checkpoint"):
        assert broken.red == (fault.proof,), "the steps of the training are as they should be"


@pytest.mark.slow
@pytest.mark.parametrize("fault", named(STOPPING))
def test_a_fault_that_stops_the_run_is_reported(others: Cluster, fault: Fault) -> None:
    broken = sees(Laboratory(others, STEPS), fault)
    assert "rank 0" in broken.said
    assert "rank 1" in broken.said


def test_a_change_that_breaks_nothing_is_not_seen(laboratories: dict[bool, Laboratory]) -> None:
    """Negative control of the trials: they do not call everything red."""
    assert laboratories[False].broken(replace(OTHERS[0], id=NOTHING)).red == ()


def test_the_catalogue_is_whole() -> None:
    assert len(FAULTS) >= AT_LEAST
    assert len({fault.id for fault in FAULTS}) == len(FAULTS)
    assert len({fault.inject for fault in FAULTS}) == len(FAULTS)
    assert {fault.setup for fault in FAULTS} == set(SETUPS)
    assert {fault.proof for fault in FAULTS} == set(PROOFS) - {"failure"}
