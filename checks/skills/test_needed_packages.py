"""A launch that needs Apex says so, although a stand-in computed for it, and upstream refuses it
where Apex is not installed."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

from checks.skills.test_dynamic_training import MODEL, ROPE, RUN, SCRIPT
from ringproof.rehearsal.protocol.program import Program, Upstream
from ringproof.rehearsal.standins import state_space
from ringproof.rehearsal.verdict.variant import NEEDS

FUSED, NOT_FUSED = "", "--no-gradient-accumulation-fusion"


def without_apex() -> None:
    """What upstream's module knows when its import of Apex has failed."""
    layers: Any = sys.modules["megatron.core.tensor_parallel.layers"]
    assert layers._grad_accum_fusion_available is True
    layers._grad_accum_fusion_available = False


@pytest.mark.parametrize(("given", "packages"), [(FUSED, ("apex",)), (NOT_FUSED, ())])
def test_the_result_names_apex(
    given: str, packages: tuple[str, ...], stage: Any, dev_upstream: Upstream
) -> None:
    outcome = run(stage, dev_upstream, given)
    assert outcome.failure is None
    assert outcome.packages == packages
    assert "--no-gradient-accumulation-fusion" in NEEDS["apex"]


@pytest.mark.parametrize("given", [FUSED, NOT_FUSED])
def test_without_apex_upstream_refuses_what_was_named(
    given: str, stage: Any, dev_upstream: Upstream
) -> None:
    planted = ("checks.skills.test_needed_packages:without_apex",)
    outcome = run(stage, dev_upstream, given, planted)
    if given == NOT_FUSED:
        assert outcome.failure is None
        return
    assert outcome.failure.message.startswith("RuntimeError: ColumnParallelLinear was called with")
    assert "fused_weight_gradient_mlp_cuda" in outcome.failure.message


def test_state_space_kernels_are_named_when_they_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    provided: dict[str, Any] = {}
    monkeypatch.setattr(state_space, "provide", lambda name, **members: provided.update(members))
    scans = ("mamba_chunk_scan_combined", "mamba_split_conv1d_scan_combined")
    used = set[str]()
    state_space.install(used, {**state_space.COMPUTING, **{scan: named(scan) for scan in scans}})
    assert used == set()
    provided["causal_conv1d_fn"](torch.ones(1, 2, 3), torch.ones(2, 2))
    assert used == {"causal-conv1d"}
    provided["mamba_split_conv1d_scan_combined"]()
    assert used == {"causal-conv1d", "mamba-ssm"} <= NEEDS.keys()


def named(name: str) -> Any:
    def nothing() -> None:
        pass

    nothing.__name__ = name
    return nothing


def run(stage: Any, upstream: Upstream, given: str, faults: tuple[str, ...] = ()) -> Any:
    words = f"{MODEL} {RUN} {ROPE} {given}".split()
    return stage.run(Program(upstream, SCRIPT, tuple(words), 1, faults=faults))
