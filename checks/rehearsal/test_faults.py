"""Planted defects in upstream are seen: by losses, gradient norms, or an error with a place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from checks.faults import engine as planted
from checks.faults.trials import FAULTS, Trials
from ringproof.rehearsal.fixtures import SessionServers

TRAIN = "checks.rehearsal.fault_cases:train"
EXACT = 1e-12
ROOT = Path(__file__).parents[2]
ALONE = (
    ("p2p", "ring_step_lost"), ("p2p", "lse_merge_skipped"), ("p2p", "second_half_merge_skipped"),
    ("p2p", "diagonal_unmasked"), ("p2p", "key_gradient_lost"), ("a2a", "chunks_unsorted"),
    ("all_gather", "gathered_in_rank_order"),
)  # fmt: skip
CLEAN = (("none", ""), ("p2p", ""), ("a2a", ""), ("all_gather", ""))


@pytest.fixture(scope="module")
def engine(stage: SessionServers) -> dict[tuple[str, str], dict[str, Any]]:
    """Trainings on Transformer Engine's attention alone, by CP type and planted defect."""
    return {
        (comm, name): stage.call(
            TRAIN, 2, comm, faults=(f"{planted.__name__}:{name}",) if name else ()
        )[0]
        for comm, name in (*CLEAN, *ALONE)
    }


def _worst(result: dict[str, Any], expected: dict[str, Any], name: str) -> float:
    pairs = zip(result[name], expected[name], strict=True)
    return max(abs(value - other) / abs(other) for value, other in pairs)


@pytest.mark.slow
@pytest.mark.parametrize("comm", ["p2p", "a2a", "all_gather"])
def test_engine_agrees_without_fault(engine: dict[Any, dict[str, Any]], comm: str) -> None:
    for name in ("losses", "norms"):
        assert _worst(engine[comm, ""], engine["none", ""], name) < EXACT


@pytest.mark.slow
@pytest.mark.parametrize(("comm", "fault"), ALONE)
def test_engine_fault_is_seen(engine: dict[Any, dict[str, Any]], comm: str, fault: str) -> None:
    found, expected = engine[comm, fault], engine["none", ""]
    assert max(_worst(found, expected, name) for name in ("losses", "norms")) > 1e-6


@pytest.mark.slow
def test_a_falling_loss_says_nothing(engine: dict[Any, dict[str, Any]]) -> None:
    falling = {
        fault for (comm, fault), found in engine.items()
        if fault and found["losses"][-1] < found["losses"][0]
    }  # fmt: skip
    assert {fault for _, fault in ALONE} - falling == {"ring_step_lost", "lse_merge_skipped"}


def test_the_record_names_the_faults_of_the_table() -> None:
    record = json.loads((ROOT / "evidence/cpu-gloo/rehearsal-faults.json").read_text())
    facts = ("name", "breaks", "training")  # and not where the function is
    found = [tuple(entry["fault"][fact] for fact in facts) for entry in record["planted"]]
    assert found == [(fault.name, fault.breaks, fault.training) for fault in FAULTS]
    assert all(entry["seen"]["by"] != "nothing" for entry in record["planted"])


@pytest.fixture(scope="module")
def trials(stage: SessionServers) -> Trials:
    """Planted defects in dev's own training program."""
    return Trials(stage.run, stage.upstream("NVIDIA/Megatron-LM@dev"))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_is_seen(trials: Trials, fault: Any) -> None:
    trial = trials.trial(fault)
    assert trial.seen.by != "nothing"
    # MTP is the one part of upstream that differs from its reference without any planted defect.
    assert trial.control.by == "nothing" or "mtp" in fault.training
