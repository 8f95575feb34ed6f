"""A plan's setting as flags of Megatron-LM; what upstream cannot do is said."""

from __future__ import annotations

from typing import Any

import pytest

from checks.planning.plan_run import BASIC, plan
from ringproof.cli.plan_flags import MegatronSettings, megatron_flags
from ringproof.cli.plan_options import PlanOptions
from ringproof.reference.planning import Domain


def flags(target: str, *, longest: int = 8000, sequences: int = 64, **given: Any) -> list[str]:
    """Of a plan on eight ranks with 2,048 tokens each; ``given`` are options, or of the domain."""
    limits = {"ranks": 8, "cp_sizes": (1, 2, 4, 8), "max_sequences": None}
    limits |= {name: given.pop(name) for name in limits if name in given}
    comm, options = given.pop("comm", "p2p"), PlanOptions(**given)
    domain = Domain(max_tokens_per_rank=2048, **limits)
    return megatron_flags(MegatronSettings(options, domain, longest, sequences, comm), target)


def test_flags_of_dev() -> None:
    lines = flags("dev")
    given = [line.removesuffix(" \\") for line in lines if not line.startswith("#")]
    for flag in (
        "--dynamic-context-parallel",
        "--max-seqlen-per-dp-cp-rank 2048",
        "--min-dynamic-context-parallel-size 1",
        "--sequence-packing-scheduler default_dynamic_cp",
        "--context-parallel-size 4",
        "--seq-length 8000",
        "--calculate-per-token-loss",
        "--dataloader-type single",
    ):
        assert flag in given
    assert not any("refused" in line or "not there" in line for line in lines)
    # At a CP size of 1 some versions switch CP off for good.
    assert "--context-parallel-size 2 \\" in flags("dev", longest=2000)


def test_flags_of_main_have_its_names_and_say_what_is_refused() -> None:
    wanted = {"pp": 2, "cp_sizes": (2, 4, 8), "max_sequences": 7, "model": "deepseek-v3"}
    lines = flags("main", **wanted)
    remarks = "\n".join(line for line in lines if line.startswith("#"))
    given = "\n".join(line for line in lines if not line.startswith("#"))
    assert "--hybrid-context-parallel" in given
    assert "dynamic" not in given
    assert "pipeline" not in given
    for said in ("0.17 to main", "a smallest group size (2)", "in a pack (7)", "MLA", "refused"):
        assert said in remarks


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"ranks": 12, "cp_sizes": (1, 2, 3, 12)}, "a domain of 12 ranks, no power of two"),
        ({"cp_sizes": (1, 8)}, "leaving out group sizes 2, 4;"),
        ({"comm": "a2a+p2p"}, "a2a+p2p; p2p below"),
        ({"comm": "a2a"}, "packed a2a needs Transformer Engine 2.10"),
        ({"comm": "all_gather"}, "packed all_gather needs Transformer Engine 2.18"),
        ({"max_sequences": 20}, "does not heed --thd-max-packed-sequences"),
        ({"ranks": 12, "cp_sizes": (3, 6, 12)}, "a smallest size of 3"),
        ({"sequences": 65}, "65 sequences are not a multiple of the 2 data parallel ranks"),
    ],
)
def test_flags_say_what_upstream_cannot_do(changed: dict[str, Any], said: str) -> None:
    lines = flags("dev", **changed)
    assert any(line.startswith("#") and said in line for line in lines)
    assert not any("--cp-comm-type a2a+p2p" in line for line in lines if line[0] != "#")


def test_flags_follow_tensor_pipeline_and_experts() -> None:
    done = plan(
        *(*BASIC, "--model", "qwen3-30b-a3b", "--tp", "2", "--pp", "2", "--vpp", "2"),
        *("--max-sequences", "20", "--megatron-flags"),
    )
    for flag in (
        "--tensor-model-parallel-size 2",
        "--sequence-parallel",
        "--pipeline-model-parallel-size 2",
        "--num-virtual-stages-per-pipeline-rank 2",
        "--moe-token-dispatcher-type alltoall",
        "--thd-max-packed-sequences 21",
    ):
        assert f"\n{flag} \\\n" in done.out
