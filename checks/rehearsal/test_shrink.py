"""A launch shrinks without losing what decides its path, or why upstream refuses it."""

from __future__ import annotations

import json

import pytest

from ringproof.errors import InputError
from ringproof.launch.flags import Flags
from ringproof.launch.left_out import DROPPED, HALF, HARDWARE, QUANTIZED
from ringproof.launch.reading import Launch
from ringproof.launch.small.model import hybrid, listed, stages
from ringproof.launch.small.shrink import SmallProgram, shrink

MODEL = """--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32
--group-query-attention --num-query-groups 8 --seq-length 8192 --max-position-embeddings 8192
--micro-batch-size 1 --global-batch-size 512 --train-iters 100000 --lr 3e-4 --lr-warmup-iters 2000
--bf16 --save /x --vocab-size 32000 --data-path /y
--tokenizer-type Llama2Tokenizer --tokenizer-model /z
--use-distributed-optimizer --overlap-grad-reduce --swiglu --eval-interval 100 --eval-iters 10"""
ADDED = """--kv-channels --mock-data --vocab-size --make-vocab-size-divisible-by --split
--num-workers --no-rope-fusion
--attention-dropout --hidden-dropout --null-tokenizer-pad-id --log-interval
--varlen-mock-dataset-config-json --sft-mock-dataset-config-json"""


def small(line: str, ranks: int, model: str = MODEL, **more: object) -> tuple[SmallProgram, Flags]:
    words = tuple(f"{model} {line}".split())
    known = {word for word in (*words, *ADDED.split()) if word.startswith("--")}
    known |= {*DROPPED, *HALF, *HARDWARE, *QUANTIZED} - {"--unknown"}
    launch = Launch("pretrain_gpt.py", words, {"NVTE_X": "1", "HOSTNAME": "a"}, 1, ranks, "test")
    result = shrink(launch, options=known - {"--unknown"}, **more)
    return result, Flags(result.arguments)


KEPT = [
    ("--context-parallel-size 4 --cp-comm-type a2a+p2p "
     "--hierarchical-context-parallel-sizes 2 2", 64),
    ("--context-parallel-size 2 --tensor-model-parallel-size 2 --sequence-parallel "
     "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 4", 64),
    ("--context-parallel-size 2 --recompute-granularity full --recompute-method uniform "
     "--recompute-num-layers 1 --cuda-graph-impl transformer_engine --window-size 1024,0", 16),
    ("--num-experts 64 --expert-model-parallel-size 8 --moe-router-topk 4 --moe-grouped-gemm "
     "--moe-token-dispatcher-type alltoall --context-parallel-size 2 --mtp-num-layers 1", 64),
    ("--use-tp-pp-dp-mapping --multi-latent-attention --qk-layernorm --context-parallel-size 2", 8),
]  # fmt: skip
SCALED = ("--num-layers-per-virtual-pipeline-stage", "--window-size", "--num-experts")


@pytest.mark.parametrize(("line", "ranks"), KEPT)
def test_what_decides_the_path_stays(line: str, ranks: int) -> None:
    result, flags = small(line, ranks)
    asked = Flags(tuple(line.split()))
    for name in asked.names():
        assert flags.has(name), name
        if name not in SCALED:
            assert flags.get(name) == asked.get(name), name
    for name in ("--use-distributed-optimizer", "--overlap-grad-reduce", "--swiglu"):
        assert flags.has(name)
    assert flags.get("--num-attention-heads") == ("32",)
    assert flags.get("--num-query-groups") == ("8",)
    assert result.ranks <= 16 and dict(result.environment) == {"NVTE_X": "1"}


def test_every_change_is_recorded_with_what_it_hides() -> None:
    result, flags = small("--context-parallel-size 4", 64)
    before = Flags(tuple(f"{MODEL} --context-parallel-size 4".split()))
    recorded = {name for change in result.changes for name in change.what.split(", ")}
    for name in {*before.names(), *flags.names()}:
        if before.get(name) != flags.get(name):
            assert name in recorded, name
    assert "data-parallel size" in recorded
    assert all(change.hides.endswith(".") for change in result.changes)


@pytest.mark.parametrize(
    ("line", "ranks", "expected"),
    [
        ("--context-parallel-size 2", 512, 4),
        ("--context-parallel-size 8", 512, 16),
        ("--context-parallel-size 8", 8, 8),
        ("--context-parallel-size 1 --tensor-model-parallel-size 8", 8, 8),
        ("--context-parallel-size 4 --tensor-model-parallel-size 8 --sequence-parallel", 256, 32),
        ("--context-parallel-size 8 --tensor-model-parallel-size 8 "
         "--pipeline-model-parallel-size 2", 256, 32),
        ("--num-experts 64 --expert-model-parallel-size 8", 512, 8),
        ("--dynamic-context-parallel --max-seqlen-per-dp-cp-rank 1024", 512, 8),
        ("--dynamic-context-parallel --max-seqlen-per-dp-cp-rank 1024", 6, 6),
        ("--dynamic-context-parallel --max-seqlen-per-dp-cp-rank 1024", 24, 6),
        ("--context-parallel-size 4", 6, 6),
    ],
)  # fmt: skip
def test_ranks(line: str, ranks: int, expected: int) -> None:
    assert small(line, ranks)[0].ranks == expected


def test_tp_shrinks_with_its_heads_and_a_length_that_it_does_not_divide() -> None:
    line = "--context-parallel-size 8 --tensor-model-parallel-size 8 --sequence-parallel"
    result, flags = small(line, 128, MODEL.replace("8192", "8200"))
    tensor = flags.integer("--tensor-model-parallel-size", 0)
    assert result.ranks <= 32 and tensor < 8
    assert flags.integer("--num-attention-heads", 0) == 32 * tensor // 8
    assert flags.integer("--num-query-groups", 0) == 8 * tensor // 8
    assert flags.integer("--seq-length", 0) % (16 * tensor)


PP = "--pipeline-model-parallel-size"
BALANCING = "--moe-router-load-balancing-type"
SAMPLES = MODEL.replace("--train-iters 100000", "--train-samples 100000000").replace(
    "--lr-warmup-iters 2000", "--lr-warmup-samples 3000"
)
WITHOUT_INTERVAL = MODEL.replace("--eval-interval 100 ", "")
VALUES = (
    # Layers keep their stages.
    (f"{PP} 4", {"--num-layers": "4"}),
    (f"{PP} 1", {"--num-layers": "2"}),
    (f"{PP} 2 --num-layers-per-virtual-pipeline-stage 4", {"--num-layers": "8"}),
    (f"{PP} 2 --num-virtual-stages-per-pipeline-rank 2", {"--num-layers": "4"}),
    (f"{PP} 2 --account-for-loss-in-pipeline-split --account-for-embedding-in-pipeline-split",
     {"--num-layers": "2"}),
    (f"{PP} 4 --decoder-first-pipeline-num-layers 5 --decoder-last-pipeline-num-layers 1",
     {"--num-layers": "5"}),
    (f"{PP} 4 --pipeline-model-parallel-layout Et*9|(tttt|)*2t*7L",
     {"--pipeline-model-parallel-layout": "Et|t|t|tL", "--num-layers": "4"}),
    # Files and reduced precision are left out, and data is mock data.
    ("--fp8-format hybrid --fp8-param-gather --grad-reduce-in-bf16",
     {"--bf16": None, "--save": None, "--data-path": None, "--tokenizer-model": None,
      "--fp8-format": None, "--fp8-param-gather": None, "--grad-reduce-in-bf16": None,
      "--tokenizer-type": "NullTokenizer", "--mock-data": ""}),
    # Kernels of Triton are off.
    ("--multi-latent-attention --moe-permute-fusion",
     {"--no-rope-fusion": "", "--moe-permute-fusion": None}),
    ("", {"--no-rope-fusion": None}),
    # Routing that balances over the tokens of a rank is another function with CP.
    (f"--num-experts 8 {BALANCING} sinkhorn --moe-router-pre-softmax", {BALANCING: "none"}),
    (f"--num-experts 8 {BALANCING} aux_loss", {BALANCING: "aux_loss"}),
)  # fmt: skip


@pytest.mark.parametrize(("model", "line", "more", "expected"), [
    *((MODEL, line, {}, expected) for line, expected in VALUES),
    (MODEL, "", {"iterations": 7},
     {"--train-iters": "7", "--lr-warmup-iters": "1", "--eval-interval": "4",
      "--eval-iters": "1"}),
    (MODEL, "--fp8-format hybrid", {"dtype": "bfloat16"}, {"--bf16": "", "--fp8-format": None}),
    (SAMPLES, "--lr-decay-samples 900000", {},
     {"--train-samples": "20", "--lr-decay-samples": "20", "--train-iters": None}),
    # Upstream fails without an interval of evaluation, and with a rerun mode and Hybrid CP.
    (WITHOUT_INTERVAL, "--rerun-mode disabled", {},
     {"--eval-interval": None, "--eval-iters": "1", "--rerun-mode": "disabled"}),
])  # fmt: skip
def test_values(
    model: str, line: str, more: dict[str, object], expected: dict[str, str | None]
) -> None:
    flags = small(line, 8, model, **more)[1]
    found = {name: flags.get(name) for name in expected}
    assert found == {
        name: None if value is None else tuple(value.split()) for name, value in expected.items()
    }


def test_a_cp_size_that_does_not_fit_is_refused() -> None:
    with pytest.raises(InputError, match="--max-ranks 64"):
        small("--context-parallel-size 64", 64)
    assert small("--context-parallel-size 64", 64, max_ranks=64)[0].ranks == 64


@pytest.mark.parametrize("off", [0, 8, 24, 1, 100])
@pytest.mark.parametrize("layout", ["", "--tensor-model-parallel-size 2 --sequence-parallel"])
def test_a_length_keeps_its_remainder(off: int, layout: str) -> None:
    model = MODEL.replace("8192", str(8192 + off))
    _, flags = small(f"--context-parallel-size 8 {layout}", 64, model)
    unit = 32 if layout else 16
    assert flags.integer("--seq-length", 0) % unit == (8192 + off) % unit
    assert flags.integer("--seq-length", 0) < 1024


@pytest.mark.parametrize("digits", ["\u00b2", "9" * 5000])
def test_digits_that_are_no_number_are_left_to_upstream(digits: str) -> None:
    names = ("--pad-packed-seq-alignment", "--moe-layer-freq")
    line = "--dynamic-context-parallel --max-seqlen-per-dp-cp-rank 1024 --use-varlen-dataset"
    _, flags = small(f"{line} --mock-data {names[0]} {digits} {names[1]} {digits}", 8)
    assert [flags.one(name) for name in names] == [digits, digits]


def test_positions_windows_and_budgets_shrink_in_proportion() -> None:
    line = ("--dynamic-context-parallel --window-size 2048,0 --max-seqlen-per-dp-cp-rank 1024 "
            "--pad-packed-seq-alignment 1024 --use-varlen-dataset --mock-data")  # fmt: skip
    config = '{"mode":"distribution","type":"lognormal","min_seq_len":512,"max_seq_len":8192,"mean_seq_len":2048,"lognormal_sigma":1.5}'  # noqa: E501 - one word, as in a launch
    _, flags = small(f"{line} --varlen-mock-dataset-config-json {config}", 8)
    assert flags.get("--seq-length") == ("256",)
    assert flags.get("--window-size") == ("64,0",)
    assert flags.get("--max-seqlen-per-dp-cp-rank") == ("32",)
    assert flags.get("--pad-packed-seq-alignment") == ("32",)
    lengths = json.loads(flags.one("--varlen-mock-dataset-config-json") or "")
    assert [lengths[f"{k}_seq_len"] for k in ("min", "mean", "max")] == [16, 64, 256]
    assert lengths["lognormal_sigma"] == 1.5
    wide = MODEL.replace("--max-position-embeddings 8192", "--max-position-embeddings 4096")
    _, flags = small("--context-parallel-size 2", 8, wide)
    assert flags.integer("--max-position-embeddings", 0) < flags.integer("--seq-length", 0)


def test_a_budget_that_is_too_small_stays_too_small() -> None:
    for budget, enough in ((1024, True), (1023, False)):
        line = f"--dynamic-context-parallel --max-seqlen-per-dp-cp-rank {budget}"
        result, flags = small(line, 512, MODEL.replace("8192", "524288"))
        kept = flags.integer("--max-seqlen-per-dp-cp-rank", 0)
        assert (kept * result.ranks >= flags.integer("--seq-length", 0)) == enough


@pytest.mark.parametrize(
    ("change", "line", "ranks", "option", "divisor"),
    [
        (("--num-layers 32", "--num-layers 30"), "--pipeline-model-parallel-size 4", 8,
         "--num-layers", 4),
        (("--global-batch-size 512", "--global-batch-size 513"), "--context-parallel-size 2", 64,
         "--global-batch-size", 2),
    ],
)  # fmt: skip
def test_what_does_not_divide_still_does_not(
    change: tuple[str, str], line: str, ranks: int, option: str, divisor: int
) -> None:
    _, flags = small(line, ranks, MODEL.replace(*change))
    assert flags.integer(option, 0) % divisor


def test_patterns_over_layers_keep_every_kind() -> None:
    line = "--moe-layer-freq [0]*3+[1]*29 --window-attn-skip-freq ([1]*3+[0])*8 --num-experts 8"
    _, flags = small(line, 8)
    count = flags.integer("--num-layers", 0)
    for name in ("--moe-layer-freq", "--window-attn-skip-freq"):
        values = listed(flags.one(name) or "", name)
        assert values is not None and len(values) == count and set(values) == {0, 1}
    assert count <= 4
    with pytest.raises(InputError, match="not a pattern"):
        small("--moe-layer-freq [__import__('os')]", 8)


def test_hybrid_patterns_and_layouts() -> None:
    assert hybrid("M-M-M-M*-M-M-M-M*-", 1) == "M-*"
    assert hybrid("MMMM*MMMM|EEEE-EEEE|/MM/MM", 2) == "M*|E-|/MM/MM"
    assert stages("Et*3|(tt|)*2m|L") == ["Ettt", "tt", "tt", "m", "L"]


@pytest.mark.parametrize(
    ("line", "ranks"),
    [
        ("--pipeline-model-parallel-size 4", 16),
        ("--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 4", 16),
        ("--context-parallel-size 2 --micro-batch-size 4", 64),
        ("--dynamic-context-parallel", 64),
    ],
)
def test_batches_divide(line: str, ranks: int) -> None:
    result, flags = small(line, ranks)
    pipeline = flags.integer("--pipeline-model-parallel-size", 1)
    data = result.ranks // pipeline // flags.integer("--context-parallel-size", 1)
    step = flags.integer("--micro-batch-size", 1) * data
    batch = flags.integer("--global-batch-size", 0)
    assert batch % step == 0 and batch // step >= pipeline and (batch // step) % pipeline == 0
    assert batch <= 64


@pytest.mark.parametrize(("length", "divides"), [(16, True), (4112, True), (4120, False)])
def test_a_length_that_the_static_size_divides_still_does(length: int, divides: bool) -> None:
    """Upstream's checks ask for 2 x CP; all ranks of a Dynamic CP domain share more."""
    model = MODEL.replace("--seq-length 8192", f"--seq-length {length}")
    line = "--context-parallel-size 8 --dynamic-context-parallel --max-seqlen-per-dp-cp-rank 4096"
    result, flags = small(line, 64, model)
    assert result.ranks == 8
    assert (flags.integer("--seq-length", 0) % 16 == 0) is divides


def test_experts_divide_and_stay_enough_for_the_router() -> None:
    line = ("--num-experts 256 --expert-model-parallel-size 8 --moe-router-topk 8 "
            "--moe-router-num-groups 8 --moe-router-group-topk 4")  # fmt: skip
    _, flags = small(line, 64)
    experts = flags.integer("--num-experts", 0)
    assert experts % 8 == 0 and experts // 8 * 4 >= 8 and experts < 64
    _, flags = small("--num-experts 6 --expert-model-parallel-size 4", 8)
    assert flags.integer("--num-experts", 0) == 6, "upstream refuses it, and still does"


def test_an_option_that_upstream_does_not_know_stays() -> None:
    assert small("--unknown 3", 8)[1].get("--unknown") == ("3",)
    words = ("--seq-length", "64", "--save", "/x")
    launch = Launch("a.py", words, {}, 1, 1, "test")
    result = shrink(launch, options={"--seq-length"})
    assert Flags(result.arguments).get("--save") == ("/x",)
    assert not Flags(result.arguments).has("--attention-dropout"), "it would be refused"
