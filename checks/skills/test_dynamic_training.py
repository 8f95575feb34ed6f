"""Megatron-LM's own training program with Dynamic CP, by version: what trains and what fails how.

``pretrain_gpt.py`` of a checkout runs unchanged on Transformer Engine's own Python without
GPUs; `checks/skills/conftest.py` says how to give a checkout. Three steps of a tiny float32 model.
"""

from __future__ import annotations

import re

import pytest

from checks.skills.commands import rehearsed
from checks.skills.shared import REPOSITORY, blocks
from ringproof.rehearsal.protocol.program import Program

SKILL = REPOSITORY / "skills" / "dynamic-context-parallel"
SCRIPT = "pretrain_gpt.py"
CASES = "checks.skills.dynamic_cases"
ROUNDING = 1e-6  # relative, of float32 losses over three steps
NORMS = 1e-5  # relative, of gradient norms, whose sums are longer
MODEL = """--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 256
--max-position-embeddings 256 --normalization RMSNorm --swiglu --disable-bias-linear
--transformer-impl transformer_engine --attention-backend fused --vocab-size 255
--make-vocab-size-divisible-by 128 --untie-embeddings-and-output-weights --attention-dropout 0
--hidden-dropout 0"""
RUN = """--micro-batch-size 1 --global-batch-size 8 --train-iters 3 --lr 1e-3 --min-lr 1e-3
--tokenizer-type NullTokenizer --mock-data --num-workers 0 --log-interval 1 --eval-iters 1
--eval-interval 1000 --split 99,1,0 --calculate-per-token-loss --dataloader-type single
--no-create-attention-mask-in-dataloader"""
ROPE = "--position-embedding-type rope"
HYBRID = "--sft --context-parallel-size 2 --hybrid-context-parallel --max-seqlen-per-dp-cp-rank 64"
UNCHECKED = "--rerun-mode disabled"
LENGTHS = """--use-varlen-dataset --varlen-mock-dataset-config-json {"mode":"distribution",\
"type":"lognormal","min_seq_len":16,"max_seq_len":256,"mean_seq_len":96,"lognormal_sigma":1.1}"""
DYNAMIC = f"{LENGTHS} --dynamic-context-parallel --max-seqlen-per-dp-cp-rank"
STATIC = f"{LENGTHS} --sequence-packing-scheduler dp_balanced --max-seqlen-per-dp-cp-rank 256"
EXPERTS = """--num-experts 4 --moe-token-dispatcher-type alltoall --moe-router-topk 2
--moe-aux-loss-coeff 0.01 --moe-router-load-balancing-type aux_loss"""
MTP = "--mtp-num-layers 1"
MLA = """--multi-latent-attention --q-lora-rank 32 --kv-lora-rank 32 --qk-head-dim 16
--qk-pos-emb-head-dim 16 --v-head-dim 16 --no-rope-fusion"""
STAGES = (
    """--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2 --num-layers 4"""
)


@pytest.fixture(scope="module")
def train(stage, upstream_of):
    """Run a version's program on some ranks."""

    def run(version, ranks, *options, faults=(), preload=None, connections="1"):
        arguments = " ".join((MODEL, RUN, *options)).split()
        program = Program(
            upstream_of(version),
            SCRIPT,
            tuple(arguments),
            ranks,
            faults=faults,
            environment={"CUDA_DEVICE_MAX_CONNECTIONS": connections},
        )
        return stage.run(program, preload=preload)

    return run


@pytest.fixture(scope="module")
def dev(train):
    def run(ranks, *options, **more):
        return train("megatron-lm-dev", ranks, ROPE, *options, **more)

    return run


@pytest.fixture(scope="module")
def old(train):
    """Megatron-LM 0.16.1 on two ranks."""

    def run(*options, **more):
        faults = (f"{CASES}:leave_tokenizers_out",)
        return train("megatron-lm-release", 2, *options, faults=faults, preload="", **more)

    return run


def sizes(outcome, phase="train"):
    return {call.size for rank in outcome.ranks for call in rank.attention if call.phase == phase}


def apart(outcome, other):
    """Largest relative differences over three steps: of the losses, and of the gradient norms."""
    assert outcome.failure is None, outcome.failure
    assert set(outcome.losses) == set(other.losses) == {1, 2, 3}
    losses = [(outcome.losses[i]["lm loss"], other.losses[i]["lm loss"]) for i in (1, 2, 3)]
    norms = [(outcome.grad_norms[i], other.grad_norms[i]) for i in (1, 2, 3)]
    return tuple(
        max(abs(found - right) / right for found, right in pairs) for pairs in (losses, norms)
    )


def same(outcome, other):
    losses, norms = apart(outcome, other)
    return losses < ROUNDING and norms < NORMS


def said(outcome):
    assert outcome.failure is not None
    return outcome.failure.message


OTHERS = ("megatron-lm-r0.17", "megatron-lm-r0.18", "megatron-lm-r0.19", "megatron-lm-main")


@pytest.mark.parametrize("version", OTHERS)
def test_static_training_works_on_every_line(train, version):
    assert train(version, 1, ROPE, "--sft", UNCHECKED).failure is None


@pytest.mark.parametrize("version", OTHERS)
def test_the_rerun_machine_refuses_the_hybrid_iterator(train, version):
    outcome = train(version, 2, ROPE, HYBRID)
    assert "data iterator is not wrapped with RerunDataIterator" in said(outcome)
    assert outcome.failure.place.startswith("megatron/core/rerun_state_machine.py:")
    assert outcome.losses == {}


@pytest.mark.parametrize(
    ("version", "message", "place"),
    [
        (OTHERS[0], "TypeError: backward_step() takes 4 positional arguments but 5 were given",
         "megatron/core/pipeline_parallel/hybrid_cp_schedule.py"),
        *((version, "IndexError: tuple index out of range", "megatron/core/utils.py")
          for version in OTHERS[1:]),
    ],
)  # fmt: skip
def test_the_hybrid_line_fails_in_the_first_step(train, version, message, place):
    outcome = train(version, 2, ROPE, HYBRID, UNCHECKED)
    assert said(outcome) == message
    assert outcome.failure.place.rpartition(":")[0] == place
    assert outcome.losses == {}


REFUSED = {
    "loader": ("--dataloader-type cyclic", "only supported with single dataloader type"),
    "FSDP": (
        "--use-megatron-fsdp --ckpt-format fsdp_dtensor --use-distributed-optimizer "
        "--no-gradient-accumulation-fusion",
        "not supported with Megatron FSDP",
    ),
}


@pytest.mark.parametrize("option", REFUSED)
def test_the_command_lines_refuse(dev, old, option):
    given, message = REFUSED[option]
    several = {"connections": "8"}  # which FSDP asks for first
    assert message in said(dev(2, f"{DYNAMIC} 256", given, **several))
    assert message in said(old(HYBRID, UNCHECKED, given, **several))


def test_the_release_has_no_pipeline(old):
    message = "Hybrid context parallelism not supported with pipeline parallelism"
    stages = "--pipeline-model-parallel-size 2 --context-parallel-size 1"
    assert message in said(old(HYBRID, UNCHECKED, stages))


def test_the_release_trains_and_fails_to_evaluate(old):
    """Without rotary positions; the losses do not depend on the sizes of groups."""
    positions = "--position-embedding-type learned_absolute"
    mixed = old(HYBRID, UNCHECKED, positions)
    alone = old(HYBRID, UNCHECKED, positions, "--max-seqlen-per-dp-cp-rank 128")
    assert [sizes(mixed), sizes(alone)] == [{1, 2}, {1}]
    assert set(mixed.losses) == {1, 2, 3}
    for step, loss in mixed.losses.items():
        assert loss["lm loss"] == pytest.approx(alone.losses[step]["lm loss"], rel=ROUNDING)
    assert mixed.losses[3]["lm loss"] < mixed.losses[1]["lm loss"] * 0.999, "it learns"
    for outcome in (mixed, alone):
        assert said(outcome).startswith(("KeyError", "IndexError"))
        assert "hybrid_cp_schedule.py" in outcome.failure.place, "in the first evaluation"


@pytest.mark.slow
def test_tensor_parallel_ranks_of_the_release_expect_another_size(stage, upstream_of):
    """The first rank sends a count of 8 bytes where the others wait for a CP size of 4."""
    release = upstream_of("megatron-lm-release")
    hybrid, static = stage.call(f"{CASES}:broadcasts", 1, None, upstream=release)[0]
    sent, awaited = hybrid
    assert next(pair for pair in zip(sent, awaited, strict=False) if len({*pair}) > 1) == (8, 4)
    assert static[0] == static[1], "a batch of fixed length"


def test_no_evaluation_is_refused_up_to_0_19(train):
    outcome = train(OTHERS[0], 2, ROPE, HYBRID, UNCHECKED, "--eval-iters 0")
    assert said(outcome) == "AssertionError: no sample to consume: 0"
    assert outcome.losses == {}


def test_rotary_positions_of_the_release_are_cut_for_size_one(old):
    outcome = old(HYBRID, UNCHECKED, ROPE)
    assert said(outcome).startswith("IndexError: index 32 is out of bounds")
    assert outcome.failure.place.startswith("transformer_engine/pytorch/attention/rope.py")


@pytest.fixture(scope="module")
def one(dev):
    return dev(1, STATIC)


def evaluation(outcome):
    found = [losses for rank in outcome.ranks for losses in rank.evaluations[-1:]]
    return next(losses["lm loss"] for losses in found if losses)


@pytest.mark.parametrize(
    ("ranks", "options", "expected"),
    [
        pytest.param(4, f"{DYNAMIC} 64", {1, 2, 4}, id="dynamic on 4"),
        pytest.param(4, f"{DYNAMIC} 64 --context-parallel-size 4", {1, 2, 4}, id="static size 4"),
        pytest.param(
            4, f"{DYNAMIC} 128 --pipeline-model-parallel-size 2", {1, 2}, id="PP 2, dynamic on 2"
        ),
        pytest.param(
            4, f"{DYNAMIC} 128 --tensor-model-parallel-size 2 --sequence-parallel", {1, 2},
            id="TP 2, dynamic on 2",
        ),
    ],
)  # fmt: skip
def test_dev_trains_and_evaluates_like_one_rank(dev, one, ranks, options, expected):
    outcome = dev(ranks, options)
    assert sizes(outcome) == expected
    assert same(outcome, one)
    assert evaluation(outcome) == pytest.approx(evaluation(one), rel=ROUNDING)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["", "mla_refuses"])
def test_mla_of_dev_trains_like_one_rank(dev, fault):
    """The control refuses a CP size of its own, as the releases do."""
    planted = (f"{CASES}:{fault}",) if fault else ()
    outcome = dev(4, f"{DYNAMIC} 64", MLA, faults=planted)
    if fault:
        assert "not supported with MLA" in said(outcome)
        return
    assert sizes(outcome) == {1, 2, 4}
    assert same(outcome, dev(1, STATIC, MLA))


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "filled"), [(4, 64), (6, 43)])
def test_the_command_line_of_dev_fills_in_a_budget(dev, ranks, filled):
    """The sequence length of 256 over the domain, rounded up."""
    outcome = dev(ranks, LENGTHS, "--dynamic-context-parallel --global-batch-size 12")
    log = (outcome.folder / "rank-0.log").read_text(errors="replace")
    assert re.findall(r"max_seqlen_per_dp_cp_rank \.+ (\S+)", log) == [str(filled)]


def test_the_router_loss_of_dev_is_that_of_one_rank(dev):
    outcome, alone = dev(4, f"{DYNAMIC} 64", EXPERTS), dev(1, STATIC, EXPERTS)
    assert sizes(outcome) == {1, 2, 4}
    assert same(outcome, alone)


def test_the_mtp_loss_of_dev_is_not_that_of_one_rank(dev):
    """It is scaled by tokens of one rank and microbatch; the difference is more than rounding."""
    outcome, alone = dev(4, f"{DYNAMIC} 64", MTP), dev(1, STATIC, MTP)
    assert NORMS < max(apart(outcome, alone)) < 0.1


def test_the_old_name_is_not_dynamic_on_dev(dev, one):
    old_name = f"{LENGTHS} --hybrid-context-parallel --max-seqlen-per-dp-cp-rank"
    refused = dev(4, f"{old_name} 64")
    assert "Packed sequence buffer size (64) must be >= single sequence" in said(refused)
    outcome = dev(4, f"{old_name} 256")
    found = {name for rank in outcome.ranks for name in [t.group for t in rank.traffic]}
    assert sizes(outcome) <= {1}
    assert not any(name.startswith("DYNAMIC_DP_CP_GROUP") for name in found)


def test_data_without_lengths_is_a_key_error_on_dev(dev):
    outcome = dev(2, "--dynamic-context-parallel --max-seqlen-per-dp-cp-rank 128")
    assert said(outcome) == "KeyError: 'cu_seqlens'"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "comm"),
    [
        ("megatron-lm-dev", "a2a"),
        ("megatron-lm-dev", "all_gather"),
        ("megatron-lm-pr5618", "a2a"),
        ("megatron-lm-pr6479", "a2a"),
    ],
)
def test_a_static_size_of_one_ignores_the_communication_type(train, version, comm):
    def types(size):
        options = f"{DYNAMIC} 128 --cp-comm-type {comm} --context-parallel-size {size}"
        outcome = train(version, 2, ROPE, options)
        assert outcome.failure is None
        shared = [call for rank in outcome.ranks for call in rank.attention if call.size > 1]
        return {call.comm_type for call in shared}

    assert types(1) == {"p2p"}
    assert types(2) == {comm}


def test_two_levels_pass_the_arguments_of_dev_and_fail_in_attention(dev):
    levels = "--cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 2 2"
    outcome = dev(4, f"{DYNAMIC} 64 --context-parallel-size 4", levels)
    assert "a2a+p2p requires cp_group = [a2a_cp_group, p2p_cp_group]" in said(outcome)


def test_six_ranks_pass_the_arguments_of_dev_and_have_no_group_of_four(dev):
    outcome = dev(6, f"{DYNAMIC} 72 --global-batch-size 12")
    assert said(outcome) == "KeyError: 4"


def test_too_few_sequences_for_virtual_stages_of_dev(dev):
    groups_of_four = "--microbatch-group-size-per-virtual-pipeline-stage 4"
    outcome = dev(4, f"{DYNAMIC} 128 --global-batch-size 2", STAGES, groups_of_four)
    assert "no tail microbatch has enough ids to split" in said(outcome)


def test_enough_sequences_for_virtual_stages_of_dev(dev):
    deep = "--num-layers 4 --global-batch-size 16"
    assert same(dev(4, f"{DYNAMIC} 128", STAGES, deep), dev(1, STATIC, deep))


def test_alignment_needs_a_budget_on_the_command_line(dev):
    align = "--pad-packed-seq-alignment max"
    outcome = dev(2, LENGTHS, "--dynamic-context-parallel", align)
    assert "--max-seqlen-per-dp-cp-rank must be set when" in said(outcome)
    assert dev(2, f"{DYNAMIC} 128", align).failure is None


def test_an_odd_smallest_size_of_four_ranks_is_four(dev, one):
    outcome = dev(4, f"{DYNAMIC} 64 --min-dynamic-context-parallel-size 3")
    assert sizes(outcome) == {4}
    assert same(outcome, one)


def test_graphs_need_an_alignment_on_the_command_line(dev):
    outcome = dev(2, f"{DYNAMIC} 128 --cuda-graph-impl local")
    assert "THD CUDA Graph requires --pad-packed-seq-alignment to be set" in said(outcome)


@pytest.mark.slow
def test_the_command_of_the_skill_starts_and_agrees(text, card, dev_upstream, tmp_path):
    """As it stands in SKILL.md, with eight ranks; its losses are those of one rank."""
    (command,) = (block for block in blocks(text, "bash") if "torchrun" in block)
    shown = rehearsed(command, dev_upstream, tmp_path)
    assert shown.data["launch"]["ranks"] == 8
    assert "CP sizes of the groups in microbatches: 2 (" in shown.printed
    shown.check_markers(card, "startup-warning", "arguments-dynamic")


def test_the_snippet_counts_the_sizes_of_a_training(text, stage, dev_upstream):
    """The snippet of SKILL.md, planted into upstream's program on four ranks."""
    options = f"{MODEL} {RUN} {ROPE} {DYNAMIC} 64"
    planted = ("checks.skills.dynamic_cases:count_sizes",)
    program = Program(dev_upstream, SCRIPT, tuple(options.split()), 4, faults=planted)
    outcome = stage.run(program)
    assert outcome.failure is None, outcome.failure
    logs = [outcome.folder / f"rank-{report.rank}.log" for report in outcome.ranks]
    printed = [log.read_text(errors="replace").count("local_cp_size histogram: {") for log in logs]
    assert min(printed) >= 1
