"""``ringproof rehearse``: its outputs from runs built by hand, and its answers to bad input."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ringproof.budget import Machine
from ringproof.cli.main import app
from ringproof.cli.rehearse import brief
from ringproof.errors import InputError
from ringproof.launch.reading import Launch, read_command
from ringproof.launch.small.shrink import Change, SmallProgram
from ringproof.rehearsal.fit import beside
from ringproof.rehearsal.fit.fitting import FitRequest, Refused
from ringproof.rehearsal.fixtures import SessionServers
from ringproof.rehearsal.locate.result import (
    MOST_TIMES,
    Beside,
    Culprit,
    ErrorMap,
    ModuleErrors,
    WrongPlace,
)
from ringproof.rehearsal.protocol.program import Upstream
from ringproof.rehearsal.protocol.reports import AttentionCall, Failure, Iteration, RankReport
from ringproof.rehearsal.rehearsing import Request, estimate, find_script, rehearsal_of, rehearse
from ringproof.rehearsal.runs.outcome import Outcome
from ringproof.rehearsal.verdict.agreement import Agreement, compare
from ringproof.rehearsal.verdict.path import read_path
from ringproof.rehearsal.verdict.refusal import refusal_of
from ringproof.rehearsal.verdict.rendering import lines, numbers, page, size, waiting_lines
from ringproof.rehearsal.verdict.variant import FullSizeRun, Rehearsal, Variant, as_json

ARGUMENTS = ("--context-parallel-size", "2")
COMMAND = ("--", "torchrun", "--nproc-per-node", "2", "pretrain_gpt.py", *ARGUMENTS)


def outcome(loss: float, comm_type: str = "p2p") -> Outcome:
    ranks = []
    for rank in range(2):
        steps = tuple(Iteration(n, {"lm loss": loss - n / 10}, 1.0, 0.1) for n in (1, 2))
        calls = tuple(
            AttentionCall(n, "train", 1, 0, comm_type, (2,), ((0, 1),), "sbhd", 64) for n in (1, 2)
        )
        ranks.append(RankReport(rank, None, steps, (), calls))
    return Outcome(tuple(ranks), None, 2.0, 3 << 20, Path("logs"))


def variant(loss: float = 5.0, comm_type: str = "p2p") -> Variant:
    ran, reference = outcome(loss, comm_type), outcome(5.0)
    change = Change("--hidden-size", "4096", "64", "What <b>width</b> shows.")
    small = SmallProgram("pretrain_gpt.py", ARGUMENTS, {}, 2, (change,), "float32")
    return Variant(
        name="launch",
        launch=Launch("pretrain_gpt.py", ARGUMENTS, {}, 64, 8, "train.sh:1"),
        megatron="git:dev",
        engine="2.20.2",
        dtype="float32",
        small=small,
        reference=dataclasses.replace(small, ranks=1),
        outcome=ran,
        reference_outcome=reference,
        refusal=None,
        path=read_path(ARGUMENTS, ran.ranks),
        agreement=compare(ran, reference, "float32"),
    )


def refused(failure: Failure) -> Variant:
    return dataclasses.replace(
        variant(),
        outcome=Outcome((), failure, 1.0, 0, Path("logs")),
        refusal=refusal_of(failure, []),
        path=read_path(ARGUMENTS, [], finished=False),
        agreement=Agreement(None, "not run"),
    )


def uncompared(steps: int = 0) -> Variant:
    """Return a rehearsal whose reference logged fewer steps, or did not run."""
    agreement = Agreement(False, "The reference did not run.")
    if steps:
        ran = outcome(5.0)
        ranks = tuple(dataclasses.replace(r, iterations=r.iterations[:steps]) for r in ran.ranks)
        agreement = compare(ran, dataclasses.replace(ran, ranks=ranks), "float32")
    return dataclasses.replace(variant(), agreement=agreement)


def rehearsal(main: Variant, against: Variant | None = None) -> Rehearsal:
    return Rehearsal(main, against, None, 3.0)


@pytest.mark.parametrize(
    ("loss", "locates", "said"), [(5.5, True, 1), (5.5, False, 0), (5.0, True, 0)]
)
def test_why_a_program_of_your_own_is_not_located_is_said_in_one_line(
    loss: float, locates: bool, said: int
) -> None:
    it = variant(loss)
    asked = Request(it.launch, "", None, "", Path(), Path(), None, locates=locates)
    text = lines(rehearsal_of(asked, [it], 0.0))
    found = [line for line in text if "not located: a program of your own is not traced" in line]
    assert len(found) == said


RAISED = Failure("raised", 1, "AssertionError: <script>no</script>", "megatron/a.py:7")
HUNG = Failure("hung", 0, "waits", waiting={0: "irecv in CP [0, 1]", 1: "irecv in CP [0, 1]"})


@pytest.mark.parametrize(
    ("machine", "refused"),
    [
        (Machine(1, 24 << 30), r"makes 32 ranks, and the limit is 16, 16 for each of 1 cores"),
        (Machine(2, 4 << 30), r"needs about 5.6 GB, and 4.3 GB are free"),
    ],
)
def test_ranks_that_the_machine_cannot_hold_are_refused(machine: Machine, refused: str) -> None:
    needs = estimate(32, 40)
    needs.check(Machine(2, 24 << 30))
    with pytest.raises(InputError, match=f"--max-ranks: .* {refused}"):
        needs.check(machine)


def test_json_of_a_rehearsal_that_passes() -> None:
    data = json.loads(json.dumps(as_json(rehearsal(variant()))))
    assert data["passed"] and data["starts"] and data["agrees"]
    assert data["refused_by"] is None
    assert data["largest_relative_difference"] == 0
    assert data["path"]["layers"] == {"1": [{"comm_type": "p2p", "sizes": [2], "calls": 4}]}
    assert data["path"]["microbatches"][0]["shares"][0]["ranks"] == [0, 1]
    assert data["shrunk"][0]["hides"]
    assert data["program"]["losses"]["1"] == {"lm loss": 4.9}
    assert data["seconds"] == 3.0


def test_the_first_wrong_tensor_is_shown() -> None:
    beside = Beside("output", 0.83, 1e-5), Beside("input <b>query</b>", 2e-7, 1e-5)
    culprit = Culprit(
        "forward", "decoder.layers.0", "output", 1, (0, 1), (1,), ((64, 191),), (0,), 0.83, 1e-5,
        "te/a.py:7", "mcore/b.py:9", "", beside,
    )  # fmt: skip
    layer, inner = "decoder.layers.0", "decoder.layers.0.<b>mlp</b>"
    errors = ErrorMap(1, (0, 1), (0, 128, 256), ("", layer, inner), (
        ModuleErrors(layer, "forward", (0.25, 8.3e4), (8.3e4, 0.25)),
        ModuleErrors(inner, "backward", (MOST_TIMES, None), (12.0, None)),
    ))  # fmt: skip
    place = WrongPlace(culprit, "", (1,), 9, (("x", 2),), errors)
    found = dataclasses.replace(variant(5.5), located=place)
    text = "\n".join(lines(rehearsal(found)))
    assert "decoder.layers.0 is wrong in the forward in step 1, microbatches 0-1, on rank 1" in text
    assert "computed at te/a.py:7, called at mcore/b.py:9" in text
    assert "wrong   0.83 (rounding explains 1e-05)  output" in text
    assert "9 tensors were compared; not compared: x" in text
    kept = dataclasses.replace(found, traces=Path("two/launch"))
    assert "Traces      two/launch" in "\n".join(lines(rehearsal(kept)))
    assert as_json(rehearsal(kept))["traces"] == "two/launch"
    data = json.loads(json.dumps(as_json(rehearsal(found))))["located"]
    assert data["sentence"].startswith("decoder.layers.0 is wrong")
    assert data["culprit"]["positions"] == [[64, 191]]
    shown = page(rehearsal(found))
    assert "&lt;b&gt;query" in shown and "<b>query" not in shown and "<b>mlp" not in shown
    for cell in (
        f'<td class="e0 start" title="{layer}: forward, rank 0: agrees, 0.25 of what rounding',
        f'<td class="e3 first" title="{layer}: forward, rank 1: 8.3e+04 times what rounding',
        'rank 0: at least 1e+09 times what rounding explains">1e9</td>',
        'rank 1: not compared"><span class="unseen">-</span></td>',
        f'<td class="e3 start first" title="{layer}: forward, positions 0-127: 8.3e+04 times',
        "positions 128-255: not compared",
    ):
        assert cell in shown
    assert data["errors"]["rows"][0]["ranks"] == [0.25, 8.3e4]
    assert "first wrong: " not in page(rehearsal(variant(5.5)))
    assert as_json(rehearsal(variant()))["located"] is None


def test_json_of_a_refusal() -> None:
    data = as_json(rehearsal(refused(RAISED)))
    assert not data["passed"] and not data["starts"]
    assert data["takes_path_asked_for"] is None and data["agrees"] is None
    by = data["refused_by"]
    assert (by["rank"], by["file"], by["line"]) == (1, "megatron/a.py", 7)


@pytest.mark.parametrize(
    ("it", "passed", "said"),
    [
        (variant(), True, "takes the path asked for (p2p over 2 ranks), and agrees"),
        (variant(5.1), False, "is not right"),
        (variant(comm_type="a2a"), False, "not on the path asked for"),
        (uncompared(), False, "whether it is right is not known. The reference did not run"),
        (uncompared(steps=1), False, "whether it is right is not known. Not every step"),
        (refused(RAISED), False, "megatron/a.py:7"),
        (refused(HUNG), False, "It hangs"),
        (refused(Failure("died", 0, "ended by signal SIGKILL")), False, "SIGKILL"),
        (refused(dataclasses.replace(RAISED, symbol="tex.f")), False, "no stand-in for"),
    ],
)
def test_headlines(it: Variant, passed: bool, said: str) -> None:
    assert it.passed is passed
    assert said in it.headline
    assert said in "\n".join(lines(rehearsal(it)))


def test_what_was_shrunk_is_one_line_unless_asked() -> None:
    short = "\n".join(lines(rehearsal(variant())))
    assert "1 setting, such as --hidden-size 4096 -> 64; --verbose lists them" in short
    assert "What <b>width</b> shows." not in short
    assert "What <b>width</b> shows." in "\n".join(lines(rehearsal(variant()), verbose=True))


def test_one_variant_that_fails_fails_both() -> None:
    both = rehearsal(variant(), variant(comm_type="a2a"))
    assert not both.passed
    assert both.headline == "launch passes; launch does not pass"
    assert rehearsal(variant(), variant()).passed


def test_a_hang_names_collective_and_group() -> None:
    assert list(waiting_lines(HUNG.waiting)) == ["ranks 0-1 in irecv in CP [0, 1]"]
    assert "ranks 0-1 in irecv in CP [0, 1]" in page(rehearsal(refused(HUNG)))


def test_the_page_needs_no_other_file_and_escapes() -> None:
    text = page(rehearsal(variant(), refused(RAISED)))
    tables = text.count("<table")
    assert tables == text.count('<div class="scroll"><table') > 0, "wider than a phone"
    assert re.search(r"(src|href)=|@import|url\(", text) is None
    assert "&lt;script&gt;no" in text and "<script" not in text
    assert "What &lt;b&gt;width" in text
    cells = re.findall(r'<td style="background: #\w+; color: #\w+" title="step', text)
    assert len(cells) >= 2  # one cell of two ranks for each microbatch


def test_the_page_marks_a_difference() -> None:
    assert 'circle class="beyond"' in page(rehearsal(variant(5.1)))
    assert 'circle class="beyond"' not in page(rehearsal(variant()))


def test_two_variants_are_compared_in_words_and_share_what_is_equal() -> None:
    one, other = variant(), dataclasses.replace(variant(5.1, "a2a"), name="--cp-comm-type a2a")
    between = compare(one.outcome, other.outcome, "float32")
    text = "\n".join(lines(Rehearsal(one, other, between, 3.0)))
    assert "Losses      The lm loss differs first in step 1: 4.9 against 5" in text
    assert "Paths       launch: p2p 2 in 4 calls; --cp-comm-type a2a: a2a 2 in 4 calls" in text
    assert text.count("--hidden-size 4096 -> 64") == 1
    assert text.count("few roundings") == 1
    again = "\n".join(lines(Rehearsal(one, one, compare(one.outcome, one.outcome, "float32"), 3.0)))
    assert "equal in every digit" in again and "Paths       the same: p2p 2 in 4 calls" in again
    assert "differs first in step 1" in page(Rehearsal(one, other, between, 3.0))
    located = Rehearsal(one, other, between, 3.0, WrongPlace(None, "no <b>rows</b>"))
    assert "Located     not located: no <b>rows</b>" in "\n".join(lines(located))
    assert "not located: no &lt;b&gt;rows" in page(located)
    assert as_json(located)["located_between"]["reason"] == "no <b>rows</b>"


def test_small_texts() -> None:
    assert numbers((0, 1, 2, 5)) == "0-2, 5"
    assert [size(n) for n in (12, 2048, 3 << 20, 5 << 30)] == [
        "12 B", "2.0 KiB", "3.0 MiB", "5.0 GiB"
    ]  # fmt: skip
    running = "  9 s, 4 ranks running: iteration        2/       5 | lm loss"
    assert brief(running) == "  9 s, 4 ranks running, step 2 of 5 is done"
    assert brief("starts") == "starts"


def test_scripts_are_found_by_as_much_of_their_path_as_exists(tmp_path: Path) -> None:
    (tmp_path / "examples").mkdir()
    for name in ("pretrain_gpt.py", "examples/run.py"):
        (tmp_path / name).touch()
    upstream = Upstream(tmp_path, "here", tmp_path, "2", None)

    def found(script: str) -> str:
        return find_script(Launch(script, (), {}, 1, 1, "x"), upstream)

    assert found("/workspace/Megatron-LM/pretrain_gpt.py") == "pretrain_gpt.py"
    assert found("../examples/run.py") == "examples/run.py"
    assert found(str(tmp_path / "examples" / "run.py")) == "examples/run.py"
    with pytest.raises(InputError, match="does not have"):
        found("train_other.py")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder that is taken for Megatron-LM, without a program that trains."""
    core = tmp_path / "megatron" / "core"
    core.mkdir(parents=True)
    (core / "__init__.py").touch()
    (tmp_path / "pretrain_gpt.py").touch()
    engine = tmp_path / "te" / "transformer_engine" / "pytorch"
    engine.mkdir(parents=True)
    (engine / "__init__.py").touch()
    (tmp_path / "te" / "build_tools").mkdir()
    (tmp_path / "te" / "build_tools" / "VERSION.txt").write_text("2.20.2")
    (tmp_path / "transformer_engine-1-py3-none-any.whl").write_text("not a zip")
    return tmp_path


HERE = ("--upstream", ".")
WHEEL = "transformer_engine-1-py3-none-any.whl"
BAD_INPUT = (
    ("has no megatron/core", "--upstream", "/usr"),
    ("'/nowhere' is not a folder", "--upstream", "git:/nowhere@dev"),
    ("download the wheel again", *HERE, "--te", WHEEL),
    ("there is no file 'nothing.whl'", *HERE, "--te", "nothing.whl"),
    ("has no transformer_engine", *HERE, "--te", "."),
    ("cannot be written", *HERE, "--json", "/nowhere/a.json"),
    ("is a folder", *HERE, "--html", "."),
    ("is neither a checkout nor", *HERE, "--against", "nonsense"),
    (
        "--against: there is no file 'nothing.whl'",
        *HERE,
        "--te",
        "te",
        "--against",
        "te=nothing.whl",
    ),
    ("--against: '.' has no transformer_engine", *HERE, "--te", "te", "--against", "te=."),
    ("--against: the name is empty", *HERE, "--te", "te", "--against", "te="),
    ("=2' already; name another value", *HERE, "--against", "context-parallel-size=2"),
    ("--against: '/usr' has no megatron/core", *HERE, "--te", "te", "--against", "/usr"),
    ("--against: '/nowhere' is not a folder", *HERE, "--te", "te", "--against", "git:/nowhere@dev"),
    ("--against: 'fetched:a' names no commit", *HERE, "--te", "te", "--against", "fetched:a"),
    ("--upstream: there is no file", "--upstream", "nothing.whl"),
    (f"--upstream: {WHEEL} is no", "--upstream", WHEEL),
    ("--upstream: it is missing; name a checkout", "--upstream", ""),
    ("is not NAME=VALUE", *HERE, "--set", "nonsense"),
    ("a command has no variable A to set", *HERE, "--set", "A=1"),
    ("'float16' is unknown; use one of float32", *HERE, "--dtype", "float16"),
    ("is where --json writes", *HERE, "--json", "-", "--html", "-"),
)


@pytest.mark.parametrize(("problem", "words"), [(row[0], row[1:]) for row in BAD_INPUT])
def test_bad_input_is_refused(
    problem: str, words: tuple[str, ...], checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(checkout)
    done = CliRunner().invoke(app, ["rehearse", *words, *COMMAND])
    assert isinstance(done.exception, InputError)
    assert problem in str(done.exception)


def test_a_program_that_does_not_exist_is_named(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["rehearse", "--", "torchrun", "--nproc-per-node", "2"]
    done = CliRunner().invoke(app, [*command, "missing.py"])
    assert str(done.exception).startswith("the launch: 'missing.py' is not here; correct")
    (tmp_path / "mine.py").write_text("import megatron.training\n")
    for program in ("mine.py", "pretrain_gpt.py"):
        done = CliRunner().invoke(app, [*command, program])
        assert str(done.exception).startswith("--upstream: it is missing")


SCRIPT = """
export CUDA_DEVICE_MAX_CONNECTIONS=1
ARGS="--num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 4096 --bf16
 --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 64 --train-iters 1000
 --lr 1e-4 --eval-interval 100 --normalization RMSNorm --swiglu --disable-bias-linear
 --position-embedding-type rope
 --tokenizer-type HuggingFaceTokenizer --tokenizer-model /models/m --data-path /data/d"
torchrun --nproc-per-node 8 --nnodes ${NNODES:-2} pretrain_gpt.py $ARGS \\
    --context-parallel-size 4 --cp-comm-type a2a+p2p $LEVELS
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("levels", "code", "said"),
    [
        ("--hierarchical-context-parallel-sizes 2 2", 0, None),
        ("", 1, "--hierarchical-context-parallel-sizes must be set"),
        ("--hierarchical-context-parallel-sizes 4 2", 1, "AssertionError"),
    ],
)
def test_a_launch_from_script_to_verdict(
    stage: SessionServers, tmp_path: Path, levels: str, code: int, said: str | None
) -> None:
    upstream = stage.upstream("NVIDIA/Megatron-LM@dev")
    (tmp_path / "train.sh").write_text(f'LEVELS="{levels}"\n{SCRIPT}')
    there = ("--upstream", str(upstream.megatron), "--te", str(upstream.engine))
    outputs = ("--json", "a.json", "--html", "a.html")
    done = subprocess.run(
        [sys.executable, "-m", "ringproof", "rehearse", "train.sh", *there, *outputs],
        capture_output=True, text=True, cwd=tmp_path, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr + done.stdout
    data = json.loads((tmp_path / "a.json").read_text())
    assert data["passed"] is (code == 0)
    assert "</html>" in (tmp_path / "a.html").read_text()
    assert list((tmp_path / "build" / "rehearsal" / "train").rglob("rank-0.log"))
    if said is not None:
        assert said in data["refused_by"]["message"]
        assert data["refused_by"]["file"].startswith("megatron/")
        return
    assert data["path"]["taken"][0]["sizes"] == [2, 2]
    assert data["largest_relative_difference"] < 2e-6
    assert data["launch"]["ranks"] == 16 and data["shrunk"]
    assert data["full_size"] == {"refusal": None, "unknown": ""}
    assert "full size" not in done.stdout.lower()


@pytest.mark.slow
def test_what_upstream_refuses_at_full_size_only_is_said(
    stage: SessionServers, tmp_path: Path
) -> None:
    """Of 16 ranks four are rehearsed, with TP 2, by which the width can be divided."""
    release = "pip:megatron-core==0.19.2"
    upstream = stage.upstream(release)
    options = (
        "--bf16 --num-layers 2 --hidden-size 1024 --num-attention-heads 16 --ffn-hidden-size 4100 "
        "--seq-length 512 --max-position-embeddings 512 --micro-batch-size 1 --lr 1e-3 "
        "--global-batch-size 1 --train-iters 9 --eval-interval 9 --vocab-size 1024 --mock-data "
        "--tokenizer-type NullTokenizer --normalization RMSNorm --disable-bias-linear "
        "--position-embedding-type rope --tensor-model-parallel-size 8 --context-parallel-size 2"
    )
    head = "CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun --nproc-per-node 16 pretrain_gpt.py"
    launch = read_command(f"{head} {options}".split())
    request = Request(
        launch, release, str(upstream.engine), "", tmp_path, stage.cache, None,
        iterations=1, max_ranks=4,
    )  # fmt: skip
    small = rehearse(request, lambda *_: None)
    assert small.passed, small.headline
    whole = beside.with_full_size(small, request, lambda *_: None)
    refusal = whole.main.full_size_refusal
    assert refusal is not None, whole.main.full_size
    assert "4100 is not divisible by 8" in refusal.message
    assert refusal.file.startswith(("megatron/", "transformer_engine/")) and refusal.line
    late = beside.with_full_size(small, request, lambda *_: None, limit=0.01)
    assert late.main.full_size == FullSizeRun(unknown="it takes more than 0.01 s")
    assert late.passed


class Unlike(contextlib.nullcontext[None]):
    """What measures launches, and refuses some: those of these numbers of layers."""

    refuses: tuple[str, ...] = ()
    trace = '  File "/upstream/megatron/core/utils.py", line 71, in divide'

    def __init__(self, asked: FitRequest, progress: object) -> None:
        super().__init__()

    def __enter__(self) -> Unlike:  # type: ignore[override]
        return self

    def prepare(self, launch: Launch) -> Launch:
        return launch

    def fit(self, launch: Launch) -> None:
        if launch.arguments[launch.arguments.index("--num-layers") + 1] in self.refuses:
            raise Refused(
                Failure("raised", 0, "AssertionError: no", "a.py:7", traceback=self.trace)
            )


@pytest.mark.parametrize(
    ("refuses", "known", "said"),
    [
        ("32 2", "AssertionError: no", ""),
        ("2", None, ""),
        ("32 2 1", None, "without content, what starts in small ends, too"),
    ],
)
def test_only_a_size_is_refused_at_full_size(
    monkeypatch: pytest.MonkeyPatch, refuses: str, known: str | None, said: str
) -> None:
    """Not fewer layers, nor what is refused without content whatever its size."""
    launch = Launch("pretrain_gpt.py", ("--num-layers", "32"), {}, 1, 8, "train.sh:1")
    request = Request(launch, "git:dev", None, "", Path(), Path(), None)
    small = SmallProgram("pretrain_gpt.py", ("--num-layers", "1"), {}, 2, (), "float32")
    started = rehearsal(dataclasses.replace(variant(), launch=launch, small=small))
    monkeypatch.setattr(beside, "Fitting", Unlike)
    monkeypatch.setattr(Unlike, "refuses", tuple(refuses.split()))
    run = beside.with_full_size(started, request, print).main.full_size
    assert run is not None and run.unknown.startswith(said) and bool(run.unknown) is bool(said)
    assert (run.refusal and run.refusal.message) == known
    monkeypatch.setattr(Unlike, "trace", f'  File "{beside.__file__}", line 7, in fit')
    ours = beside.with_full_size(started, request, print).main.full_size
    assert ours is not None and ours.refusal is None
    assert ("own code" in ours.unknown) is (refuses != "2")


def test_a_refusal_at_full_size_fails_what_passes_in_small() -> None:
    failure = Failure("raised", 0, "AssertionError: <b>4100</b>", "megatron/core/utils.py:71")
    run = FullSizeRun(refusal_of(failure, ()))
    it = rehearsal(dataclasses.replace(variant(), full_size=run))
    said = "It starts in small, and at full size it is refused by rank 0 at megatron/core/utils.py"
    assert not it.passed and it.headline.startswith(said)
    text = "\n".join(lines(it))
    assert "refused at full size: AssertionError: <b>4100</b>" in text
    assert "<b>4100" not in page(it)
    assert "At full size: Rank 0, megatron/core/utils.py:71" in page(it)
    late = rehearsal(dataclasses.replace(variant(), full_size=FullSizeRun(unknown="too long")))
    assert late.passed and "not known: too long" in "\n".join(lines(late))
    assert "at full size is not known: too long" in page(late)
    assert as_json(late)["full_size"] == {"refusal": None, "unknown": "too long"}
