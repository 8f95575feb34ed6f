"""What is conspicuous in a training's curves, and that ordinary noise is not."""

from __future__ import annotations

import io
import json
import math
import random
from array import array
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from checks.logs.parity_run import Training, iteration_line, write_csv, write_jsonl, write_megatron
from ringproof.cli.logs import app
from ringproof.logs.diagnosis.cause import diagnose
from ringproof.logs.training import curves
from ringproof.logs.training.curves import STALL_STEPS, CurveFinding, curve_line
from ringproof.logs.training.series import Series

NAN, INF = math.nan, math.inf
Curves = tuple[dict[int, float], dict[int, float]]


def training(seed: int, *, noise: float = 0.03, steps: int = 400) -> Curves:
    """Loss and gradient norm as of a language model: they fall, with correlated noise."""
    chance, walk = random.Random(seed), 0.0
    loss, norm = {}, {}
    for step in range(1, steps + 1):
        walk = 0.9 * walk + 0.43 * chance.gauss(0, 1)
        loss[step] = (1.8 + 8 * math.exp(-step / 60)) * math.exp(
            noise * (chance.gauss(0, 1) + walk)
        )
        norm[step] = (0.3 + 3 * math.exp(-step / 40)) * math.exp(0.5 * chance.gauss(0, 1))
    return loss, norm


def judge_curves(*both: dict[int, float]) -> tuple[CurveFinding, ...]:
    """The judgement of values by step."""
    loss, norm = (
        Series("", "", array("q", sorted(one)), array("d", [one[step] for step in sorted(one)]))
        for one in both
    )
    return curves.judge_curves(loss, norm)


def kinds(found: tuple[CurveFinding, ...]) -> list[tuple[str, int]]:
    return [(one.kind, one.step) for one in found]


FAULTS: dict[str, tuple[int, dict[int, float] | None, dict[int, float] | None]] = {
    # kind: step, and what the loss and the gradient norm are from there on
    "loss-not-finite": (300, dict.fromkeys(range(300, 401), NAN), None),
    "loss-missing": (250, None, {250: 0.5}),
    "loss-spike": (300, {300: 6.0, 301: 5.0}, None),
    "loss-stall": (330, dict.fromkeys(range(330, 401), 1.75), None),
    "grad-norm-not-finite": (300, None, {300: INF}),
    "grad-norm-explosion": (300, None, {300: 90.0}),
}


@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("seed", range(10))
def test_each_judgement_finds_its_fault_and_nothing_else(kind: str, seed: int) -> None:
    step, losses, norms = FAULTS[kind]
    loss, norm = training(seed)
    loss |= losses or {}
    norm |= norms or {}
    if kind == "loss-missing":
        del loss[step]
    (found,) = judge_curves(loss, norm)
    assert (found.kind, found.step) == (kind, step)
    assert curve_line(found).startswith(f"{kind} at step {step}")
    assert ("more, the last is" in curve_line(found)) == (found.steps > 1)
    assert found.past == (losses is None or max(losses) < 390)


@pytest.mark.parametrize("noise", [0.003, 0.03, 0.1])
def test_ordinary_noise_is_no_finding(noise: float) -> None:
    """100 curves of 1,000 steps at each of three levels of noise; none is conspicuous."""
    alarms = [judge_curves(*training(seed, noise=noise, steps=1000)) for seed in range(100)]
    assert [found for found in alarms if found] == []


@pytest.mark.parametrize(("rate", "expected"), [(0.05, []), (0.5, [("loss-spike", 21)])])
@pytest.mark.parametrize("seed", range(3))
def test_a_training_that_diverges_is_a_spike_and_a_sound_one_is_none(
    rate: float, seed: int, expected: list[tuple[str, int]]
) -> None:
    steps, losses, norms = zip(*Training(rate=rate, seed=seed).run(), strict=True)
    loss, norm = (dict(zip(steps, one, strict=True)) for one in (losses, norms))
    assert kinds(judge_curves(loss, norm)) == expected


def test_the_norm_says_nothing_new_beside_a_spike() -> None:
    loss, norm = training(0)
    loss[300], norm[300] = 9.0, 90.0
    loss[350], norm[350] = NAN, INF
    assert kinds(judge_curves(loss, norm)) == [("loss-not-finite", 350), ("loss-spike", 300)]


def test_what_is_not_judged() -> None:
    assert judge_curves({}, {}) == ()
    first = {step: 100.0 if step == 15 else 1.0 for step in range(1, 20)}
    assert judge_curves(first, first) == ()  # too few steps before it
    zeros = dict.fromkeys(range(1, 60), 0.0)
    assert judge_curves({}, zeros | {60: 0.004}) == ()  # printed with three decimals
    every, other = ({step: 1.0 + step / 100 for step in range(at, 99, 2)} for at in (0, 1))
    assert judge_curves(every, other) == ()  # logged at different steps
    assert judge_curves({}, every) == ()
    never = dict.fromkeys(range(1, 60), INF)
    assert "grad-norm-undivided" not in str(judge_curves(every, never))


def test_a_stall_has_its_least_length() -> None:
    for length, found in ((STALL_STEPS - 1, []), (STALL_STEPS, [("loss-stall", 31)])):
        loss = {step: 3.0 - step / 100 for step in range(1, 31)}
        loss |= dict.fromkeys(range(31, 31 + length), 2.5)
        assert kinds(judge_curves(loss, {})) == found


# --- in logs ---


def rows(**faults: float) -> list[tuple[int, float, float]]:
    loss, norm = training(5)
    loss |= {int(name[1:]): value for name, value in faults.items() if name[0] == "l"}
    norm |= {int(name[1:]): value for name, value in faults.items() if name[0] == "n"}
    return [(step, loss[step], norm[step]) for step in loss]


def logs(*arguments: object) -> Any:
    return CliRunner().invoke(app, list(map(str, arguments)))


@pytest.mark.parametrize("write", [write_jsonl, write_megatron])
def test_diagnose_judges_the_curve_of_a_log(tmp_path: Path, write: Any) -> None:
    sound = logs("diagnose", write(tmp_path / "a", rows()), "--json", "-")
    assert (sound.exit_code, json.loads(sound.stdout)["curves"]) == (0, [])
    past = logs("diagnose", write(tmp_path / "b", rows(l200=7.0)))
    assert past.exit_code == 0
    assert "curve, training went on: loss-spike at step 200" in past.stdout
    live = logs("diagnose", write(tmp_path / "c", rows(n395=70.0)))
    assert live.exit_code == 1
    assert live.stdout.startswith("diagnosis: no error, but the gradient norm is 70")
    assert "curve: grad-norm-explosion at step 395" in live.stdout


def test_a_curve_is_read_among_other_lines() -> None:
    prefix, noise = "\x1b[32m[rank7]:\x1b[0m ", "x" * 999 + "\n"
    lines = [f"{noise}{prefix}{iteration_line(*row)}" for row in rows(l390=7.0) * 5]
    found = diagnose(["-"], stdin=io.BytesIO("\n".join(lines).encode()))  # several blocks
    assert kinds(found.curves) == [("loss-spike", 390)]


def test_a_loss_that_megatron_leaves_out_of_every_line(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text("".join(iteration_line(step, None, 0.5) + "\n" for step in range(1, 9)))
    assert kinds(diagnose([str(path)]).curves) == [("loss-not-finite", 1)]
    path.write_text(iteration_line(1, None, 0.5, skipped=1) + "\n")  # a skipped step has no loss
    assert diagnose([str(path)]).curves == ()


def test_logs_of_several_ranks_show_one_curve(tmp_path: Path) -> None:
    paths = [str(write_megatron(tmp_path / name, rows(l390=7.0))) for name in "ab"]
    assert len(diagnose(paths).curves) == 1


@pytest.mark.parametrize("write", [write_jsonl, write_megatron, write_csv])
def test_parity_says_what_is_conspicuous_in_either_log(tmp_path: Path, write: Any) -> None:
    a, b = write(tmp_path / "a", rows()), write(tmp_path / "b", rows(l200=7.0))
    result = logs("parity", a, b, "--json", "-")
    told = json.loads(result.stdout)["curves"]
    assert told["A"] == []
    assert [(one["kind"], one["step"], one["past"]) for one in told["B"]] == [
        ("loss-spike", 200, True)
    ]
    assert "curve: B: loss-spike at step 200: the loss is 7" in logs("parity", a, b).stdout
    both = logs("parity", b, b)
    assert both.exit_code == 0  # a spike in both is no difference
    assert "curve: A: loss-spike" in both.stdout
    page = logs("parity", a, b, "--html", "-").stdout
    assert "Curve: B: loss-spike" in page
