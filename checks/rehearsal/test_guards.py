"""A stand-in that is missing, or asked for more than it computes, is an error that names it."""

from __future__ import annotations

import pytest

from checks.faults.removing import REMOVED
from checks.faults.trials import REMOVING, Trials
from ringproof.rehearsal.fixtures import RanksFailed, SessionServers

CASES = "checks.rehearsal.fault_cases"
ALONE = (
    *(f"transformer_engine_torch.{name}" for name in (
        "get_fused_attn_backend", "generic_gemm", "rmsnorm_fwd", "rmsnorm_bwd", "layernorm_fwd",
        "layernorm_bwd", "multi_tensor_adam", "fused_rope_forward", "fused_rope_backward",
        "fused_attn_fwd", "fused_attn_bwd")),
    "torch.cuda.synchronize", "torch.distributed.all_reduce", "torch.distributed.barrier",
)  # fmt: skip
COMPUTED = ("gemm", "attention")  # negative controls


def test_the_name_survives_an_error_that_upstream_makes_anew(stage: SessionServers) -> None:
    (found,) = stage.call(f"{CASES}:raised_anew", 1)
    assert found == ["torch.cuda.Stream", "a.py:3", "no stand-in for torch.cuda.Stream, called at "
                     "a.py:3 when instantiating Layer"]  # fmt: skip


@pytest.mark.parametrize("symbol", ALONE)
def test_every_removed_stand_in_is_named(stage: SessionServers, symbol: str) -> None:
    with pytest.raises(RanksFailed) as caught:
        stage.call(f"{CASES}:layers", 1, faults=(f"{REMOVING}:{symbol}",))
    message = caught.value.failure.message
    assert message.startswith(f"StandInMissing: no stand-in for {symbol}, called at "), message


def test_a_stand_in_that_is_not_called_can_be_removed(stage: SessionServers) -> None:
    stage.call(f"{CASES}:layers", 1, faults=(f"{REMOVING}:torch.cuda.empty_cache",))


def test_what_is_not_computed_is_refused(stage: SessionServers) -> None:
    (found,) = stage.call(f"{CASES}:kernels_refuse", 1)
    assert {name for name, raised in found.items() if raised == "nothing"} == set(COMPUTED)
    typed = {name for name, raised in found.items() if raised.startswith("TypeError")}
    assert typed == {"swiglu limit", "rope margin", "attention new argument"}
    named = set(found) - typed - set(COMPUTED)
    assert all(found[name].startswith("StandInMissing: no stand-in for ") for name in named), found


def test_autograd_does_not_look_into_kernels(stage: SessionServers) -> None:
    (found,) = stage.call(f"{CASES}:recorded_by_autograd", 1)
    assert found == {"weight gradient": False, "norm": False, "outside of a kernel": True}


def test_a_changed_signature_is_an_error(stage: SessionServers) -> None:
    (raised,) = stage.call(f"{CASES}:changed_signature", 1)
    assert raised.startswith("TypeError: too many positional arguments")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("training", "symbol"), [(training, name) for training, names in REMOVED for name in names]
)
def test_training_names_a_removed_stand_in(
    stage: SessionServers, training: str, symbol: str
) -> None:
    trials = Trials(stage.run, stage.upstream("NVIDIA/Megatron-LM@dev"))
    seen = trials.removal(training, symbol)
    assert (seen.by, seen.message) == ("raised", symbol)
