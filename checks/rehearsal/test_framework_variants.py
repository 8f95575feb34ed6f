"""What `rehearse` does with variants of any framework: the second one, and one that ends early."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from unittest import mock

import pytest

from ringproof.errors import InputError
from ringproof.launch.reading import read_command
from ringproof.launch.small.shrink import SmallProgram
from ringproof.rehearsal import rehearsing
from ringproof.rehearsal.locate.result import Culprit, WrongPlace
from ringproof.rehearsal.protocol.program import Program, Upstream
from ringproof.rehearsal.protocol.reports import AttentionCall, Failure, Iteration, RankReport
from ringproof.rehearsal.rehearsing import (
    Request,
    changed_by_override,
    open_other,
    rehearsal_of,
    stopped,
    traced,
)
from ringproof.rehearsal.runs.outcome import Outcome
from ringproof.rehearsal.verdict.agreement import Agreement
from ringproof.rehearsal.verdict.path import RequestedPath, path_taken
from ringproof.rehearsal.verdict.variant import Variant

WORDS = ("engine=megatron", "engine.context_parallel_size=2")
LAUNCH = read_command(["torchrun", "--nproc_per_node=2", "-m", "verl.trainer.sft_trainer", *WORDS])
REQUEST = Request(LAUNCH, "", None, "", Path(), Path(), None, iterations=2, locates=True)
UPSTREAM = Upstream(Path("m"), "m", Path("e"), "2.20.2", None)
SMALL = SmallProgram("train.py", (), {}, 2, (), "float32")
FOUND = WrongPlace(Culprit("forward", "output_layer", "output", 1, (0,), (0,)), "", (1,), 9)
OUTSIDE = WrongPlace(None, "the run ends outside of all modules that are traced", (1,), 9)
EARLY = WrongPlace(None, "the run with traces did not end well", (1,))


def ran(*losses: float, failure: Failure | None = None, attention: bool = True) -> Outcome:
    steps = tuple(Iteration(n, {"loss": one}, 1.0, 0.1) for n, one in enumerate(losses, 1))
    call = AttentionCall(1, "train", 1, 0, "p2p", (2,), ((0, 1),), "thd", 64)
    report = RankReport(0, None, steps, (), (call,) if attention else ())
    return Outcome((report,), failure, 0.0, 0, Path("logs"))


def variant(name: str, outcome: Outcome) -> Variant:
    path = path_taken(RequestedPath(False, 2, ("p2p",), ()), outcome.ranks, finished=True)
    return Variant(name, LAUNCH, "m", "e", "float32", path, small=SMALL, outcome=outcome)


def program(small: SmallProgram) -> Program:
    return Program(UPSTREAM, small.script, small.arguments, small.ranks)


def run(_: Program, __: Path) -> Outcome:
    raise AssertionError("no program is to start")


@pytest.mark.parametrize("text", ["te=pip:transformer-engine==2.16.0", "--te=nothing.whl", "te="])
def test_another_engine_is_no_override(text: str) -> None:
    changed, words = changed_by_override(dataclasses.replace(REQUEST, against=text), "hydra")
    assert words == WORDS and changed.engine == text.partition("=")[2]
    nothing = changed.engine in ("nothing.whl", "")
    if nothing:
        with pytest.raises(InputError, match=r"^--against: (there is no file|the name is empty)"):
            open_other(UPSTREAM, REQUEST, changed)


def test_overrides_are_added_and_others_are_one_line() -> None:
    asked = dataclasses.replace(REQUEST, against="engine.x=1")
    changed, words = changed_by_override(asked, "hydra")
    assert changed == asked and words == (*WORDS, "engine.x=1")
    assert open_other(UPSTREAM, asked, changed) is UPSTREAM
    assert changed_by_override(REQUEST, "hydra") == (REQUEST, WORDS)
    for text in ("nonsense", "--x=1"):
        with pytest.raises(InputError, match="write KEY=VALUE as hydra reads it, or te=SPEC"):
            changed_by_override(dataclasses.replace(REQUEST, against=text), "hydra")


def test_two_variants_that_agree_each_and_differ_are_located() -> None:
    both = [variant("launch", ran(5.0, 4.0)), variant("against", ran(5.0, 4.5))]
    programs = [dataclasses.replace(program(SMALL), ranks=ranks) for ranks in (2, 4)]
    with mock.patch.object(rehearsing, "locate", return_value=FOUND) as found:
        result = rehearsal_of(REQUEST, both, 0.0, run, programs)
        assert result.located == FOUND
        assert found.call_args.args[1:4] == (programs[1], programs[0], 2)
        for request, first in (
            (dataclasses.replace(REQUEST, locates=False), both[0]),
            (REQUEST, dataclasses.replace(both[0], located=FOUND)),
        ):
            assert rehearsal_of(request, [first, both[1]], 0.0, run, programs).located is None
        assert found.call_count == 1


def test_a_framework_whose_reference_fails_is_not_called_a_program_of_your_own() -> None:
    expected = ran(failure=Failure("raised", 0, "no"))
    judged = variant("launch", ran(5.0)).compared(SMALL, expected)
    assert judged.agreement.agrees is False
    same = traced(REQUEST, judged, run, program, Path())
    assert rehearsal_of(REQUEST, [same], 0.0, run, ()).main.located is None
    keeping = dataclasses.replace(REQUEST, keeps=Path("kept"))
    assert traced(keeping, judged, run, program, Path()).traces is None


@pytest.mark.parametrize(
    ("found", "shown"), [(FOUND, FOUND), (OUTSIDE, OUTSIDE), (EARLY, None)]
)  # fmt: skip
def test_a_launch_that_raises_is_traced_up_to_there(
    found: WrongPlace, shown: WrongPlace | None
) -> None:
    """In the step that does not end; in the evaluation behind the last one."""
    failure = Failure("raised", 0, "RuntimeError: no", "a.py:1")
    for losses, step in (((), 1), ((5.0,), 2), ((5.0, 4.0), -1)):
        it = variant("launch", ran(*losses, failure=failure))
        with mock.patch.object(rehearsing, "locate", return_value=found) as called:
            result = stopped(REQUEST, it, run, program, Path("a"), lambda: SMALL)
        assert called.call_args.args[3:] == (step, Path("a/trace"))
        assert (result.located, result.reference) == (shown, SMALL)


def test_a_launch_that_raises_before_attention_or_has_no_reference_is_not_traced() -> None:
    failure = Failure("raised", 0, "RuntimeError: no", "a.py:1")
    early = variant("launch", ran(failure=failure, attention=False))
    assert stopped(REQUEST, early, run, program, Path(), lambda: SMALL) == early
    late = variant("launch", ran(failure=failure))
    quiet = dataclasses.replace(REQUEST, locates=False)
    assert stopped(quiet, late, run, program, Path(), lambda: SMALL) == late

    def none() -> SmallProgram:
        raise InputError("the launch", "no reference exists")

    assert stopped(REQUEST, late, run, program, Path(), none) == late


def test_a_variant_that_agrees_is_not_traced() -> None:
    agreed = dataclasses.replace(
        variant("launch", ran(5.0)), reference=SMALL, reference_outcome=ran(5.0),
        agreement=Agreement(True, "It agrees."),
    )  # fmt: skip
    assert traced(REQUEST, agreed, run, program, Path()) == agreed
