"""What each line of upstream does about graphs under Dynamic CP, executed.

Upstream's code is read out of a checkout (`checks/skills/conftest.py` says how to give one) and
asked on ranks without GPUs: pull request 6479 with Transformer Engine's pull request 3353, pull
request 5618 and dev with the released one. `graphs_world` asks; here is what must come of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from ringproof.rehearsal.fixtures import SessionServers
from ringproof.rehearsal.protocol.program import Upstream

BANKS = ("megatron-lm-pr6479", "megatron-lm-pr5618")
LINES = (*BANKS, "megatron-lm-dev")
WORLD = "checks.skills.graphs_world:"
Told = dict[str, Any]


Line = Callable[[str], Upstream]

pytestmark = pytest.mark.timeout(300)  # the first test asks three lines


def ask(stage: SessionServers, upstream: Upstream) -> Told:
    found: Told = stage.call(f"{WORLD}observe", 1, upstream=upstream)[0]
    return found


# A fixture for each line, so that what ran is attributed to every test that looks at it.


@pytest.fixture(scope="module")
def pr6479(stage: SessionServers, graph_line: Line) -> Told:
    return ask(stage, graph_line("megatron-lm-pr6479"))


@pytest.fixture(scope="module")
def pr5618(stage: SessionServers, graph_line: Line) -> Told:
    return ask(stage, graph_line("megatron-lm-pr5618"))


@pytest.fixture(scope="module")
def dev(stage: SessionServers, graph_line: Line) -> Told:
    return ask(stage, graph_line("megatron-lm-dev"))


@pytest.fixture(scope="module")
def told(pr6479: Told, pr5618: Told, dev: Told) -> Callable[[str], Told]:
    """What one rank of a line says."""
    return dict(zip(LINES, (pr6479, pr5618, dev), strict=True)).__getitem__


# --- configuration ---

LAYERS_ONLY = "ValueError: Dynamic CP supports only layer-wise TE CUDA graphs."
NO_OVERLAP = "ValueError: Dynamic CP graphs do not support delayed wgrad or EP overlap."


@pytest.mark.parametrize("line", LINES)
def test_the_settings_of_a_bank_are_accepted(told, line):
    said = told(line)["configs"]
    assert [said[name] for name in ("bank", "alignment of the budget", "router")] == [""] * 3


@pytest.mark.parametrize("line", BANKS)
@pytest.mark.parametrize("impl", ["local", "full iteration"])
def test_only_layer_graphs(told, line, impl):
    assert told(line)["configs"][impl] == LAYERS_ONLY


@pytest.mark.parametrize("line", BANKS)
def test_slots_must_be_dynamic(told, line):
    said = told(line)["configs"]["fixed slots"]
    assert said == "ValueError: Dynamic CP CUDA graphs require dynamic microbatch slots."


@pytest.mark.parametrize("line", BANKS)
@pytest.mark.parametrize("option", ["delayed wgrad", "overlap"])
def test_no_delayed_gradients_and_no_overlap(told, line, option):
    assert told(line)["configs"][option] == NO_OVERLAP


def test_dev_accepts_what_it_cannot_do(dev):
    names = ("bank", "local", "full iteration", "fixed slots", "delayed wgrad", "overlap")
    assert [dev["configs"][name] for name in names] == [""] * 6


@pytest.mark.parametrize("line", LINES)
def test_the_number_of_tokens_is_static(told, line):
    said = told(line)["configs"]
    assert "requires --pad-packed-seq-alignment to be set" in said["no alignment"]
    assert "equal to max_seqlen_per_dp_cp_rank (16), got 8" in said["another alignment"]
    assert "max_seqlen_per_dp_cp_rank must be set" in said["no budget"]


def test_the_capacity_must_be_given_except_in_5618(told):
    said = {line: told(line)["configs"]["no capacity"] for line in LINES}
    demand = "ValueError: THD CUDA Graph requires --thd-max-packed-sequences to be set."
    assert said == dict(zip(LINES, (demand, "", demand), strict=True))


@pytest.mark.parametrize("line", LINES)
def test_what_else_is_refused(told, line):
    said = told(line)["configs"]
    assert "not supported with CPU offloading" in said["offloading"]
    assert "full recompute is only supported with full iteration" in said["full recompute"]
    assert "attention dropout is not supported" in said["dropout recomputed"]
    assert "must not contain both moe and moe_router" in said["router and experts"]
    assert "only supported with moe_router" in said["preprocess alone"]
    assert "only supported with drop-padding MoE" in said["experts without padding"]
    assert "('alltoall', 'flex'), got 'allgather'" in said["another dispatcher"]
    assert "requires Transformer Engine >= 2.9.0" in said["an older engine"]


# --- sizes, slots, memory ---


@pytest.mark.parametrize("line", BANKS)
def test_sizes_are_powers_of_two_from_the_domain_down(told, line):
    sizes = told(line)["sizes"]
    assert sizes["8 from 1"] == [8, 4, 2, 1]
    assert sizes["8 from 4"] == [8, 4]
    refusal = "ValueError: Dynamic CP graph sizes must be powers of two with min <= max."
    assert [sizes[name] for name in ("12", "3", "above")] == [refusal] * 3


def test_the_bound_of_microbatches_follows_from_the_longest_sequence(pr6479):
    """64 samples on 8 ranks of 16 tokens; the longest sequence takes 1, 4 or 8 of them."""
    bounds = {name: bound[0] for name, bound in pr6479["bounds"].items()}
    assert bounds == {
        "short": 64 // 8,
        "half": 64 // 2,
        "longest over all ranks": 64,
        "sub-samples": 64 * 32,
        "virtual stages": 28,  # 24, rounded up to the groups of 7
    }
    assert {bound[1] for bound in pr6479["bounds"].values()} == {"dynamic_cp_scheduler_upper_bound"}


def test_5618_bounds_by_samples_alone_and_dev_by_the_present_count(told):
    old = told("megatron-lm-pr5618")["bounds"]
    assert [old[name][0] for name in ("short", "half", "sub-samples")] == [64, 64, 2048]
    assert old["short"][1] == "dynamic_cp_global_subsample_upper_bound"
    assert told("megatron-lm-dev")["bounds"]["sub-samples"] == [8, "runtime"]


@pytest.fixture(scope="module")
def stages(stage: SessionServers, graph_line: Line) -> list[Told]:
    """Four pipeline stages, from the first to the last."""
    found: list[Told] = stage.call(f"{WORLD}stages", 4, upstream=graph_line(BANKS[0]))
    return found


def test_slots_are_the_microbatches_that_a_schedule_keeps_waiting(stages):
    """Of sixteen microbatches as of four; each stage captures the largest number of all."""
    assert [found["1"]["slots"] for found in stages] == [4, 3, 2, 1]
    assert [found["2"]["slots"] for found in stages] == [8, 8, 7, 5]


def test_saved_tensors_share_arenas_only_where_never_both_alive(stages):
    """Two layers a chunk: as many arenas as are alive at once, and fewer than frames."""
    assert [f["1"]["frames"] for f in stages] == [8] * 4
    assert [f["1"]["arenas"] for f in stages] == [8, 8, 4, 2]
    assert [f["2"]["frames"] for f in stages] == [32] * 4
    assert [f["2"]["arenas"] for f in stages] == [24, 24, 16, 16]
    assert [f[chunks]["shared while live"] for f in stages for chunks in "12"] == [0] * 8


def test_one_slot_too_few_is_noticed(stages):
    said = "RuntimeError: CUDA graph slot period is shorter than the PP/VPP saved-tensor liveness"
    assert [f["1"]["one slot too few"].startswith(said) for f in stages[:3]] == [True] * 3
    assert all(f["2"]["one slot too few"].startswith(said) for f in stages)


def test_input_gradients_of_consecutive_backwards_are_apart(stages):
    assert {f[chunks]["gradients"] for f in stages for chunks in "12"} == {2}


def test_sizes_are_captured_in_lock_step_the_smallest_first(stages):
    """Two forwards and two backwards of one chunk, three sizes, of which the last is canonical."""
    expected = [3, 1, 2, 3, 1, 2, -3, -1, -2, -3, -1, -2]
    assert all(found["lock-step"] == expected for found in stages)


def test_a_router_sums_over_its_pair_by_way_of_all_ranks(stages):
    assert [found["router"]["total"] for found in stages] == [11.0, 11.0, 1100.0, 1100.0]
    assert {found["router"]["gradient"] for found in stages} == {1.0}
    crossed = "RuntimeError: Dynamic-CP subgroup ranks must be a contiguous slice"
    assert all(found["router"]["crossed"].startswith(crossed) for found in stages)


# --- what is baked in ---


@pytest.mark.parametrize("line", BANKS)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_rows_are_the_budget_and_lengths_follow_the_size(told, line, size):
    found = told(line)["constants"][str(size)]
    assert found["hidden_states"] == [16, 1, 16] and found["padding_mask"] == [1, 16]
    assert found["cu_seqlens_q"] == found["cu_seqlens_kv_padded"] == [4 + 1]
    assert found["capacity"] == found["max_seqlen"] == 16 * size
    assert (found["local_cp_size"], found["cp_group"]) == (size, f"group of {size}")
    assert found["pad_between_seqs"] is True


@pytest.mark.parametrize("line", BANKS)
def test_every_size_has_inputs_of_as_many_elements(told, line):
    """A size adds its own boundaries and mask; all sizes are called with as many rows."""
    names = "hidden_states", "padding_mask", "cu_seqlens_q", "cu_seqlens_kv_padded"
    sizes = told(line)["constants"].values()
    held = [[math.prod(found[name]) for name in names] for found in sizes]
    assert held == [[16 * 16, 16, 5, 5]] * 3


def test_dev_bakes_in_the_static_geometry(dev):
    found = dev["constants"]
    assert found["1"] == found["2"] == found["4"]
    assert (found["4"]["local_cp_size"], found["4"]["cp_group"]) == (None, None)
    assert found["4"]["max_seqlen"] == 16


@pytest.mark.parametrize("line", LINES)
def test_of_the_packing_only_boundaries_are_inputs(told, line):
    boundaries = ["cu_seqlens_kv", "cu_seqlens_kv_padded", "cu_seqlens_q", "cu_seqlens_q_padded"]
    assert told(line)["kept inputs"] == boundaries


def test_the_rotary_table_is_as_long_as_the_longest_sequence(pr6479):
    """At most 40 tokens in a sequence: 16, 32 and 64 tokens in a group of 1, 2 and 4 ranks."""
    assert {size: found[0] for size, found in pr6479["rotary"].items()} == {
        "1": 16, "2": 32, "4": 40,
    }  # fmt: skip
    assert pr6479["rotary"]["4"][1] == [0, 40, 64, 64, 64], "no seeded sequence is longer"


def test_too_few_sequences_make_the_rotary_table_longer(pr6479):
    """One sequence of at most 40 tokens cannot fill the 64 of its group, so it is longer."""
    assert pr6479["rotary, one sequence"] == [64, [0, 64]]


@pytest.mark.parametrize("line", BANKS)
def test_tables_of_mla_are_kept_by_a_capture_only(told, line):
    assert told(line)["rope"] == [0, 1]


def test_dev_keeps_no_table_of_mla(dev):
    assert "_retain_cuda_graph_rope_tensors" in dev["rope"]


@pytest.mark.parametrize("line", LINES)
def test_mamba_layers_are_captured_on_dev_only(told, line):
    captured = told(line)["graphable"]
    assert captured == {"TransformerLayer": True, "MambaLayer": line == "megatron-lm-dev"}


@pytest.mark.parametrize("line", LINES)
def test_graphs_are_replayed_in_training_only(told, line):
    assert told(line)["replayed"] == {"training": True, "evaluation": False}


# --- padding and capacity ---


@pytest.mark.parametrize("line", LINES)
def test_the_dummy_covers_the_tail(told, line):
    valid, physical = told(line)["padded"]
    assert physical == [0, 8, 16, 32, 32]
    assert valid == [0, 5, 9, *((9, 9) if "5618" in line else (25, 25))]
    assert told(line)["padded, no tail"] == [[0, 5, 9, 9, 9], [0, 16, 32, 32, 32]]


def test_without_the_dummy_of_5618_no_boundary_covers_the_tail(pr5618):
    assert pr5618["padded, no dummy"] == [[0, 5, 9, 9, 9], [0, 8, 16, 16, 16]]


@pytest.mark.parametrize("line", LINES)
def test_the_dummy_takes_one_entry(told, line):
    found = told(line)["real sequences"]
    assert (found["2"], found["4"]) == (1, 3)
    assert "thd_max_packed_sequences must be >= 2" in found["1"]


@pytest.mark.parametrize("line", LINES)
def test_a_fuller_pack_is_an_error(told, line):
    said = told(line)["padded, too many"]
    assert said.startswith("AssertionError: Actual num_seqs (4) exceeds thd_max_packed_sequences")


@pytest.mark.parametrize("line", LINES)
def test_only_the_banks_packers_know_the_capacity(told, line):
    found = told(line)["fullest"]
    assert found["None"] == 8
    assert found["3"] == (8 if line == "megatron-lm-dev" else 3)


# --- Transformer Engine ---


@pytest.fixture(scope="module")
def engine(stage: SessionServers, graph_line: Line) -> Told:
    """What pull request 3353 says."""
    found: list[Told] = stage.call(f"{WORLD}engine", 1, upstream=graph_line(BANKS[0]))
    return found[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("a pool", "Graph-memory slots create and own their CUDA graph memory pool"),
        ("no order", "require a training graph with `_order` and graph buffer reuse"),
        ("no reuse", "require a training graph with `_order` and graph buffer reuse"),
        ("evaluation", "only available in training mode"),
        ("two slots for one", "Expected 1 graph-memory slots, got 2"),
        ("six numbers", "must be a tuple of seven integers"),
        ("another allocator", "requires the native CUDA caching allocator"),
        ("sparse output", "does not support public CUDA outputs that are tensor subclasses"),
        ("hooks", "Modules must not have hooks registered"),
    ],
)
def test_memory_slots_are_refused(engine, change, message):
    assert engine["slots"] == "", "without the change they are captured"
    assert message in engine[change]


def test_hooks_of_a_layer_are_not_seen_by_6479(stage, graph_line):
    """6479 wraps each layer in a module of its own, and only that one's hooks are looked at."""
    for wrapped, message in ((False, "Modules must not have hooks registered"), (True, "")):
        (said,) = stage.call(f"{WORLD}hooked", 1, wrapped, upstream=graph_line(BANKS[0]))
        assert message in said if message else said == ""


def test_a_released_engine_knows_no_memory_slots(stage, graph_line):
    (found,) = stage.call(f"{WORLD}engine", 1, upstream=graph_line("megatron-lm-dev"))
    assert "unexpected keyword argument '_graph_memory_slots'" in found["slots"]


def test_a_short_input_is_broadcast(stage, graph_line, engine):
    (released,) = stage.call(f"{WORLD}engine", 1, upstream=graph_line("megatron-lm-dev"))
    for found in (engine, released):
        assert found["one row"] == "[[2, 4], True]", "the row fills both"
        assert "must match" in found["three rows"]
