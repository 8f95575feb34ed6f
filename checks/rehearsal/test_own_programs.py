"""Programs that people write on megatron-core: run as they are, and once more with CP 1."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from ringproof.cli.rehearse import launch_of
from ringproof.errors import InputError
from ringproof.launch.reading import Launch, read_command
from ringproof.rehearsal.fixtures import ENGINE, SessionServers
from ringproof.rehearsal.own.rehearsing import is_own_program, rehearse_own
from ringproof.rehearsal.own.report import (
    combined,
    layout_of,
    repeats,
    reported,
    without_tokens,
)
from ringproof.rehearsal.protocol.reports import Iteration, RankReport
from ringproof.rehearsal.rehearsing import Request
from ringproof.rehearsal.runs.outcome import Outcome
from ringproof.rehearsal.verdict.agreement import compare
from ringproof.rehearsal.verdict.variant import Variant
from ringproof.stack.pairs import PAIRS

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_loop.py"
MEGATRON = "pip:megatron-core==0.19.2"
FINISH = "    config.finalize_model_grads_func = finalize_model_grads\n"


def _variant(
    stage: SessionServers, folder: Path, *changes: tuple[str, str], words: str = "2 {} --cp 2",
    megatron: str = MEGATRON,
) -> Variant:  # fmt: skip
    """Rehearse the example, changed, in a folder of its own."""
    stage.upstream(MEGATRON)  # skips without the wheel
    text = EXAMPLE.read_text("utf-8")
    for old, new in changes:
        assert text.count(old) == 1
        text = text.replace(old, new)
    script = folder / "loop.py"
    script.write_text(text, "utf-8")
    launch = read_command(["torchrun", "--nproc-per-node", *words.format(script).split()])
    request = Request(
        launch, megatron, ENGINE, "", folder / "out", stage.cache, None, iterations=2, offline=True
    )
    assert is_own_program(launch)
    return rehearse_own(request, lambda *_: None).main


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "megatron"), [("2 {} --cp 2", ""), ("4 {} --tp 2 --cp=2", MEGATRON)]
)
def test_a_right_loop_agrees(
    stage: SessionServers, tmp_path: Path, words: str, megatron: str
) -> None:
    names = "LENGTH, VOCABULARY, MICROBATCHES, STEPS"
    (tmp_path / "beside.py").write_text(f"{names} = 64, 128, 2, 100\n", "utf-8")
    beside = (f"{names} = 64, 128, 2, 100\n", f"from beside import {names}\n")
    variant = _variant(stage, tmp_path, beside, words=words, megatron=megatron)
    assert variant.megatron.startswith(next(iter(PAIRS)))  # also where none is named
    assert variant.passed, variant.headline
    assert variant.path.requested.size == 2 and variant.path.taken[0].comm_type == "p2p"
    assert len(variant.losses) == 2 and variant.metrics == ()
    assert variant.reference is not None and variant.reference.ranks == int(words[0]) // 2
    assert variant.reference.arguments[-1].endswith("1")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "said"),
    [
        # The schedule multiplies the loss by CP already.
        (("return total / count,", "return total / count * size_of_cp(),"), "multiplied by 2 (CP)"),
        (("return total / count,", "return total / own,"), "grad norm differs first in step 1"),
        ((FINISH, ""), "grad norm differs first in step 1"),
        (("batch = on_this_rank(next(batches))", "batch = next(batches)"), "the whole sequence"),
    ],
    ids=["scaled-twice", "mean-of-its-own-tokens", "gradients-not-summed", "not-sliced"],
)
def test_a_wrong_loop_is_seen(
    stage: SessionServers, tmp_path: Path, change: tuple[str, str], said: str
) -> None:
    helper = "\n\ndef size_of_cp():\n    return parallel_state.get_context_parallel_world_size()\n"
    name = '\n\nif __name__ == "__main__":'
    variant = _variant(stage, tmp_path, change, (name, helper + name))
    assert variant.starts and variant.agreement.agrees is False
    assert said in variant.agreement.reason


@pytest.mark.slow
def test_a_size_that_is_written_in_the_program_leaves_it_unknown(
    stage: SessionServers, tmp_path: Path
) -> None:
    size = "    size = parallel_state.get_context_parallel_world_size()\n"
    variant = _variant(stage, tmp_path, (size, "    size = 2\n"))
    assert variant.agreement.other_tokens
    assert "is written in the program itself" in variant.agreement.reason


@pytest.mark.slow
def test_a_model_that_cannot_be_drawn_again_is_said_so(
    stage: SessionServers, tmp_path: Path
) -> None:
    odd = (
        "class Odd(GPTModel):\n    def sharded_state_dict(self, *given, **named):\n"
        "        raise KeyError('mine')\n\n\ndef built("
    )
    variant = _variant(
        stage, tmp_path, ("def built(", odd), ("    model = GPTModel(", "    model = Odd(")
    )
    assert (
        variant.starts and "could not be drawn by their place (KeyError" in variant.launch.notes[-1]
    )


@pytest.mark.slow
def test_an_error_has_the_line_of_the_program(stage: SessionServers, tmp_path: Path) -> None:
    change = ("    model, optimizer = built(config)\n", "    model, optimizer = build(config)\n")
    variant = _variant(stage, tmp_path, change)
    assert variant.refusal is not None and "NameError" in variant.refusal.message
    line = 1 + (tmp_path / "loop.py").read_text("utf-8").split("\n").index(change[1].rstrip("\n"))
    assert (variant.refusal.file, variant.refusal.line) == ("loop.py", line)


@pytest.mark.slow
def test_a_program_without_an_optimizer_is_not_called_right(
    stage: SessionServers, tmp_path: Path
) -> None:
    variant = _variant(stage, tmp_path, ("        optimizer.step()\n", ""), ("100\n", "2\n"))
    assert variant.agreement.agrees is False
    assert "No call of an optimizer" in variant.agreement.reason


def _launch(path: Path, text: str) -> Launch:
    path.write_text(text, "utf-8")
    return Launch(str(path), (), {}, 1, 2, "the command")


@pytest.mark.parametrize(
    ("text", "own"),
    [
        ("from megatron.core import parallel_state\n", True),
        ("import megatron.core\n", True),
        ("from megatron.training import pretrain\nimport megatron.core\n", False),
        ("from megatron import core, training\n", False),
        ("from megatron.training.global_vars import set_args\nimport megatron.core\n", True),
        ("from megatron.training.initialize import x\nimport megatron.core\n", False),
        ("from megatron.bridge.recipes import x\nimport megatron.core\n", False),
        ("import torch\n", False),
        ("def (", False),
    ],
)
def test_which_programs_are_own_ones(tmp_path: Path, text: str, own: bool) -> None:
    assert is_own_program(_launch(tmp_path / "loop.py", text)) is own


def test_a_launch_of_too_many_ranks_is_one_line(tmp_path: Path) -> None:
    launch = Launch(str(EXAMPLE), (), {}, 8, 8, "the command")
    request = Request(launch, MEGATRON, None, "", tmp_path, tmp_path, None)
    with pytest.raises(InputError, match="64 ranks are launched, more than 32"):
        rehearse_own(request, lambda *_: None)


def test_a_command_in_quotes_is_a_command() -> None:
    command = f"torchrun --nproc-per-node 2 {EXAMPLE} --cp 2"
    assert launch_of([command], ()) == launch_of(command.split(), ())
    with pytest.raises(InputError, match="close its quotes"):
        launch_of(["torchrun 'a"], ())


def _outcome(*rows: dict[str, object], levels: tuple[int, ...] = (), tensor: int = 1) -> Outcome:
    layout = {
        "tensor": tensor, "pipeline": 1, "context": 2, "levels": levels, "dynamic": False,
    }  # fmt: skip
    told = (
        {"steps": [{"tokens": (0, 0), **row}], "layout": layout, "comm_types": ["a2a"]}
        for row in rows
    )
    step = Iteration(1, {}, None, 0.1)
    ranks = (RankReport(rank, None, (step,), results=one) for rank, one in enumerate(told))
    return Outcome(tuple(ranks), None, 1.0, 0, Path("logs"))


def test_the_same_tokens_several_times_are_told_from_other_tokens() -> None:
    row = {"sums": {}, "norm": 1.0, "of_all": True}
    once = combined(_outcome({**row, "tokens": (3, 10)}))
    twice = combined(_outcome(*({**row, "tokens": (3, 10)},) * 2))
    other = combined(_outcome({**row, "tokens": (6, 21)}))
    assert once.tokens == {1: (3, 10)} and without_tokens(once).tokens == {}
    assert repeats(twice, once, 2) and not repeats(other, once, 2)


def test_norms_decide_alone_where_no_model_got_labels() -> None:
    rows = [{"sums": {}, "norm": norm, "of_all": True} for norm in (2.0, 2.0)]
    other = [{**row, "norm": 2.1} for row in rows]
    run, same, different = (combined(_outcome(*rows)) for rows in (rows, rows, other))
    assert run.losses == {} and run.grad_norms == {1: 2.0}
    agreed = compare(run, same, "float32", by_norms=True)
    assert agreed.agrees and "no loss was compared" in agreed.reason
    assert compare(run, same, "float32").agrees is False
    parted = compare(run, different, "float32", by_norms=True)
    assert parted.agrees is False and "grad norm differs first in step 1" in parted.reason
    empty = dataclasses.replace(run, ranks=run.ranks[1:])
    assert compare(run, empty, "float32", by_norms=True).agrees is False


def test_losses_are_those_of_all_tokens_and_norms_those_of_one_copy() -> None:
    sums = [{"loss of the labels": (6.0, 2.0), "reported x": (1.0, 1.0)},
            {"loss of the labels": (2.0, 6.0), "reported x": (3.0, 1.0)}]  # fmt: skip
    found = _outcome(
        {"sums": sums[0], "norm": 3.0, "of_all": False},
        {"sums": sums[1], "norm": 4.0, "of_all": False},
    )
    whole = combined(found)
    assert whole.losses == {1: {"loss of the labels": 1.0}}
    assert whole.grad_norms == {1: pytest.approx(12.5**0.5)}  # two copies of the parameters
    assert reported(found) == [{"reported x": 2.0}]
    layout = layout_of(found)
    assert layout is not None and layout.path.comm_types == ("a2a",)
