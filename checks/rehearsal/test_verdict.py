"""Verdicts on runs: agreement within tolerances, refusals, and the pitfalls that explain them."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from checks.faults import trials
from ringproof.cards.loading import load_card
from ringproof.rehearsal.protocol.reports import DIGESTS, Failure, Iteration, RankReport
from ringproof.rehearsal.rank.probe import digest_of
from ringproof.rehearsal.runs.outcome import Outcome
from ringproof.rehearsal.standins.conversations import (
    SHARES,
    UNIT,
    ConversationTokenizer,
    Packs,
    lengths_of,
)
from ringproof.rehearsal.verdict import refusal
from ringproof.rehearsal.verdict.agreement import compare
from ringproof.rehearsal.verdict.refusal import find_pitfalls, refusal_of

SKILLS = Path(__file__).parents[2] / "skills"
CARDS = functools.cache(load_card)  # read once for all tests here
LOSSES = (5.5, 5.4, 5.3, 5.2, 5.1)


@pytest.fixture(autouse=True)
def cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusal, "load_card", CARDS)


def run(*losses: float, norm: float = 1.0, evaluation: float | None = None) -> Outcome:
    steps = tuple(
        Iteration(number, {"lm loss": loss}, norm, 0.1) for number, loss in enumerate(losses, 1)
    )
    found = () if evaluation is None else ({"lm loss": evaluation},)
    silent = RankReport(0, None, tuple(Iteration(step.number, {}, norm, 0.1) for step in steps))
    return Outcome((silent, RankReport(1, None, steps, found)), None, 1.0, 0, Path())


def with_loss(name: str) -> Outcome:
    step = Iteration(1, {"lm loss": 5.5, name: 1.0}, 1.0, 0.1)
    return Outcome((RankReport(0, None, (step,)),), None, 1.0, 0, Path())


@pytest.mark.parametrize(("off", "agrees"), [(0, True), (1e-6, True), (1.2e-5, False)])
def test_rounding_agrees_and_a_defect_does_not(off: float, agrees: bool) -> None:
    wrong = (*LOSSES[:2], *(loss * (1 + off) for loss in LOSSES[2:]))
    verdict = compare(run(*wrong), run(*LOSSES), "float32")
    assert verdict.agrees is agrees
    assert verdict.largest_loss is not None
    assert verdict.largest_loss.relative == pytest.approx(off, rel=1e-6)
    assert (verdict.first is None) is agrees and ("in step 3" in verdict.reason) is not agrees


def test_gradient_norms_are_compared() -> None:
    verdict = compare(run(*LOSSES, norm=1.00005), run(*LOSSES), "float32")
    assert verdict.agrees is False
    assert verdict.first is not None and verdict.first.name == "grad norm"
    assert compare(run(*LOSSES, norm=1.00005), run(*LOSSES), "bfloat16").agrees is True


def test_evaluations_are_compared() -> None:
    same = compare(run(*LOSSES, evaluation=5.0), run(*LOSSES, evaluation=5.0), "float32")
    assert same.agrees is True
    other = compare(run(*LOSSES, evaluation=5.1), run(*LOSSES, evaluation=5.0), "float32")
    runs = run(*LOSSES, evaluation=5.1), run(*LOSSES, evaluation=5.0)
    without = compare(*runs, "float32", evaluated=False)
    assert without.agrees is True
    assert "Evaluation losses are not compared" in without.reason
    assert other.agrees is False and "in the evaluation" in other.reason


LATE, OFF = [5.0] * 20, 5.0 * (1 + 6e-6)


@pytest.mark.parametrize(
    ("one", "other", "agrees"),
    [
        (run(5.5, math.nan), run(5.5, 5.4), False),
        (run(5.5, math.nan), run(5.5, math.nan), False),
        (run(), run(*LOSSES), False),
        (run(*LATE[:-1], OFF), run(*LATE), True),  # tolerances grow with the steps
        (run(OFF), run(5.0), False),
    ],
)
def test_what_agrees(one: Outcome, other: Outcome, agrees: bool) -> None:
    assert compare(one, other, "float32").agrees is agrees


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        (run(*LOSSES), run(5.5), "the reference logged 1 of 5 steps"),
        (run(*LOSSES[:2]), run(*LOSSES), "the run logged 2 of 5 steps"),
        (run(*LOSSES), run(5.4), "differs first in step 1"),
        (with_loss("mtp loss"), run(5.5), "the reference has no mtp loss in step 1"),
    ],
)
def test_a_loss_of_one_run_only_is_no_agreement(one: Outcome, other: Outcome, said: str) -> None:
    verdict = compare(one, other, "float32")
    assert verdict.agrees is False and said in verdict.reason


def test_only_steps_with_losses_on_both_sides_are_counted() -> None:
    skipped = (Iteration(n, {"lm loss": 5.0} if n != 2 else {}, 1.0, 0.1) for n in (1, 2, 3))
    both = Outcome((RankReport(0, None, tuple(skipped)),), None, 1.0, 0, Path())
    verdict = compare(both, both, "float32")
    assert verdict.agrees is True and verdict.reason.startswith("2 steps agree")


def test_what_was_not_compared_is_said() -> None:
    without = replace(run(*LOSSES), ranks=tuple(
        replace(rank, iterations=tuple(replace(step, grad_norm=None) for step in rank.iterations))
        for rank in run(*LOSSES).ranks
    ))  # fmt: skip
    verdict = compare(without, run(*LOSSES, evaluation=5.0), "float32")
    assert verdict.agrees is True
    assert "one run lacks it in some step: grad norm, lm loss of the evaluation." in verdict.reason
    assert "same tokens was not checked here." in verdict.reason
    assert "lacks" not in compare(run(*LOSSES), run(*LOSSES), "float32").reason


@pytest.mark.parametrize(
    ("mine", "other", "said"),
    [
        ((8, 5), (8, 5), ""),
        ((8, 5), (9, 5), "8 against 9 tokens"),
        ((8, 5), (8, 6), "8 tokens each"),
        (None, (8, 6), ""),
    ],
)
def test_runs_on_different_tokens_get_no_verdict(
    mine: tuple[int, int] | None, other: tuple[int, int], said: str
) -> None:
    def trained(tokens: tuple[int, int] | None) -> Outcome:
        half = None if tokens is None else (tokens[0] - 3, tokens[1] - 2)
        rest = None if tokens is None else (3, 2)
        ranks = tuple(
            RankReport(n, None, (Iteration(1, {"lm loss": 5.0}, 1.0, 0.1, part),))
            for n, part in enumerate((half, rest))
        )
        return Outcome(ranks, None, 1.0, 0, Path())

    verdict = compare(trained(mine), trained(other), "float32")
    assert (verdict.other_tokens, verdict.agrees) == (bool(said), not said)
    assert not said or said in verdict.reason
    assert ("was not checked" in verdict.reason) is (mine is None)


def test_a_digest_of_tokens_knows_no_order() -> None:
    whole = torch.tensor([7, 3, 3, 250, 0])
    parts = sum(digest_of(whole[[place]]) for place in (4, 0, 2, 1, 3)) % DIGESTS
    assert digest_of(whole) == parts
    assert digest_of(torch.tensor([7, 3, 4, 249, 0])) != parts


@pytest.mark.parametrize("length", [16, 64, 100, 128, 256, 384, 4096])
def test_conversations_fill_their_packs_in_multiples(length: int) -> None:
    """No CP size up to 8 makes upstream pad them, so that all layouts train the same tokens."""
    for pack in range(len(SHARES)):
        found = lengths_of(pack, length)
        assert sum(found) == length - length % UNIT
        assert all(size > 0 and size % (2 * 8) == 0 for size in found)
        conversation = Packs(length, None)[pack][0]
        tokenizer = ConversationTokenizer(SimpleNamespace(eod=254))
        tokens, targets = tokenizer.tokenize_conversation([conversation])
        assert len(tokens) == found[0] and tokens[-1] == targets[-1] == 254


def test_a_refusal_has_file_and_line() -> None:
    failure = Failure("raised", 2, "AssertionError: no\n  good", "megatron/core/a.py:12")
    reports = [RankReport(2, None, (Iteration(1, {}, None, 0.1),))]
    stop = refusal_of(failure, reports)
    assert (stop.file, stop.line, stop.iteration) == ("megatron/core/a.py", 12, 1)
    assert stop.message == "AssertionError: no good"
    unknown = refusal_of(Failure("died", 0, "ended by signal SIGKILL"), [])
    assert (unknown.file, unknown.line) == ("", None)
    for odd in ("\u00b2", "9" * 5000):
        assert refusal_of(Failure("raised", 0, "", f"a.py:{odd}"), []).line is None


FRAMES = ("validate_args", "get_dynamic_data_context_parallel_groups", "build_layer")


@pytest.mark.parametrize(
    ("message", "feature", "pitfall"),
    [
        (
            "AssertionError: CP implementation a2a+p2p requires cp_group = "
            "[a2a_cp_group, p2p_cp_group]!",
            "dynamic-cp",
            "hierarchical-type",
        ),
        ("KeyError: 4", "dynamic-cp", "non-power-of-two-domain"),
        ("AssertionError: ", "a2a+p2p", "empty-assertion"),
        ("IndexError: list index out of range", "a2a+p2p", "per-layer-list"),
    ],
)
def test_messages_find_their_pitfalls(message: str, feature: str, pitfall: str) -> None:
    frames = "".join(f"  File x, line 1, in {name}\n    call()\n" for name in FRAMES[:-1])
    frames += f"  File x, line 1, in {FRAMES[-1]}\n"
    found = find_pitfalls(message, frames, SKILLS, feature)
    assert found[0].id == pitfall
    assert found[0].remedy


@pytest.mark.parametrize("message", ["KeyError: 7", "ValueError: out of range", "AssertionError: "])
def test_other_messages_find_none(message: str) -> None:
    assert find_pitfalls(message, "  in somewhere_else\n", SKILLS, "p2p") == ()
    assert find_pitfalls(message, "", None, "p2p") == ()


def test_a_message_with_several_causes_names_them_all() -> None:
    """The card's pitfall is about an old flag; the budget alone gives the same message."""
    said = "Packed sequence buffer size (8) must be >= single sequence max length"
    message = f"AssertionError: {said}"
    (found,) = find_pitfalls(message, "", SKILLS, "dynamic-cp")
    assert found.id == "hybrid-alias"
    assert "budget is below" in found.cause
    assert "--max-seqlen-per-dp-cp-rank" in found.remedy


@pytest.mark.parametrize(("other", "by", "step"), [
    (run(*LOSSES, evaluation=5.0), "nothing", 0),
    (run(5.5, 5.4, 5.2, 5.2, 5.1, evaluation=5.0), "loss", 3),
    (run(*LOSSES, norm=math.nan, evaluation=5.0), "norm", 1),
    (run(*LOSSES, evaluation=5.1), "evaluation", 1),
    (run(*LOSSES), "evaluation", 1),
    (run(*LOSSES[:4], evaluation=5.0), "loss", 5),
])  # fmt: skip
def test_a_planted_defect_shows_where_it_parts_first(other: Outcome, by: str, step: int) -> None:
    seen = trials.compare(other, run(*LOSSES, evaluation=5.0))
    assert (seen.by, seen.step) == (by, step)
