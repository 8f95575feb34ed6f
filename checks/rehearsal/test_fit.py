"""``ringproof fit``: how a launch is prepared, what it prints, and its answers to bad input."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.rehearsal.memory import begun, summary
from ringproof.cli.main import app
from ringproof.errors import InputError
from ringproof.launch.flags import Flags
from ringproof.launch.full.size import NULL_TOKENIZER_IDS, expandable, full_size
from ringproof.launch.reading import Launch
from ringproof.launch.small.layout import layout
from ringproof.rehearsal.fit.fitting import FitRequest, Fitting, Prepared, Refused
from ringproof.rehearsal.fit.gpus import CONTEXT_BYTES, CUBLAS_BYTES, GIB, gpu
from ringproof.rehearsal.fit.longest import (
    Length,
    Longest,
    longest,
    longest_as_json,
    search,
    with_length,
)
from ringproof.rehearsal.fit.longest import lines as tried_lines
from ringproof.rehearsal.fit.page import page
from ringproof.rehearsal.fit.pictures import HEIGHT, picture
from ringproof.rehearsal.fit.ranks import (
    bubble,
    check_crowded,
    check_room,
    chunks,
    of_the_stage,
    ranks_of_interest,
    unmeasured_stages,
)
from ringproof.rehearsal.fit.rendering import gib, lines
from ringproof.rehearsal.fit.result import ACCURACY, Fit, RankMemory, as_json, assumptions
from ringproof.rehearsal.fit.shallow import depths, extended, with_layers
from ringproof.rehearsal.fit.vary import (
    Choice,
    choices_as_json,
    combinations,
    table,
    vary,
    with_settings,
)
from ringproof.rehearsal.protocol.memory import HeldTensors, MemoryReport, StepMemory
from ringproof.rehearsal.protocol.reports import Failure
from ringproof.rehearsal.protocol.traffic import GroupTraffic

OPTIONS = frozenset({
    "--train-iters", "--global-batch-size", "--mock-data", "--tokenizer-type", "--vocab-size",
    "--num-workers", "--eval-iters", "--log-interval", "--fp8-format", "--data-path", "--lr",
    "--no-check-for-nan-in-loss-and-grad", "--attention-backend", "--tokenizer-model",
    "--rampup-batch-size",
})  # fmt: skip
ARGUMENTS = (
    "--num-layers 32 --micro-batch-size 2 --global-batch-size 1024 --pipeline-model-parallel-size 4"
    " --tokenizer-type GPT2BPETokenizer --data-path /data/x --train-iters 50000 --lr 1e-4 --bf16"
    " --fp8-format hybrid --attention-backend flash"
)


def launch(arguments: str = ARGUMENTS, ranks: int = 8) -> Launch:
    return Launch("pretrain_gpt.py", tuple(arguments.split()), {"NVTE_X": "1"}, 1, ranks, "a.sh:1")


def report(peak: int = 30 * GIB) -> MemoryReport:
    held = HeldTensors(7 * GIB, 32, "activations", (16384, 7168), "bfloat16", "gemm.py:301", "MLP")
    return MemoryReport(
        peak=peak,
        steady=10 * GIB,
        at_peak={"parameters": 10 * GIB, "activations": peak - 10 * GIB},
        at_rest={"parameters": 10 * GIB},
        place="megatron/core/x.py:7",
        module="GPTModel",
        phase="forward",
        highest={"forward megatron/core/x.py:7": peak, "optimizer megatron/core/y.py:1": 9 * GIB},
        largest=(held,),
        steps=(StepMemory(1, 2, 3, 0.5),),
        sent=(
            GroupTraffic("CONTEXT_PARALLEL_GROUP", (0, 1), "isend", 4, 11_274_000_000),
            GroupTraffic("DATA_PARALLEL_GROUP_WITH_CP", (0, 1), "all_reduce", 1, 2_500_000_000),
        ),
        flops=7 * 10**14,
    )


def found(peak: int = 30 * GIB, name: str = "h100") -> Fit:
    program = full_size(launch(), options=OPTIONS)
    ranks = (RankMemory(0, "first pipeline stage", report(peak), 9.0, 16384),
             RankMemory(6, "last pipeline stage", report(20 * GIB), 9.0))  # fmt: skip
    gpu_of = gpu(name) if name else None
    return Fit(launch(), program, "git:dev", "2.20.2", gpu_of, ranks, 20.0)


def test_a_launch_keeps_its_sizes_and_loses_its_files() -> None:
    program = full_size(launch(), options=OPTIONS)
    flags = Flags(program.arguments)
    assert flags.one("--num-layers") == "32" and flags.has("--bf16")
    assert flags.one("--lr") == "1e-4"
    assert flags.one("--train-iters") == "2"
    # Two microbatches for each of four stages, on DP 2 with two sequences each.
    assert flags.one("--global-batch-size") == str(2 * 4 * 2 * 2)
    assert (flags.one("--tokenizer-type"), flags.one("--vocab-size")) == ("NullTokenizer", "50256")
    assert flags.one("--attention-backend") == "fused"
    assert flags.has("--no-check-for-nan-in-loss-and-grad")
    assert not flags.has("--data-path") and not flags.has("--fp8-format")
    assert program.environment == {"NVTE_X": "1"}
    changed = " ".join(change.what for change in program.changes)
    assert "--fp8-format" in changed and "--num-layers" not in changed


@pytest.mark.parametrize(("more", "kept"), [("", False), (" --use-megatron-fsdp", True)])
def test_a_log_stays_that_lets_upstream_give_memory_back(more: str, kept: bool) -> None:
    logs = ("--log-params-norm", "--log-num-zeros-in-grad")
    asked = launch(" ".join((ARGUMENTS + more, *logs)))
    flags = Flags(full_size(asked, options=OPTIONS.union(logs)).arguments)
    assert flags.has("--log-params-norm") is kept and not flags.has("--log-num-zeros-in-grad")


@pytest.mark.parametrize("more", ["", " --sft", " --use-varlen-dataset"])
def test_no_launch_is_evaluated(more: str) -> None:
    asked = launch(f"{ARGUMENTS}{more} --exit-interval 700")
    flags = Flags(full_size(asked, options=OPTIONS | {"--exit-interval"}).arguments)
    ends = (flags.one("--eval-iters"), flags.one("--exit-interval"))
    # Data sets of packed sequences refuse to have no samples: the program ends before them.
    assert ends == (("1", "2") if more else ("0", None))


ALLOCATOR, NEWER = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"


@pytest.mark.parametrize(
    ("given", "listed", "splits"),
    [
        ({}, {}, False),
        ({ALLOCATOR: "expandable_segments:True"}, {}, True),
        ({NEWER: "expandable_segments:True"}, {}, True),
        ({NEWER: "expandable_segments:False"}, {}, False),
        ({ALLOCATOR: "max_split_size_mb:64", NEWER: "expandable_segments:True"},
         {ALLOCATOR: "max_split_size_mb:64"}, False),
        ({NEWER: "roundup_power2_divisions:[256:1,512:2], expandable_segments:True"},
         {NEWER: "roundup_power2_divisions:[256:1,512:2]"}, True),
    ],
)  # fmt: skip
def test_settings_of_the_allocator_are_followed_or_listed(
    given: dict[str, str], listed: dict[str, str], splits: bool
) -> None:
    program = full_size(dataclasses.replace(launch(), environment=given), options=OPTIONS)
    assert program.environment == given and expandable(program.environment) is splits
    changes = {c.what: c.before for c in program.changes if c.what in (ALLOCATOR, NEWER)}
    assert changes == listed


@pytest.mark.parametrize(
    ("more", "alike", "lowered"),
    [("", False, True), (" --sft", False, False), (" --sft", True, True),
     (" --sft --sequence-packing-scheduler dp_balanced", True, False)],
)  # fmt: skip
def test_conversations_are_alike_where_nobody_asks_for_memory(
    more: str, alike: bool, lowered: bool
) -> None:
    program = full_size(launch(ARGUMENTS + more), options=OPTIONS, alike=alike)
    assert (program.microbatches < program.launch_microbatches) is lowered


@pytest.mark.parametrize(
    ("batch", "more", "given", "first"),
    [
        ("1024", "", {ALLOCATOR: "expandable_segments:True"}, 4),
        ("1024", "", {}, 0),  # which free blocks are handed out whole depends on the first step
        ("24", "", {ALLOCATOR: "expandable_segments:True"}, 0),
        ("1024", " --sft", {ALLOCATOR: "expandable_segments:True"}, 0),
        (
            "1024",
            " --fine-grained-activation-offloading",
            {ALLOCATOR: "expandable_segments:True"},
            0,
        ),
    ],
)
def test_the_first_step_has_no_more_microbatches_than_it_needs(
    batch: str, more: str, given: dict[str, str], first: int
) -> None:
    asked = launch(ARGUMENTS.replace("1024", batch) + more)
    program = full_size(dataclasses.replace(asked, environment=given), options=OPTIONS)
    assert program.first_microbatches == first
    assert not first or program.microbatches == 2 * first


@pytest.mark.parametrize(
    ("batch", "kept"), [("16", "16"), ("32", "32"), ("36", "36"), ("40", "40"), ("1025", "1025")]
)
def test_few_microbatches_and_refused_batches_stay(batch: str, kept: str) -> None:
    arguments = ARGUMENTS.replace("1024", batch)
    program = full_size(launch(arguments), options=OPTIONS)
    assert Flags(program.arguments).one("--global-batch-size") == kept


def test_a_micro_batch_of_nothing_is_left_to_upstream() -> None:
    arguments = ARGUMENTS.replace("--micro-batch-size 2", "--micro-batch-size 0")
    program = full_size(launch(arguments), options=OPTIONS)
    assert Flags(program.arguments).one("--micro-batch-size") == "0"


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (Failure("timeout", 0, "not finished after 1 s"), "it was not finished after 1 s; give a "),
        (Failure("memory", 0, "killed"), "the memory of this machine ran out"),
        (Failure("raised", 0, "no x", symbol="x.y"), "cannot be said here: upstream calls x.y"),
        (Failure("raised", 0, "no z", package="z"), "cannot be said here: upstream needs the "),
        (Failure("died", 0, "ended by signal 11"), "cannot be said here: rank 0: ended by"),
        (Failure("raised", 0, "ValueError: a"), "upstream refuses it: ValueError: a"),
    ],
)
def test_only_exceptions_of_upstream_are_its_refusals(failure: Failure, said: str) -> None:
    assert Refused(failure).sentence.startswith(said)


def test_a_file_of_merges_is_the_vocabulary_of_gpt_2() -> None:
    arguments = ARGUMENTS.replace("--tokenizer-type GPT2BPETokenizer", "--merge-file merges.txt")
    program = full_size(launch(arguments), options=OPTIONS)
    assert Flags(program.arguments).one("--vocab-size") == "50256"


def test_the_vocabulary_is_asked_for_where_a_file_has_it() -> None:
    arguments = ARGUMENTS.replace("GPT2BPETokenizer", "HuggingFaceTokenizer")
    with pytest.raises(InputError, match=r"^--vocabulary: .*'HuggingFaceTokenizer'"):
        full_size(launch(arguments), options=OPTIONS)
    program = full_size(launch(arguments), options=OPTIONS, vocabulary=128256)
    assert Flags(program.arguments).one("--vocab-size") == "128255"
    later = full_size(launch(arguments), options=OPTIONS | {NULL_TOKENIZER_IDS}, vocabulary=128256)
    assert Flags(later.arguments).one("--vocab-size") == "128256"


@pytest.mark.parametrize("options", [OPTIONS, OPTIONS | {NULL_TOKENIZER_IDS}])
def test_a_tokenizer_without_files_keeps_its_size(options: frozenset[str]) -> None:
    arguments = ARGUMENTS.replace("GPT2BPETokenizer", "NullTokenizer --vocab-size 1000")
    program = full_size(launch(arguments), options=options)
    assert Flags(program.arguments).one("--vocab-size") == "1000"


BY_STAGE = "--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout"


@pytest.mark.parametrize(
    ("words", "ranks"),
    [
        ("", [0]),
        ("--pipeline-model-parallel-size 2", [0, 8]),
        ("--pipeline-model-parallel-size 4", [0, 8, 12]),
        ("--pipeline-model-parallel-size 4 --tensor-model-parallel-size 2 "
         "--use-tp-pp-dp-mapping", [0, 4, 6]),
        (f"{BY_STAGE} Et|(t|)*2tL", [0, 4, 12]),
        (f"{BY_STAGE} Et|t|t|t|t|t|t|tL", [0, 4, 12]),  # two chunks each
        (f"{BY_STAGE} Et|t|t|t|t|t|tt|tL", [0, 4, 8, 12]),
        (f"{BY_STAGE} Et|t|t|tL --moe-layer-freq [0,1,1,1]", [0, 4, 12]),
        (f"{BY_STAGE} Et|t|t|tL --moe-layer-freq [0]*2+[1]*2", [0, 4, 8, 12]),
        (f"{BY_STAGE} Et|t|t|tL --moe-layer-freq 3", [0, 4, 8, 12]),
        (f"{BY_STAGE} Et|t|t|tL --cp-comm-type p2p p2p a2a p2p", [0, 4, 8, 12]),
        (f"{BY_STAGE} Et|t|t|tL --window-attn-skip-freq 2", [0, 4, 8, 12]),
    ],
)  # fmt: skip
def test_one_rank_of_each_kind_of_stage_is_run(words: str, ranks: list[int]) -> None:
    flags = Flags(tuple(words.split()))
    assert list(ranks_of_interest(layout(flags, 16), flags)) == ranks


def turns(p: int, v: int, m: int) -> float:
    """Time of a step of 1F1B, interleaved where ``v`` is above 1: 1 forward and 2 backward."""

    def unit(kind: str, count: int) -> tuple[str, int, int]:
        place, within = divmod(count, p * v)
        chunk = within // p
        return kind, chunk if kind == "F" else v - 1 - chunk, place * p + within % p

    waiting = []
    for stage in range(p):
        warm = min(2 * (p - stage - 1) + (v - 1) * p if v > 1 else p - stage - 1, m * v)
        counts = [("F", n) for n in range(warm)]
        counts += [one for n in range(m * v - warm) for one in (("F", warm + n), ("B", n))]
        counts += [("B", n) for n in range(m * v - warm, m * v)]
        waiting.append([unit(*one) for one in counts])
    free, ends = [0.0] * p, dict[tuple[str, int, int, int], float]()

    def ready(stage: int, kind: str, chunk: int, number: int) -> float | None:
        """When what a turn needs is there; ``None`` before that is known."""
        if kind == "F":
            first, needs = chunk == 0 == stage, (chunk - (not stage), number, (stage - 1) % p)
        else:
            last = stage == p - 1
            first, needs = last and chunk == v - 1, (chunk + last, number, (stage + 1) % p)
        return 0.0 if first else ends.get((kind, *needs))

    while any(waiting):
        for stage, rest in enumerate(waiting):
            while rest and (begins := ready(stage, *rest[0])) is not None:
                seconds = 1 if rest[0][0] == "F" else 2
                free[stage] = ends[(*rest.pop(0), stage)] = max(free[stage], begins) + seconds
    return max(free)


@pytest.mark.parametrize(
    ("words", "stages", "parts"),
    [
        ("", 4, 1),
        ("--num-virtual-stages-per-pipeline-rank 2", 4, 2),
        ("--num-layers 32 --num-layers-per-virtual-pipeline-stage 2", 4, 4),
        ("--pipeline-model-parallel-layout Et|(tt|)*6tL", 4, 2),
        ("--hybrid-layer-pattern M|M|M|M/MM", 2, 2),
        ("", 1, 1),
    ],
)
def test_the_bubble_is_that_of_a_schedule_that_runs(words: str, stages: int, parts: int) -> None:
    flags = Flags(f"--pipeline-model-parallel-size {stages} {words}".split())
    sizes = layout(flags, 16)
    assert chunks(sizes, flags) == parts
    for count in (stages, 4 * stages):
        busy = 3 * parts * count
        assert bubble(sizes, flags, count) == pytest.approx(1 - busy / turns(stages, parts, count))


@pytest.mark.parametrize(
    ("words", "stages", "ranks", "missing"),
    [
        ("", 4, None, ()),
        ("", 4, [4], (1, 4)),
        ("", 4, [0, 12], (2, 3)),
        ("--pipeline-model-parallel-layout Et|t|t|tL", 4, None, ()),
        ("--pipeline-model-parallel-layout Et|t|t|tL", 4, [0, 8, 12], (2,)),
        ("--decoder-first-pipeline-num-layers 1", 16, None, (2, 4, 6, 8, 10, 12, 14, 15)),
        ("--moe-layer-freq [0,1,1,1]", 4, [0, 4, 12], (3,)),
        ("--moe-layer-freq 1", 4, [0, 4, 12], ()),
    ],
)
def test_stages_that_no_rank_stands_for_are_named(
    words: str, stages: int, ranks: list[int] | None, missing: tuple[int, ...]
) -> None:
    flags = Flags(tuple(f"--pipeline-model-parallel-size {stages} {words}".split()))
    sizes = layout(flags, 16)
    chosen = list(ranks_of_interest(sizes, flags)) if ranks is None else ranks
    assert len(chosen) <= 8
    assert unmeasured_stages(chosen, sizes, flags) == missing
    fit = dataclasses.replace(found(), unmeasured=missing)
    text = "\n".join(lines(fit))
    assert ("It fits" in text) is (not missing) and ("The measured ranks fit" in text) is bool(
        missing
    )
    numbers = ", ".join(map(str, missing))
    assert not missing or f"{numbers} of 4; name a rank of each with --ranks." in text
    assert as_json(fit)["unmeasured_stages"] == list(missing)


def test_the_largest_rank_decides_and_the_estimates_count() -> None:
    fits = found()
    assert fits.largest.rank == 0
    assert fits.margin == int(79.11 * GIB) - 30 * GIB - CUBLAS_BYTES - CONTEXT_BYTES
    assert found(79 * GIB).fits is False
    assert "of 4.000 GiB on a GPU of 4 GiB, on rank 0" in "\n".join(lines(found(name="4")))
    assert found(name="").margin is None and found(200 * GIB, "").fits


def test_the_lines_say_what_was_found() -> None:
    text = "\n".join(lines(found()))
    assert "8 GPUs, TP 1, CP 1, PP 4, DP 2" in text
    assert "pipeline bubble: 1.2% of a step of 256 microbatches, 1F1B with 1 chunk a" in text
    assert "activations               20.000     0.000" in text
    assert "peak in forward of GPTModel, at megatron/core/x.py:7" in text
    assert "11.274 GB  isend, 4 calls, CONTEXT_PARALLEL_GROUP of 2" in text
    assert "sent or contributed in a step of 8 microbatches (of the launch's 256)" in text
    work = "700.0 TFLOP of matrix products and attention in these 8 microbatches"
    assert f"{work} of at most 16384 tokens; measured in 9 s" in text
    assert "It fits: 31.062 of 79.110 GiB on H100, on rank 0" in text
    assert "--fp8-format" in text
    assert "It does not fit" in "\n".join(lines(found(79 * GIB)))
    assert "It may not fit" in "\n".join(lines(found(77 * GIB)))
    assert "The largest peak is 30.062 GiB, on rank 0." in "\n".join(lines(found(name="")))


def test_names_of_upstream_cannot_steer_a_terminal() -> None:
    fit = found()
    evil = dataclasses.replace(fit.ranks[0].memory, module="\x1b[2J")
    rank = dataclasses.replace(fit.ranks[0], memory=evil)
    assert "\x1b" not in "\n".join(lines(dataclasses.replace(fit, ranks=(rank,))))


def test_the_json_has_every_number_in_bytes() -> None:
    held = json.loads(json.dumps(as_json(found())))
    assert held["fits"] is True and held["ranks"][0]["peak"] == 30 * GIB
    assert held["ranks"][0]["peak_with_cublas"] == 30 * GIB + CUBLAS_BYTES
    assert held["bubble"] == 3 / 259 and held["chunks_per_stage"] == 1
    assert held["layout"] == {"tp": 1, "cp": 1, "pp": 4, "dp": 2, "ep": 1}
    assert held["ranks"][0]["sent"][0]["bytes"] == 11_274_000_000


@pytest.mark.parametrize(("text", "size"), [("H200", 143771 << 20), ("80", 80 * GIB),
                                            ("79.5GiB", int(79.5 * GIB))])  # fmt: skip
def test_a_gpu_is_a_name_or_a_number(text: str, size: int) -> None:
    assert gpu(text).bytes == size


@pytest.mark.parametrize(
    ("operation", "ranks", "leaving"),
    [
        ("isend", 2, 120),
        ("broadcast", 4, 120),
        ("all_gather_into_tensor", 4, 360),
        ("all_gather", 1, 0),
        ("reduce_scatter_tensor", 4, 90),
        ("all_to_all_single", 4, 90),
        ("all_reduce", 4, 180),
    ],
)
def test_what_leaves_a_rank_depends_on_the_collective(
    operation: str, ranks: int, leaving: int
) -> None:
    """A gather of all and the scattered sum of its result send the same bytes."""
    traffic = GroupTraffic("CONTEXT_PARALLEL_GROUP", tuple(range(ranks)), operation, 1, 120)
    assert traffic.leaving == leaving


def test_every_combination_is_a_choice_in_the_table() -> None:
    settings = combinations(["context-parallel-size=2,4", "--cp-comm-type=p2p,a2a"])
    assert settings[1] == (("--context-parallel-size", "2"), ("--cp-comm-type", "a2a"))
    changed = with_settings(launch(), (*settings[3], ("--bf16", "true"), ("--lr", "1 2")))
    assert Flags(changed.arguments).get("--bf16") == ()
    assert Flags(changed.arguments).get("--lr") == ("1", "2")
    choices = [Choice(settings[0], found()), Choice(settings[1], None, "upstream refuses \x1b")]
    head, row, _, refused = table(choices)
    assert head.split()[:3] == ["context-parallel-size", "cp-comm-type", "peak"]
    assert row.split() == [
        "2",
        "p2p",
        "30.062",
        "10.062",
        "48.0",
        *("8", "of", "256"),
        "87.5",
        "1.41",
        "0.00",
        "2.50",
    ]
    assert refused == "context-parallel-size=2 cp-comm-type=a2a: upstream refuses ?"
    held = choices_as_json(choices)["choices"]
    assert held[1]["fit"] is None and held[0]["settings"]["--cp-comm-type"] == "p2p"


@pytest.mark.parametrize(
    ("words", "counts"),
    [
        ("--num-layers 32", (2, 4)),
        ("--num-layers 32 --pipeline-model-parallel-size 4", (8, 16)),
        ("--num-layers 32 --pipeline-model-parallel-size 2 "
         "--num-virtual-stages-per-pipeline-rank 2", (8, 16)),
        ("--num-layers 6", None),
        ("--num-layers 33 --pipeline-model-parallel-size 2", None),
        ("--num-layers 32 --recompute-num-layers 2", None),
        ("--num-layers 32 --moe-layer-freq [0,1]*16", None),
    ],
)  # fmt: skip
def test_few_layers_of_each_stage_stand_for_all(words: str, counts: tuple[int, int] | None) -> None:
    assert depths(tuple(words.split()), 8) == counts


def test_memory_traffic_and_work_are_extended_along_the_layers() -> None:
    low, high = found(10 * GIB), found(14 * GIB)
    sent = [dataclasses.replace(one, bytes=2 * one.bytes) for one in high.ranks[0].memory.sent]
    memory = dataclasses.replace(
        high.ranks[0].memory, flops=9 * 10**14, sent=tuple(sent[:1]), at_rest={"buffers": 8},
        highest={**high.ranks[0].memory.highest, "backward megatron/core/z.py:2": 99 * GIB},
    )  # fmt: skip
    ranks = (dataclasses.replace(high.ranks[0], memory=memory), high.ranks[1])
    shallow = [
        dataclasses.replace(
            one, program=full_size(with_layers(launch(), count), options=OPTIONS), ranks=some
        )
        for one, count, some in ((low, 8, low.ranks), (high, 16, ranks))
    ]
    fit = extended(launch(), found().program, *shallow)
    made = fit.ranks[0].memory
    # Twenty-four layers more than the first one has, of which eight take what is between the two.
    assert (made.peak, made.flops) == ((10 + 3 * 4) * GIB, (7 + 3 * 2) * 10**14)
    assert made.at_rest == {"parameters": (10 - 3 * 10) * GIB, "buffers": 24}
    assert [one.bytes for one in made.sent] == [11_274_000_000 * (1 + 3)]
    assert fit.ranks[1].memory.peak == 20 * GIB and not made.largest
    assert made.at_peak["parameters"] == 10 * GIB and sum(made.at_peak.values()) == made.peak
    assert fit.extended_from == (8, 16) and as_json(fit)["extended_from_layers"] == [8, 16]
    row = [*table([Choice((("--bf16", "true"),), fit)])]
    assert "~22.062" in row[1] and "fewer layers" in row[3]


def test_the_peak_is_the_highest_line_and_not_the_line_of_the_highest_place() -> None:
    low, high = found(10 * GIB), found(11 * GIB)
    shallow = [
        dataclasses.replace(
            one,
            program=full_size(with_layers(launch(), count), options=OPTIONS),
            ranks=(dataclasses.replace(one.ranks[0], memory=dataclasses.replace(
                one.ranks[0].memory,
                highest={"forward a.py:1": one.ranks[0].memory.peak, "backward b.py:2": size},
            )),),
        )
        for one, count, size in ((low, 8, 4 * GIB), (high, 16, 8 * GIB))
    ]  # fmt: skip
    made = extended(launch(), found().program, *shallow).ranks[0].memory
    assert (made.peak, made.phase, made.place) == (16 * GIB, "backward", "b.py:2")
    assert not made.at_peak


def test_the_ranks_that_are_prepared_are_those_that_are_extended() -> None:
    measured: list[tuple[int, ...]] = []

    class Measures(Fitting):
        def __init__(self) -> None:
            self._request = FitRequest(launch(), "x", None, Path("x"), Path("x"))
            self._script, self._known = "pretrain_gpt.py", OPTIONS

        def _measured(self, prepared: Prepared) -> Fit:
            measured.append(tuple(prepared.roles))
            return dataclasses.replace(found(), program=prepared.program)

    fitting = Measures()
    assert fitting.extended(fitting.prepare(launch(), (4,))).extended_from == (8, 16)
    assert measured == [(4,), (4,)]


def test_of_a_batch_the_rank_is_shown_that_is_highest_with_all_layers() -> None:
    """Another one is, with few."""

    class Measures(Fitting):
        def __init__(self) -> None:
            self._request = FitRequest(launch(), "x", None, Path("x"), Path("x"))
            self._script, self._known = "pretrain_gpt.py", OPTIONS

        def _measured(self, prepared: Prepared) -> Fit:
            few = Flags(prepared.program.arguments).one("--num-layers") == "8"
            peaks = (20, 21) if few else (24, 23)
            ranks = tuple(
                RankMemory(rank, "the stage", report(peak * GIB), 1.0, tokens)
                for rank, peak, tokens in zip((0, 2), peaks, (512, 384), strict=True)
            )
            return dataclasses.replace(
                found(), program=prepared.program, ranks=ranks, whole_batch=True
            )

    fitting = Measures()
    prepared = fitting.prepare(launch(), (0,))
    (shown,), (whole,) = fitting.extended(prepared).ranks, fitting.fit(prepared).ranks
    assert (shown.rank, shown.memory.peak, whole.rank) == (0, (20 + 3 * 4) * GIB, 0)
    assert shown.role == (
        "the stage; of 2 ranks with 384 to 512 tokens at most, the one with the highest peak"
    )
    fewer = fitting.prepare(with_layers(launch(), 8), (0,))
    assert fitting.fit(fewer).ranks[0].rank == 2


def test_only_finalists_are_measured_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    whole: list[str] = []

    class Measures:
        prepare = staticmethod(lambda launch: launch)

        def __init__(self, *_: object) -> None: ...
        def __enter__(self) -> Measures:
            return self

        def __exit__(self, *_: object) -> None: ...
        def fit(self, given: Launch) -> Fit:
            whole.append(Flags(given.arguments).one("--lr") or "")
            return found()

        def extended(self, given: Launch) -> Fit:
            name = Flags(given.arguments).one("--lr")
            if name in ("slow", "refused"):
                raise Refused(SLOW if name == "slow" else REFUSES)
            fit = found({"large": 90 * GIB, "close": 79 * GIB}.get(name or "", 30 * GIB))
            sent = () if name == "quiet" else fit.ranks[0].memory.sent
            memory = dataclasses.replace(fit.ranks[0].memory, sent=sent)
            ranks = (dataclasses.replace(fit.ranks[0], memory=memory),)
            return dataclasses.replace(fit, extended_from=(2, 4), ranks=ranks)

    monkeypatch.setattr("ringproof.rehearsal.fit.vary.Fitting", Measures)
    request = FitRequest(launch(), "x", None, Path("x"), Path("x"), gpu("h100"))
    names = ["small", "quiet", "large", "close", "slow", "refused"]
    choices = vary(request, combinations([f"lr={','.join(names)}"]), lambda *_: None, finalists=1)
    assert whole == ["quiet", "close"]
    assert [bool(one.fit and one.fit.extended_from) for one in choices[:4]] == [
        True, False, True, False,
    ]  # fmt: skip
    slow, refused = choices_as_json(choices)["choices"][4:]
    assert slow["refused"] is None and slow["unmeasured"].startswith("it was not finished")
    assert refused["unmeasured"] is None and refused["refused"].startswith("upstream refuses it")
    assert [*table(choices)][-2:] == [f"lr=slow: {slow['unmeasured']}",
                                      f"lr=refused: {refused['refused']}"]  # fmt: skip
    with pytest.raises(InputError, match=r"^the launch: it was not finished"):
        vary(request, combinations(["lr=slow"]), lambda *_: None, finalists=1)


TRAIN = "torchrun --nproc-per-node 8 pretrain_gpt.py"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (f"--gpu h10 -- {TRAIN}", "--gpu: 'h10' is not a GPU; use one of a100, h100"),
        (f"--gpu 0 -- {TRAIN}", "--gpu: '0' is not a GPU"),
        ("missing.sh", "missing.sh: "),
        ("", "SCRIPT: no launch is named"),
        ("-- echo hello", "the command: "),
        (f"-- {TRAIN}", "--upstream: "),
        (f"--vocabulary 1 -- {TRAIN}", "--vocabulary: 1 is less than 2"),
        (f"--ranks a -- {TRAIN}", "--ranks: "),
        (f"--vary x -- {TRAIN}", "--vary: 'x' is not NAME=VALUE,VALUE"),
        (f"--vary a=2,,4 -- {TRAIN}", "--vary: 'a=2,,4' has an empty value"),
        (f"--vary a=1 --vary a=2 -- {TRAIN}", "--vary: --a is given twice"),
        (f"--vary a=1{',1' * 64} -- {TRAIN}", "--vary: these are more than 64"),
        (f"--timeout 0 -- {TRAIN}", "--timeout: "),
        (f"--longest -- {TRAIN}", "--longest: the memory to fit in is not known"),
        (f"--longest --vary a=1 --gpu h100 -- {TRAIN}", "--longest: it is a table of its own"),
        (f"--longest --gpu h100 -- {TRAIN} --sft", "--longest: the lengths of a launch with --sft"),
        (f"--finalists 1 -- {TRAIN}", "--finalists: there are no choices without --vary"),
        (f"--vary a=1 --html x.html -- {TRAIN}", "--html: several choices have no page"),
    ],
)
def test_bad_input_is_refused(
    words: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = ["fit", "--upstream", "nothing-here", "--offline", *words.split()]
    with pytest.raises(InputError) as caught:  # the command line prints it, and exits with 2
        CliRunner().invoke(app, given, catch_exceptions=False)
    assert str(caught.value).startswith(said)


def test_the_worst_routing_is_that_of_ranks_with_the_first_experts() -> None:
    flags = Flags(("--num-experts", "8", "--expert-model-parallel-size", "4"))
    sizes = layout(flags, 8)
    check_crowded((0, 4), sizes, flags)
    with pytest.raises(InputError, match=r"^--routing: rank 5 does not hold the first experts"):
        check_crowded((4, 5), sizes, flags)
    even = Flags((*flags.words, "--moe-router-force-load-balancing"))
    with pytest.raises(InputError, match=r"^--routing: --moe-router-force-load-balancing ignores"):
        check_crowded((0, 4), sizes, even)
    with pytest.raises(InputError, match=r"^--routing: the launch has no experts"):
        check_crowded((0,), layout(Flags(()), 8), Flags(()))


@pytest.mark.parametrize(
    ("order", "rank", "expected"),
    [((), 8, (8, 10, 12, 14)), ((), 0, (0, 2, 4, 6)),
     (("--use-tp-pp-dp-mapping",), 4, (4, 6, 12, 14))],
)  # fmt: skip
def test_a_batch_is_shared_by_the_ranks_of_a_stage(
    order: tuple[str, ...], rank: int, expected: tuple[int, ...]
) -> None:
    degrees = "--tensor-model-parallel-size 2 --context-parallel-size 2"
    words = (*f"{degrees} --pipeline-model-parallel-size 2".split(), *order)
    packed = Flags((*words, "--sft"))
    assert of_the_stage(rank, layout(packed, 16), packed) == expected
    with pytest.raises(InputError, match=r"^--whole-batch: the launch packs no sequences"):
        of_the_stage(rank, layout(packed, 16), Flags(words))


def test_a_batch_of_more_ranks_than_memory_holds_is_refused() -> None:
    packed = Flags(("--tensor-model-parallel-size", "2", "--sft"))
    assert len(of_the_stage(0, layout(packed, 128), packed)) == 64
    check_room(64, 16 * GIB)
    said = r"^--whole-batch: 65 ranks .* of 0\.25 GiB or more each, and 16\.0 GiB are free; run"
    with pytest.raises(InputError, match=said):
        check_room(65, 16 * GIB)


def test_what_was_assumed_is_said() -> None:
    dense = found()
    assert not list(assumptions(dense)) and "Assumed:" not in list(lines(dense))
    arguments = (*dense.program.arguments, "--num-experts", "8", "--use-varlen-dataset")
    program = dataclasses.replace(dense.program, arguments=arguments)
    for routing, said in (("balanced", "every expert gets as many"), ("worst", "every token of")):
        fit = dataclasses.replace(dense, program=program, routing=routing)
        routed, lengths = assumptions(fit)
        assert routed.startswith(f"routing: {said}") and "the same" in lengths
        assert ("before dropping" in routed) is (routing == "worst")
        assert f"  {routed}" in list(lines(fit)) and as_json(fit)["assumptions"][1] == lengths
        assert [*assumptions(dataclasses.replace(fit, whole_batch=True))][1].endswith("its own")


@pytest.mark.parametrize("kept", [5 * GIB, 41 * GIB + 7])
@pytest.mark.parametrize("start", [100, 4096, 1 << 20])
@pytest.mark.parametrize("refused", [1 << 30, 40_000])
def test_the_longest_sequence_is_found_in_few_runs(kept: int, start: int, refused: int) -> None:
    tried: list[int] = []

    def margin(tokens: int) -> int | None:
        tried.append(tokens)
        per_token = 300_000 if tokens < 20_000 else 500_000  # another place makes the peak
        return None if tokens > refused else 79 * GIB - kept - tokens * per_token

    assert search(margin, start, 1024)
    best = max(at for at in range(1024, 1 << 20, 1024) if (margin(at) or -1) >= 0)
    del tried[-1023:]
    assert best in tried and best + 1024 in tried
    assert len(tried) == len(set(tried)) <= 16


def test_lengths_that_do_not_end_or_do_not_begin() -> None:
    assert not search(lambda tokens: tokens, 1024, 1024)
    assert search(lambda _: -1, 4096, 1024)
    fit = found()
    lengths = Longest(1024, (Length(1024, fit), Length(2048, found(90 * GIB))), ended=True)
    assert lengths.best is lengths.tried[0]
    assert next(tried_lines(lengths)).endswith("H100 has 1024 tokens, of the multiples of 1024.")
    assert longest_as_json(lengths)["longest"] == 1024
    nothing = Longest(1024, (Length(1024, None, "upstream refuses it"),), ended=True)
    assert nothing.best is None and "upstream refuses it" in [*tried_lines(nothing)][-1]
    other = with_length(launch(f"{ARGUMENTS} --max-position-embeddings 9000"), 8192)
    flags = Flags(other.arguments)
    assert (flags.one("--seq-length"), flags.one("--max-position-embeddings")) == ("8192", "9000")


REFUSES = Failure("raised", 0, "ValueError: no such length", "megatron/x.py:3")
SLOW = Failure("timeout", 0, "not finished after 1 s")


@pytest.fixture
def longest_with(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Longest]:
    """Searches with 2,048 tokens at first, where lengths above ``fits`` fail, or do not fit."""

    def searched(fits: int, failing: Callable[[int], Failure | None]) -> Longest:
        class Measures:
            prepare = staticmethod(lambda launch: launch)

            def __init__(self, *_: object) -> None: ...
            def __enter__(self) -> Measures:
                return self

            def __exit__(self, *_: object) -> None: ...
            def fit(self, given: Launch) -> Fit:
                tokens = Flags(given.arguments).integer("--seq-length", 0)
                failure = failing(tokens)
                if failure is not None:
                    raise Refused(failure)
                return found(30 * GIB if tokens <= fits else 90 * GIB)

        monkeypatch.setattr("ringproof.rehearsal.fit.longest.Fitting", Measures)
        given = launch(f"{ARGUMENTS} --seq-length 2048")
        request = FitRequest(given, "x", None, Path("x"), Path("x"), gpu("h100"))
        return longest(request, lambda *_: None)

    return searched


@pytest.mark.parametrize(
    "failure",
    [
        SLOW,
        Failure("memory", 0, "killed"),
        Failure("died", 0, "ended by signal 11"),
        dataclasses.replace(REFUSES, symbol="torch.x"),
        dataclasses.replace(REFUSES, package="z"),
    ],
    ids=lambda one: f"{one.kind} {one.symbol}{one.package}",
)
def test_a_length_that_cannot_be_measured_here_ends_the_search(
    longest_with: Callable[..., Longest], failure: Failure
) -> None:
    lengths = longest_with(1 << 30, lambda tokens: failure if tokens > 4096 else None)
    assert (lengths.ended, [one.tokens for one in lengths.tried]) == (False, [2048, 4096, 8192])
    known, why, *_ = tried_lines(lengths)
    assert known == "4096 tokens fit on H100; whether more do is not known."
    assert why == f"The search stopped: {Refused(failure).sentence}"
    held = longest_as_json(lengths)
    assert (held["stopped"], held["tried"][-1]["refused"]) == (Refused(failure).sentence, None)
    with pytest.raises(Refused) as caught:
        longest_with(0, lambda tokens: failure if tokens < 2048 else None)
    assert caught.value.failure == failure


def test_the_next_length_can_be_refused_by_upstream(longest_with: Callable[..., Longest]) -> None:
    lengths = longest_with(1 << 30, lambda tokens: REFUSES if tokens > 5000 else None)
    assert lengths.ended and longest_as_json(lengths)["stopped"] is None
    assert next(tried_lines(lengths)).endswith(
        f"H100 has 4096 tokens, of the multiples of 1024; the next length is refused: "
        f"{Refused(REFUSES).sentence}"
    )


@pytest.mark.parametrize("same", [True, False])
def test_a_launch_that_is_refused_at_every_length_is_refused(
    longest_with: Callable[..., Longest], same: bool
) -> None:
    tried: list[int] = []

    def failing(tokens: int) -> Failure:
        tried.append(tokens)
        return REFUSES if same else dataclasses.replace(REFUSES, message=f"Error: {tokens}")

    with pytest.raises(InputError, match=r"^the launch: upstream refuses it") as caught:
        longest_with(1 << 30, failing)
    assert isinstance(caught.value, Refused) is same and tried == [2048, 1024]


def test_a_first_length_that_is_refused_can_be_too_short(
    longest_with: Callable[..., Longest],
) -> None:
    lengths = longest_with(1 << 14, lambda tokens: REFUSES if tokens < 2000 else None)
    assert lengths.best is not None and lengths.best.tokens == 1 << 14
    tried: list[int] = []

    def margin(tokens: int) -> int | None:
        tried.append(tokens)
        return None if tokens < 2000 else 9000 - tokens

    assert search(margin, 1024, 1024) and {8192, 9216} <= set(tried)


def test_the_page_draws_every_kind_of_memory_and_names_the_peak() -> None:
    gb = 10**9
    moments = (
        {"parameters": 8 * gb},
        {"parameters": 8 * gb, "activations": 20 * gb},
        {"parameters": 8 * gb, "activations": 4 * gb, "temporaries": gb},
    )
    fit = found()
    hostile = dataclasses.replace(report(), timeline=moments, place="<script>alert(1)</script>")
    ranks = (dataclasses.replace(fit.ranks[0], memory=hostile), fit.ranks[1])
    drawn = picture(ranks[0], gpu("32"))
    assert drawn is not None and picture(fit.ranks[1], None) is None
    assert [area.kind for area in drawn.areas] == [
        "cuBLAS", "parameters", "activations", "temporaries"
    ]  # fmt: skip
    assert drawn.peak == 28 * gb + CUBLAS_BYTES and drawn.peak_x == 0.5
    assert [area.at_peak for area in drawn.areas] == [CUBLAS_BYTES, 8 * gb, 20 * gb, 0]
    # The upper edge of one area is the lower edge of the next, and the last one ends at the peak.
    edges = [[float(p.split(",")[1]) for p in area.points.split()] for area in drawn.areas]
    for low, high in itertools.pairwise(edges):
        assert high[3:][::-1] == low[:3]
    assert min(edges[-1]) == pytest.approx(HEIGHT * (1 - drawn.peak_y), abs=0.01)
    assert drawn.limit is not None and drawn.limit == pytest.approx(
        drawn.peak_y * (31 * GIB) / drawn.peak
    )
    assert [label for label, _ in drawn.axis] == ["0", "10", "20", "30"]
    text = page(dataclasses.replace(fit, ranks=ranks))
    assert text.count("<polygon") == 4 and "<script" not in text
    assert f"{gib(drawn.peak)} GiB</span>" in text and "It fits" in text


RECORD = Path(__file__).parents[2] / "benchmarks/rehearsal/results/memory.json"
OWN_COMMITS = ("memory-1fe78252e9.json", "memory-febd25e3fb.json")
"""Records of launches at the commit that added what H100s recorded of them."""


def test_the_page_states_the_errors_of_the_record() -> None:
    record = json.loads(RECORD.read_text())
    rows, told = record["rows"], record["summary"]
    measured = [row for row in rows.values() if "error" in row]
    for row in measured:
        assert row["error"] == pytest.approx(row["peak"] / row["recorded_peak"] - 1, abs=1e-12)
    assert told == summary(rows) and len(measured) > 5
    page = (Path(__file__).parents[2] / "docs/fit.md").read_text()
    assert f"{len(measured)} of {len(rows)}" in page
    for name, kind in {"all": told["measured"], **told["by_kind"]}.items():
        numbers = [kind[of][at] for of in ("peak", "steady") for at in ("median", "p95", "largest")]
        cells = " | ".join([name, str(kind["rows"]), *(f"{number:.2%}" for number in numbers)])
        assert f"| {cells} |" in page, cells
    words = " ".join(page.split())
    for name in told["above_2_percent"]:
        row = rows[name]
        said = f"- `{name}`, {row['error']:+.1%}"
        if "share_of_tokens" in row:
            said += f": {row['share_of_tokens']:.0%} of the tokens"
        assert said in words, said
    hidden = [f"{rows[name]['error']:+.1%}" for name in told["without_fp8_or_graphs"]]
    assert all(error in words for error in hidden)
    steady = max(row["steady_error"] for row in measured if "steady_error" in row)
    assert f"FSDP keeps up to {steady:.0%} more memory" in words
    whole = told["measured"]
    median, p95 = (f"{whole['peak'][name]:.2%}" for name in ("median", "p95"))
    said = f"on {whole['rows']} launches .* by {median} .*at most {p95}"
    assert re.search(said, ACCURACY) and ACCURACY in "\n".join(lines(found()))
    own = [json.loads((RECORD.parent / name).read_text()) for name in OWN_COMMITS]
    at_commit = [row for one in own for row in one["rows"].values()]
    dense, experts = (row for row in at_commit if row["kind"].endswith("FSDP"))
    assert f"met to {dense['steady_error']:.1%} between steps" in words
    assert f"with experts to {experts['steady_error']:.2%}" in words
    assert f"its peak to {experts['error']:.1%} in place" in words


def test_a_record_goes_on_with_its_own_commit(tmp_path: Path) -> None:
    record = json.loads(RECORD.read_text())
    assert begun(RECORD, record["commit"], record["transformer_engine"]) == record
    new = begun(tmp_path / "none.json", "abc", record["transformer_engine"])
    assert list(new) == list(record) and new["commit"] == "abc" and not new["rows"]
    with pytest.raises(InputError, match="another commit"):
        begun(RECORD, "abc", record["transformer_engine"])
