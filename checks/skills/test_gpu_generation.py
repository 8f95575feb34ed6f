"""Which attention backends dev's packed path leaves on another GPU than that of a rehearsal.

Transformer Engine's own choice runs; what the GPU and the installed packages are is given to it.
That cuDNN takes packed input from sm90 on is a rule of its compiled part, which the stand-in below
repeats and the anchor ``tm-fused-backend`` looks up.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest

from checks.skills.test_dynamic_training import DYNAMIC, MODEL, ROPE, RUN, SCRIPT
from ringproof.rehearsal.protocol.program import Program

HERE = "checks.skills.test_gpu_generation"
A100, HOPPER, BLACKWELL = (8, 0), (9, 0), (10, 0)
ENGINE = "transformer_engine.pytorch.attention.dot_product_attention.utils"


def on(capability: tuple[int, int]) -> Any:
    """Let Transformer Engine see a GPU of this generation, and return its module."""
    utils: Any = sys.modules[ENGINE]
    utils.get_device_compute_capability = lambda: capability
    if capability < HOPPER:
        none = utils.FusedAttnBackend["No_Backend"]
        kernels: Any = sys.modules["transformer_engine_torch"]
        kernels.get_fused_attn_backend = lambda *given: (none, "") if len(given) == 1 else none
    return utils


def on_an_a100() -> None:
    on(A100)


def choose(case: dict[str, Any]) -> list[bool]:
    """Return whether FlashAttention, cuDNN's and the unfused backend are left for CP of packs."""
    import transformer_engine.pytorch  # noqa: F401

    flash, utils = case["flash"], on(tuple(case["capability"]))
    installed = utils.FlashAttentionUtils
    installed.is_installed, installed.v2_plus = flash == 2, flash == 2
    installed.version = utils.PkgVersion("2.8.0")
    installed.v3_is_installed = flash == 3
    installed.fa3_version = utils.PkgVersion("3.0.0")
    installed.v4_is_installed = flash == 4  # which the engine of 6479 does not know
    size = {"cp_size": 2} if hasattr(utils.AttentionParams, "cp_size") else {}  # from 2.15 on
    asked = utils.AttentionParams(
        qkv_layout="thd_thd_thd",
        attn_mask_type="padding_causal",
        window_size=(-1, 0),
        context_parallel=True,
        core_attention_bias_shape=None,
        pad_between_seqs=case["padded"],
        fp8_meta={"recipe": None},
        **size,
    )
    chosen = utils.get_attention_backend(asked)
    return [bool(one) for one in chosen[5]]


@pytest.mark.parametrize(
    ("capability", "padded", "flash", "left"),
    [
        (A100, True, 0, [False, False, False]),
        (A100, True, 2, [False, False, False]),
        (A100, True, 3, [False, False, False]),
        (A100, False, 2, [True, False, False]),
        (HOPPER, True, 0, [False, True, False]),
        (HOPPER, True, 2, [False, True, False]),
        (HOPPER, True, 3, [True, True, False]),
        (HOPPER, False, 2, [True, True, False]),
        (A100, True, 4, [False, False, False]),
        (HOPPER, True, 4, [True, True, False]),
        (BLACKWELL, True, 0, [False, True, False]),
        (BLACKWELL, True, 3, [False, True, False]),
        (BLACKWELL, True, 4, [True, True, False]),
    ],
)
def test_packs_with_padding_need_hopper(capability, padded, flash, left, stage):
    case = {"capability": capability, "padded": padded, "flash": flash}
    assert stage.call(f"{HERE}:choose", 1, case) == [left]


@pytest.mark.parametrize(
    ("padded", "flash", "left"),
    [
        (True, 2, [False, True, False]),
        (True, 3, [False, True, False]),
        (False, 2, [True, True, False]),
    ],
)
def test_the_engine_of_6479_rules_out_every_flash_attention(padded, flash, left, stage, graph_line):
    case = {"capability": HOPPER, "padded": padded, "flash": flash}
    engine = graph_line("megatron-lm-pr6479")
    assert stage.call(f"{HERE}:choose", 1, case, upstream=engine) == [left]


@pytest.mark.slow
@pytest.mark.parametrize("version", ["megatron-lm-dev", "megatron-lm-pr6479"])
def test_dynamic_cp_of_dev_has_no_backend_on_an_a100(version, stage, upstream_of):
    options = (MODEL, RUN, ROPE, DYNAMIC, "128 --context-parallel-size 2")
    words = tuple(" ".join(options).replace("backend fused", "backend auto").split())
    planted = (f"{HERE}:on_an_a100",)
    outcome = stage.run(Program(upstream_of(version), SCRIPT, words, 2, faults=planted))
    assert outcome.failure is not None
    assert "No dot product attention backend is available" in outcome.failure.message
