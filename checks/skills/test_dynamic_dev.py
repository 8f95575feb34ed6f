"""What Megatron-LM's dev branch really does with dynamic CP: its pitfalls, executed.

Its code is read out of a checkout (`checks/skills/conftest.py` says how to give one) and runs on
Transformer Engine's, unchanged, on ranks without GPUs. What fails there is shown to our own planner
in `test_dynamic_planner.py`, and whole trainings are in `test_dynamic_training.py`.
"""

from __future__ import annotations

import time

import pytest

from checks.skills.dynamic_batches import TIMED, lognormal
from checks.skills.dynamic_cases import LIMIT
from checks.skills.shared import REPOSITORY, blocks
from ringproof.reference.planning import AttentionOnly, Domain, choose_cp_sizes, make_plan
from ringproof.rehearsal.fixtures import RanksFailed

CASES = "checks.skills.dynamic_cases"
SKILL = REPOSITORY / "skills" / "dynamic-context-parallel"
FULL = "DATA_PARALLEL_GROUP_WITH_CP"

# Imports two versions of Megatron, which a loaded machine needs minutes for.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def dev(stage, dev_upstream):
    return stage.call(f"{CASES}:observe", 1, upstream=dev_upstream)[0]


def error(dev, name):
    return dev["plans"][name]["error"]


def test_too_few_sequences_for_virtual_stages(dev):
    message = "AssertionError: align_sample_id_groups: no tail microbatch has enough ids to split"
    assert error(dev, "too few") == message
    without = dev["plans"]["too few, no virtual stages"]
    assert len(without["microbatches"]) == 1, "one group over all ranks"
    assert dev["static packer"] == {
        "few": "AssertionError: Not enough samples to move",
        "enough": "",
    }


def test_a_domain_of_twenty_four_plans_for_ever(dev):
    assert error(dev, "loops") == "StillPlanning: "
    assert dev["plans"]["loops"]["seconds"] > 0.9 * LIMIT
    larger = dev["plans"]["loops, 32 ranks"]
    assert len(larger["microbatches"]) % 4 == 0
    assert larger["seconds"] < LIMIT / 50


def test_an_odd_smallest_size_is_an_index_error(dev):
    assert dev["configs"]["smallest 3"] == "", "the config takes it"
    assert error(dev, "smallest 3").startswith("IndexError")
    assert [error(dev, f"smallest {size}") for size in (2, 4)] == ["", ""]


def test_a_sequence_that_fits_is_refused_where_sizes_round_up(dev):
    """3,000 tokens fit six ranks of 512, and a power of two that holds them is eight."""
    said = error(dev, "rounded past the domain")
    assert "Sequence length 3000 requires CP size 8, but only 6" in said


def test_groups_are_aligned_where_the_release_misaligns(dev):
    found = dev["plans"]["misaligned"]["microbatches"]
    for microbatch in found:
        for sample in {sample for ids in microbatch for sample in ids}:
            ranks = [rank for rank, ids in enumerate(microbatch) if sample in ids]
            size = len(ranks)
            assert ranks == list(range(ranks[0], ranks[0] + size))
            assert ranks[0] % size == 0
            assert size & (size - 1) == 0


def test_ranks_have_lists_of_their_own_until_virtual_stages_align_them(dev):
    plan = dev["plans"]["shared lists"]
    assert plan["microbatches"] == [[[0]] * 4 + [[1]] * 4]
    assert plan["shared"] is False
    assert dev["plans"]["loops, 32 ranks"]["shared"] is True


@pytest.fixture(scope="module")
def groups(stage, dev_upstream):
    def ask(ranks, **options):
        asked = {"line": "dynamic", "layouts": [{"dynamic_context_parallel": True, **options}]}
        call = (f"{CASES}:groups", ranks, asked)
        return [found for (found,) in stage.call(*call, upstream=dev_upstream)]

    return ask


def test_groups_of_dev(groups):
    for rank, found in enumerate(groups(8)):
        assert found["left"] == [], "destroy_model_parallel clears them"
        pair, four = rank // 2 * 2, rank // 4 * 4
        assert {size: entry["ranks"] for size, entry in found["groups"].items()} == {
            "1": [rank],
            "2": [pair, pair + 1],
            "4": [*range(four, four + 4)],
            "8": [*range(8)],
        }
        named = {size: entry["desc"] for size, entry in found["groups"].items()}
        assert named == {size: f"DYNAMIC_DP_CP_GROUP_{size}" for size in "124"} | {"8": FULL}


def test_ten_ranks_have_two_under_the_size_of_four(groups):
    assert groups(10)[9]["groups"]["4"]["ranks"] == [8, 9]


def test_the_old_name_reaches_the_config(dev):
    assert dev["alias"]["dynamic"] is True
    assert dev["alias"]["scheduler"] == "default_dynamic_cp"
    assert dev["alias"]["warned"][0].startswith("hybrid_context_parallel is deprecated")


def test_what_the_configs_refuse_and_take(dev):
    said = dev["configs"]
    assert said["plain"] == ""
    assert "must be >= 1, got 0" in said["smallest 0"]
    assert "Cannot set both" in said["both names"]
    model = dev["transformer configs"]
    assert model["a2a+p2p"] == "a2a+p2p", "taken, although one group is handed over"
    assert model["per token"] is False
    assert model["budget"] is None
    assert "Transformer Engine >= 2.9.0" in model["old engine"]
    assert "moe_token_dispatcher_type" in model["wrong dispatcher"]


def test_mamba_fails_at_the_first_large_group(dev):
    said = dev["mamba"]
    assert [said[size] for size in ("1", "2", "4", "8")] == [""] * 4, "eight heads"
    assert "nheads must be evenly divisible" in said["16"]


def test_a_captured_layer_forgets_its_group(dev):
    found = dev["captured"]
    assert all(name.startswith("cu_seqlens") for name in found["kept"])
    assert len(found["kept"]) == 4
    assert found["local_cp_size"] is None
    assert found["has_group"] is False
    assert found["max_seqlen_q"] == 16 * 2, "budget times the static size, not times four"


@pytest.fixture(scope="module")
def passes(stage, dev_upstream):
    """Passes: static, dynamic, static, size 1, static."""
    call = "checks.skills.core_cases:dynamic"
    return stage.call(call, 4, "dynamic_context_parallel", upstream=dev_upstream)[1]


def test_only_a_static_size_above_one_takes_the_group_back(passes):
    """After each pass the static group is attached again, and only a leaked one gives errors."""
    assert [step["group"] for step in passes["static 4"][:5]] == ["static"] * 5
    assert all(step["error"] < 1e-12 for step in passes["static 4"][:5])
    alone = [step["group"] for step in passes["static 1"][:5]]
    assert alone == ["none", "dynamic", "dynamic", "none", "none"]
    wrong = [step["error"] > 0.1 for step in passes["static 1"][:5]]
    assert wrong == [False, False, True, False, False], "the static pass after the dynamic one"


def test_planning_time_grows_with_sequences_times_ranks(dev, record_property):
    """Processor seconds; what doubles both takes three times as long at least."""
    for (count, ranks), seconds in zip(TIMED, dev["seconds"], strict=True):
        record_property(f"seconds_{count}_sequences_{ranks}_ranks", round(seconds, 3))
    assert dev["seconds"][2] > 8 * dev["seconds"][0], "sixteen times sequences times ranks"
    count, ranks = TIMED[-1]
    domain = Domain(ranks=ranks, max_tokens_per_rank=2048, cp_sizes=choose_cp_sizes("pow2", ranks))
    started = time.process_time()
    make_plan(lognormal(count), domain, AttentionOnly())
    ours = time.process_time() - started
    record_property("our_seconds", round(ours, 3))
    assert dev["seconds"][2] > 5 * ours


# --- dev and pull request 6479; the second version of Dynamic CP could not be had ---


@pytest.fixture(scope="module", params=["megatron-lm-dev", "megatron-lm-pr6479"])
def planned(request, stage, upstream_of):
    return stage.call(f"{CASES}:plans", 1, upstream=upstream_of(request.param))[0]


def test_alignment_does_not_end_on_six_twelve_and_twenty_four(planned):
    """On powers of two the same batches end, with a plan or with a message."""
    stuck = {
        int(ranks): sum(error.startswith("StillPlanning") for error in errors)
        for ranks, errors in planned["errors"].items()
    }
    assert [stuck[ranks] for ranks in (4, 8, 16)] == [0, 0, 0]
    assert min(stuck[ranks] for ranks in (6, 12, 24)) >= 3, stuck
    assert "" in planned["errors"]["8"], "some are planned"


def test_partition_modes_of_dev(planned):
    said = planned["partitions"]
    assert said["zigzag"] == ""
    assert "requires experimental_attention_variant" in said["contiguous"]
    assert "sequence_packing_scheduler" in said["unpacked"]
    message = "DSv4 Hybrid with context parallelism requires cp_partition_mode='contiguous'."
    assert said["dsv4 in zigzag"] == f"ValueError: {message}"


@pytest.fixture(scope="module")
def looped(stage, dev_upstream):
    text = (SKILL / "references" / "enabling.md").read_text(encoding="utf-8")
    (loop,) = (code for code in blocks(text, "python") if "wrap_data" in code)
    try:
        return stage.call(f"{CASES}:own_loop", 2, loop, upstream=dev_upstream)
    except RanksFailed as error:  # a test fails, and not its set-up
        return error


def test_the_own_loop_of_the_skill(looped):
    """64 tokens need both ranks of 32, and the others fit one."""
    assert isinstance(looped, list), looped
    assert all(rank["returned"] == 4 for rank in looped)
    assert {size for rank in looped for size in rank["sizes"]} == {1, 2}


def test_only_the_first_tensor_parallel_rank_has_an_iterator(looped):
    assert isinstance(looped, list), looped
    message = "AssertionError: Only TP rank 0 should have data_iterator"
    assert [rank["second"] for rank in looped] == ["", message]
