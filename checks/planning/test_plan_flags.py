"""A plan's setting as flags of Megatron-LM; what upstream cannot do is said."""

from __future__ import annotations

from typing import Any

import pytest

from checks.planning.plan_run import BASIC, plan
from ringproof.cli.plan_flags import Wanted, megatron_flags
from ringproof.errors import InputError

WANTED = Wanted(
    ranks=8,
    cp_sizes=(1, 2, 4, 8),
    max_tokens_per_rank=2048,
    min_cp=1,
    static_cp=4,
    longest=8000,
    sequences=64,
    comm="p2p",
)


def test_flags_of_dev() -> None:
    lines = megatron_flags(WANTED, "dev")
    flags = [line.removesuffix(" \\") for line in lines if not line.startswith("#")]
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
        assert flag in flags
    assert not any("refused" in line or "not there" in line for line in lines)


def test_flags_of_main_have_its_names_and_say_what_is_refused() -> None:
    wanted = Wanted(**{**vars(WANTED), "pp": 2, "min_cp": 2, "max_sequences": 7, "mla": True})
    lines = megatron_flags(wanted, "main")
    remarks = "\n".join(line for line in lines if line.startswith("#"))
    flags = "\n".join(line for line in lines if not line.startswith("#"))
    assert "--hybrid-context-parallel" in flags
    assert "dynamic" not in flags
    assert "pipeline" not in flags
    for said in ("0.17 to main", "a smallest group size (2)", "in a pack (7)", "MLA", "refused"):
        assert said in remarks


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"ranks": 12, "cp_sizes": (1, 2, 3)}, "a domain of 12 ranks, no power of two"),
        ({"cp_sizes": (1, 2, 3, 4, 8)}, "group sizes 3;"),
        ({"cp_sizes": (1, 8)}, "leaving out group sizes 2, 4;"),
        ({"comm": "a2a+p2p"}, "a2a+p2p; p2p below"),
        ({"comm": "a2a"}, "packed a2a needs Transformer Engine 2.10"),
        ({"comm": "all_gather"}, "packed all_gather needs Transformer Engine 2.18"),
        ({"max_sequences": 20}, "does not heed --thd-max-packed-sequences"),
        ({"min_cp": 3}, "a smallest size of 3"),
        ({"sequences": 65}, "65 sequences are not a multiple of the 2 data parallel ranks"),
        ({"longest": 16385}, "is over ranks times budget"),
    ],
)
def test_flags_say_what_upstream_cannot_do(changed: dict[str, Any], said: str) -> None:
    lines = megatron_flags(Wanted(**{**vars(WANTED), **changed}), "dev")
    assert any(line.startswith("#") and said in line for line in lines)
    assert not any("--cp-comm-type a2a+p2p" in line for line in lines if line[0] != "#")
    with pytest.raises(InputError):
        megatron_flags(WANTED, "r0.16")


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
