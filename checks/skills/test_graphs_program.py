"""Megatron's own training program with a graph bank: what it prints, refuses, captures and replays.

Upstream's unmodified `pretrain_gpt.py` runs on ranks without GPUs, its graphs on the tape. That the
losses of these runs are those of eager is in `checks/rehearsal/test_graphs_training.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from checks.rehearsal.test_graphs_training import BANK, DYNAMIC, GRAPHS, MODEL, PACKED, ROPE, SCRIPT
from checks.skills.commands import rehearsed
from checks.skills.shared import REPOSITORY, blocks, spec_of
from ringproof.rehearsal.fixtures import SessionServers
from ringproof.rehearsal.protocol.program import Program, Upstream
from ringproof.rehearsal.runs.outcome import Outcome

SKILL = REPOSITORY / "skills" / "dynamic-cp-cuda-graphs"
BANKS = ("megatron-lm-pr6479", "megatron-lm-pr5618")
WATCH = "checks.skills.graphs_run:watch"
NO_POSITION = "--position-embedding-type none"
TWO_STAGES = "--pipeline-model-parallel-size 2 --max-seqlen-per-dp-cp-rank 128"
Line = Callable[[str], Upstream]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def launch(
    stage: SessionServers,
    upstream: Upstream,
    ranks: int,
    more: str = "",
    *,
    model: str = ROPE,
    steps: int = 6,
    graphs: str = f"{GRAPHS}{BANK}",
    planted: tuple[str, ...] = (),
    batch: str = "--global-batch-size 8",
    **environment: str,
) -> Outcome:
    """Train with Dynamic CP over all ranks of a stage."""
    text = (
        f"{MODEL} --train-iters {steps} {PACKED.replace('--global-batch-size 8', batch)} "
        f"--max-seqlen-per-dp-cp-rank {256 // ranks} {DYNAMIC} "
        f"{model} --logging-level 20 {graphs} {more}"
    )
    program = Program(
        upstream,
        SCRIPT,
        tuple(text.split()),
        ranks,
        environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1", **environment},
        faults=planted,
    )
    return stage.run(program)


def log_of(outcome: Outcome) -> str:
    """All lines of the first rank of each stage."""
    logs = [outcome.folder / f"rank-{report.rank}.log" for report in outcome.ranks]
    return "\n".join(log.read_text(errors="replace") for log in logs)


def message(outcome: Outcome) -> str:
    assert outcome.failure is not None, "it trained"
    return outcome.failure.message


# --- the bank of a training, watched ---


def watched(stage: SessionServers, upstream: Upstream) -> Outcome:
    """A training on two pipeline stages of two ranks each, watched."""
    outcome = launch(stage, upstream, 4, TWO_STAGES, planted=(WATCH,))
    assert outcome.failure is None, outcome.failure
    return outcome


# A fixture for each line, so that what ran is attributed to every test that looks at it.


@pytest.fixture(scope="module")
def new_pipeline(stage: SessionServers, graph_line: Line) -> Outcome:
    return watched(stage, graph_line(BANKS[0]))


@pytest.fixture(scope="module")
def old_pipeline(stage: SessionServers, graph_line: Line) -> Outcome:
    return watched(stage, graph_line(BANKS[1]))


@pytest.fixture(scope="module")
def pipelines(new_pipeline: Outcome, old_pipeline: Outcome) -> Callable[[str], Outcome]:
    """The trainings by line."""
    return dict(zip(BANKS, (new_pipeline, old_pipeline), strict=True)).__getitem__


def seen(outcome: Outcome) -> dict[str, Any]:
    """What the first rank handed over; all ranks saw the same."""
    values = [report.results for report in outcome.ranks]
    assert all(value == values[0] for value in values)
    return dict(values[0])


def test_a_pipeline_captures_live_slots_in_one_pool(pipelines, record_property):
    new, old = (pipelines(line) for line in BANKS)
    found = {line: seen(run) for line, run in zip(BANKS, (new, old), strict=True)}
    record_property("captured", {line: one["entries"] for line, one in found.items()})
    assert found[BANKS[0]]["entries"] == [{"2": 2, "1": 2}], "as many slots as stages"
    assert found[BANKS[1]]["entries"] == [{"2": 8, "1": 8}], "the global batch"
    assert [{use.pool for use in report.graphs} for report in new.ranks] == [{0}] * 4
    assert [{use.pool for use in report.graphs} for report in old.ranks] == [{0, 1}] * 4
    assert [len(run.ranks[0].graphs) for run in (new, old)] == [2 * 2 * 2, 2 * 2 * 8]
    assert found[BANKS[0]]["limit"] == 8, "microbatches of a step"


@pytest.mark.parametrize("line", BANKS)
def test_the_snippet_counts_replays_by_size(pipelines, line):
    replays = seen(pipelines(line))["replays"]
    assert set(replays) == {"1", "2"} and min(replays.values()) > 0
    assert seen(pipelines(line))["selected"] == [1], "the smallest size was installed last"


def test_what_has_no_entry_is_refused_in_words(pipelines):
    said = seen(pipelines(BANKS[0]))["refused"]
    assert (said["size 1"], said["size 2"]) == ("", "")
    assert said["size 64"] == (
        "RuntimeError: No layer CUDA graph bank entry for local_cp_size=64; "
        "available sizes are [1, 2]."
    )
    other = "RuntimeError: Dynamic-CP CUDA graph replay received a process group that does not"
    assert said["a twin of the group"].startswith(other)
    assert said["the group of another size"].startswith(other)
    without = "RuntimeError: Dynamic-CP CUDA graph replay requires packed sequence metadata"
    assert said["no metadata"].startswith(without) and said["no size"].startswith(without)


def test_5618_refuses_without_words(pipelines):
    said = seen(pipelines(BANKS[1]))["refused"]
    assert said["a twin of the group"] == said["no size"] == "AssertionError: "
    assert said["size 64"].startswith("AssertionError: No layer CUDA graph bank entry for")


def printed_by(card: Any, *markers: str) -> list[str]:
    return [marker.pattern for marker in card.markers if marker.id in markers]


@pytest.mark.parametrize(
    ("line", "own"), [(BANKS[0], ("variants", "slots-line")), (BANKS[1], ("slots-line-5618",))]
)
def test_the_markers_are_printed(pipelines, card, line, own):
    text = log_of(pipelines(line))
    shared = ("graphable-layers", "capture-start", "capture-time", "graphs-deleted")
    patterns = printed_by(card, *shared, *own)
    assert len(patterns) == len(shared) + len(own)
    assert [pattern for pattern in patterns if not re.search(pattern, text)] == []
    others = {"variants", "slots-line", "slots-line-5618"} - set(own)
    assert not any(re.search(pattern, text) for pattern in printed_by(card, *others))
    deleted = [int(n) for n in re.findall(r"(\d+) graphs deleted with explicit reset", text)]
    assert deleted[0] == {BANKS[0]: 2 * 2, BANKS[1]: 2 * 8}[line], "layers, slots, sizes"


def test_the_ring_of_a_small_group_runs_on_the_communicator_of_all(stage, graph_line):
    """Messages between ranks while training and capturing, by group, on a domain of four."""
    sent = {}
    for line in BANKS:
        run = launch(stage, graph_line(line), 4, steps=6)
        assert run.failure is None, run.failure
        sent[line] = {t.group: t.calls for t in run.ranks[0].traffic if t.operation == "isend"}
    small = {line: sent[line].get("DYNAMIC_DP_CP_GROUP_2", 0) for line in BANKS}
    assert small[BANKS[0]] * 4 < small[BANKS[1]], "its evaluation alone"
    assert sent[BANKS[0]]["DATA_PARALLEL_GROUP_WITH_CP"] > sent[BANKS[1]][
        "DATA_PARALLEL_GROUP_WITH_CP"
    ]  # fmt: skip


@pytest.mark.parametrize("line", BANKS)
def test_the_engine_names_each_captured_size(stage, graph_line, card, line):
    """The budget is 64; 3353 is based on 2.14.1, whose line has no cp_size."""
    run = launch(stage, graph_line(line), 4, planted=("checks.skills.graphs_run:log_engine",))
    assert run.failure is None, run.failure
    (pattern,) = printed_by(card, "te-captured")
    lines = [line for line in log_of(run).splitlines() if re.search(pattern, line)]
    found = {int(number) for each in lines for number in re.findall(r"'max_seqlen_q': (\d+)", each)}
    assert found == {64, 128, 256}
    named = {number for each in lines for number in re.findall(r"'cp_size': (\d+)", each)}
    assert named == (set() if line == BANKS[0] else {"1", "2", "4"})


KNOWN = re.compile(
    r"\[Sequence Packing\] Skipping automatic checkpoint|^ \[.*\] iteration +\d+/|^\s*$"
)


def said_while_replaying(text: str) -> list[str]:
    """What is printed between the capture and the end, apart from lines that name no microbatch."""
    _, _, trained = text.partition("Time spent in CUDA Graphs capture")
    trained = trained.partition("graphs deleted with explicit reset")[0]
    steps = re.findall(r"^ \[[^\n]*\] iteration +[4-6]/.*$", text, re.MULTILINE)
    own = [line for line in trained.splitlines()[1:-1] if not KNOWN.search(line)]
    return own + [line for line in steps if re.search(r"\b(cp|context)\b", line, re.IGNORECASE)]


@pytest.mark.parametrize("line", BANKS)
def test_no_line_names_the_size_of_a_microbatch(pipelines, line):
    text = log_of(pipelines(line))
    assert "dynamic_context_parallel" in text, "options are printed"
    assert "local_cp_size" not in text
    assert "Time spent in CUDA Graphs capture" in text
    assert said_while_replaying(text) == []
    mark = "[Sequence Packing] Skipping automatic checkpoint at iteration 5"
    assert mark in text, "a step with replays"
    for spoilt in (
        text.replace(mark, f"replayed the graph of 2 ranks\n{mark}"),
        re.sub(r"(iteration +5/ +6 \|)", r"\1 cp: 2 |", text),
    ):
        assert said_while_replaying(spoilt) != [], "the control"


def test_a_size_that_no_data_needs_is_captured(stage, graph_line, tmp_path):
    """Sequences on ranks of 64 tokens: the long ones need all four ranks, and no other size."""
    replays = {}
    for name, lengths in (("short", (16, 60)), ("long", (250, 200))):
        file = tmp_path / f"{name}.csv"
        file.write_text("length\n" + "\n".join(map(str, lengths * 200)) + "\n")
        data = json.dumps({"mode": "file", "path": str(file), "format": "thd"})
        more = f"--varlen-mock-dataset-config-json {data.replace(' ', '')} --global-batch-size 16"
        run = launch(stage, graph_line(BANKS[0]), 4, more, planted=(WATCH,))
        assert run.failure is None, run.failure
        assert seen(run)["entries"] == [{"4": 1, "2": 1, "1": 1}] * 2
        replays[name] = set(seen(run)["replays"])
    assert replays["long"] == {"4"}
    assert "1" in replays["short"]


# --- what the program refuses ---


@pytest.mark.parametrize(
    ("more", "environment", "words"),
    [
        ("--dataloader-type cyclic", {}, "only supported with single dataloader type"),
        ("", {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, "NCCL_GRAPH_REGISTER=0"),
        (
            "--use-megatron-fsdp --ckpt-format fsdp_dtensor",
            {"CUDA_DEVICE_MAX_CONNECTIONS": "8"},
            "not supported with Megatron FSDP",
        ),
        ("--max-seqlen-per-dp-cp-rank 129", {}, "must be divisible by 2 * context_parallel_size"),
    ],
    ids=["dataloader", "expandable segments", "FSDP", "odd budget"],
)
def test_the_program_refuses(stage, graph_line, more, environment, words):
    said = message(launch(stage, graph_line(BANKS[0]), 2, more, **environment))
    assert words in said


def test_a_released_engine_stops_the_start(stage, card):
    """Before the first step: the helper asks for a function of pull request 3353."""
    run = launch(stage, stage.upstream(spec_of(card, BANKS[0])), 2)
    assert "cannot import name 'set_cp_p2p_transport_group'" in message(run)
    assert not run.losses


def test_a_domain_of_six_is_refused(stage, graph_line):
    """Before the first step, when the capture helper is made."""
    more = "--max-seqlen-per-dp-cp-rank 72 --global-batch-size 12"
    run = launch(stage, graph_line(BANKS[0]), 6, more)
    assert "Dynamic CP graph sizes must be powers of two with min <= max." in message(run)
    assert not run.losses


def test_flash_attention_is_refused(stage, graph_line):
    run = launch(stage, graph_line(BANKS[0]), 2, "--attention-backend flash")
    assert "No dot product attention backend is available" in message(run)
    assert launch(stage, graph_line(BANKS[0]), 2, "--attention-backend fused").failure is None


def test_a_schedule_of_batch_sizes_is_refused(stage, graph_line):
    def schedule(graphs: str) -> Outcome:
        more = "--step-batch-size-schedule 0:8"
        return launch(stage, graph_line(BANKS[0]), 2, more, graphs=graphs, batch="")

    said = message(schedule(f"{GRAPHS}{BANK}"))
    assert "Dynamic CP CUDA graphs do not support step_batch_size_schedule." in said
    eager = schedule("--cuda-graph-impl none")
    assert eager.failure is None or "step_batch_size" not in eager.failure.message


@pytest.mark.parametrize("line", [BANKS[0], "megatron-lm-dev"])
def test_the_old_switch_meets_a_dead_check(stage, graph_line, line):
    graphs = "--enable-cuda-graph --thd-max-packed-sequences 16"
    said = message(launch(stage, graph_line(line), 2, graphs=graphs))
    assert "'Namespace' object has no attribute 'enable_cuda_graph'" in said


def test_5618_cannot_capture_virtual_stages(stage, graph_line):
    """6479 can: `test_graphs_training.py` trains it bit by bit as eager."""
    more = f"{TWO_STAGES} --num-layers 4 --num-virtual-stages-per-pipeline-rank 2"
    run = launch(stage, graph_line(BANKS[1]), 4, f"{more} --global-batch-size 16")
    assert "no attribute '_cuda_graph_capture_dynamic_cp'" in message(run)
    assert len(run.losses) == 2, "after the warm-up"


def test_a_step_with_too_many_microbatches_is_refused(stage, graph_line):
    planted = ("checks.skills.graphs_run:allow_one_microbatch",)
    run = launch(stage, graph_line(BANKS[0]), 4, TWO_STAGES, planted=planted)
    said = message(run)
    assert re.search(r"num_micro_batches=\d+ exceeds captured CUDA graph graph_slots=1", said)


# --- the command of the skill ---


def test_the_command_starts_and_agrees(stage, graph_line, text, tmp_path):
    """As SKILL.md writes it, in small: it starts, takes the path asked for, captures and agrees."""
    (command,) = (block for block in blocks(text, "bash") if block.startswith("CUDA_DEVICE_MAX"))
    shown = rehearsed(command, graph_line(BANKS[0]), tmp_path)
    assert shown.data["launch"]["ranks"] == 8
    (report,) = [json.loads(file.read_text()) for file in shown.folder.rglob("program/rank-0.json")]
    assert len(report["graphs"]) == 2 * 2 * 4, "forward and backward, two layers, four sizes"


# --- what dev does, by the kind of model ---

MLA = (
    "--multi-latent-attention --q-lora-rank 32 --kv-lora-rank 32 --qk-head-dim 16 "
    "--qk-pos-emb-head-dim 16 --v-head-dim 16 --position-embedding-type rope --no-rope-fusion"
)
SHAPE = "The size of tensor a (128) must match the size of tensor b (256)"
SHORT_TABLE = " is out of bounds for dimension 0 with size 128"
"""The index is of the rank that raises first: 128 on one, 192 on the other."""
STALE = "fails in the replay: index 17 is out of bounds for dimension 0 with size 17"
LONGER = "fused_attn_fwd with max_seqlen_q=128"


@pytest.mark.parametrize(
    ("model", "static", "words"),
    [
        (ROPE, 1, SHAPE),
        (f"{ROPE} --no-rope-fusion", 2, SHAPE),
        (ROPE, 2, SHORT_TABLE),
        (NO_POSITION, 1, LONGER),
        (NO_POSITION, 2, STALE),
        (MLA, 1, LONGER),
        (MLA, 2, STALE),
    ],
    ids=["rope-1", "rope-unfused-2", "rope-2", "none-1", "none-2", "mla-1", "mla-2"],
)
def test_dev_by_the_kind_of_model(stage, graph_line, model, static, words):
    """Two steps train; what the third does depends on the rotary table. Eager trains all."""
    dev, size = graph_line("megatron-lm-dev"), f"--context-parallel-size {static}"
    eager = launch(stage, dev, 2, size, model=model, graphs="--cuda-graph-impl none")
    assert eager.failure is None and len(eager.losses) == 6
    run = launch(stage, dev, 2, size, model=model)
    assert words in message(run)
    assert len(run.losses) == 2


@pytest.mark.parametrize("model", [NO_POSITION, MLA], ids=["none", "mla"])
def test_dev_drifts_without_a_message_on_an_older_engine(stage, graph_line, model):
    dev = f"NVIDIA/Megatron-LM@{graph_line('megatron-lm-dev').megatron_name.rpartition('=')[2]}"
    upstream = stage.upstream(dev, "pip:transformer-engine==2.15.0")
    more = "--context-parallel-size 2 --rerun-mode disabled --no-check-for-nan-in-loss-and-grad"
    eager = launch(stage, upstream, 2, more, model=model, graphs="--cuda-graph-impl none")
    run = launch(stage, upstream, 2, more, model=model)
    assert eager.failure is None and run.failure is None
    losses = [[step["lm loss"] for step in one.losses.values()] for one in (eager, run)]
    assert losses[0][:2] == losses[1][:2], "warm-up is eager in both"
    assert losses[0][2] != losses[1][2]
