"""``ringproof plan calibrate``, and calibration from the steps of a trainer's log."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checks.planning.batches import REAL, predicted, seconds
from checks.planning.plan_run import plan as command
from checks.planning.plan_run import plan_json
from ringproof.errors import InputError
from ringproof.reference.planning import Domain, Plan, make_plan
from ringproof.reference.planning.calibrate import fit
from ringproof.reference.planning.hardware import H100
from ringproof.reference.planning.samples import (
    PlannedStep,
    Sample,
    measurement_json,
    parse_samples,
)
from ringproof.reference.planning.shapes import LLAMA3_8B
from ringproof.reference.planning.simulate import timeline
from ringproof.reference.planning.timing import StepCost

TRUE = replace(H100, attention_share=0.4, linear_share=0.45, inter_bytes_per_second=20e9)
MODEL = StepCost(shape=LLAMA3_8B, machine=TRUE)
REST = 0.25
DOMAIN = Domain(ranks=16, max_tokens_per_rank=8192, cp_sizes=(1, 2, 4, 8, 16))


def planned(seed: int) -> Plan:
    rng = np.random.default_rng(seed)
    lengths = rng.lognormal(8, 1.3, 24 + 8 * seed).clip(64, 100_000).astype(np.int64)
    return make_plan(lengths, DOMAIN, MODEL)


def record(seed: int, noise: float = 0.0) -> dict[str, Any]:
    """A step as a trainer logs it; its time is the timeline's, not that of what is fitted."""
    plan = planned(seed)
    seconds = timeline(plan, MODEL).ends[-1] + REST
    noisy = seconds * float(np.exp(np.random.default_rng(seed).normal(0, noise)))
    times = {"step_seconds": noisy + 0.007, "planning_seconds": 0.007}
    return {"kind": "step", "step": seed, **times, "plan": plan.as_json()}


def log(count: int = 16, noise: float = 0.0) -> str:
    records = [{"kind": "run", "version": 1}, *(record(seed, noise) for seed in range(count))]
    return "\n".join(map(json.dumps, [*records, {"kind": "evaluation", "loss": 2.0}]))


def test_what_a_step_takes_is_what_the_timeline_says() -> None:
    for item in parse_samples(log(4)):
        assert isinstance(item, PlannedStep)
        assert predicted(item, MODEL, REST) == pytest.approx(item.seconds, rel=1e-9)


def test_steps_tell_the_machine_and_what_no_plan_changes() -> None:
    found = fit(parse_samples(log()), REAL)
    machine = found.apply(H100)
    assert found.mean_absolute_error < 1e-3
    assert found.rest_seconds == pytest.approx(REST, rel=0.1)
    assert machine.attention_share == pytest.approx(0.4, rel=0.02)
    assert machine.linear_share == pytest.approx(0.45, rel=0.02)


def test_steps_with_noise_are_survived() -> None:
    found = fit(parse_samples(log(24, noise=0.02)), REAL)
    assert found.apply(H100).linear_share == pytest.approx(0.45, rel=0.1)
    assert 0.005 < found.mean_absolute_error < 0.04


def test_another_plan_would_be_noticed() -> None:
    """A log whose plans are not those of its steps makes no sense, and is not fitted."""
    records = [record(seed) for seed in range(16)]
    for one, other in zip(records[::2], records[1::2], strict=True):
        one["plan"], other["plan"] = other["plan"], one["plan"]
    mixed = parse_samples("\n".join(map(json.dumps, records)))
    with pytest.raises(InputError, match="times do not grow with the square of the length"):
        fit(mixed, REAL)


def test_a_log_is_read_as_it_is_written() -> None:
    steps = parse_samples(log(3))
    assert len(steps) == 3, "the run and the evaluation are no steps"
    assert parse_samples(log(3), skip=2) == steps[2:]
    assert parse_samples("\n".join(json.dumps(measurement_json(item)) for item in steps)) == steps
    sample = Sample(512, 2, 0.5)
    assert parse_samples(json.dumps(measurement_json(sample)), skip=9) == (sample,)
    first = steps[0]
    assert isinstance(first, PlannedStep)
    held = [length for groups in first.microbatches for _, held in groups for length in held]
    assert sorted(held) == sorted(planned(0).lengths)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"plan": None}, "does not say which lengths ran on which CP size"),
        ({"plan": {"version": 2}}, "log:1: plan.version: is not 1"),
        (
            {"plan": None, "microbatches": [[{"cp_size": 2}]]},
            r"log:1: microbatches\[0\]\[0\].lengths: is missing",
        ),
        ({"plan": None, "microbatches": [3]}, r"log:1: microbatches\[0\]: is not a valid list"),
        (
            {"plan": None, "microbatches": [[{"cp_size": 2, "lengths": [1.5]}]]},
            r"log:1: microbatches\[0\]\[0\].lengths\[0\]: is not a valid integer",
        ),
        ({"step_seconds": "1"}, "log:1: step_seconds: is not a valid number"),
        ({"planning_seconds": 10**400}, "log:1: planning_seconds: is not a valid number"),
    ],
)
def test_a_step_that_cannot_be_used_is_named(changed: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        parse_samples(json.dumps({**record(0), **changed}), "log")


def test_the_command_reads_a_log(tmp_path: Path) -> None:
    path, fitted = tmp_path / "run.jsonl", tmp_path / "calibration.json"
    path.write_text(log())
    done = command("calibrate", str(path), "--skip", "1", "--json", str(fitted))
    assert done.code == 0, done.err
    assert done.out.count("\n        step") == 15
    assert "ms of each step that no plan changes" in done.out
    assert "standard error" in done.out
    basic = ("--lengths", "512,9000,700", "--ranks", "8", "--max-tokens-per-rank", "4096")
    assert command(*basic, "--calibration", str(fitted)).code == 0
    other = command(*basic, "--calibration", str(fitted), "--hardware", "a100")
    assert "--calibration: was fitted to a peak of" in other.err
    path.write_text('{"loss": 2.0}\n')
    assert "has no measurements" in command("calibrate", str(path)).err
    path.write_text(json.dumps({"step_seconds": 1.0, "tokens": 512}))
    assert "run.jsonl:1: the step does not say" in command("calibrate", str(path)).err
    assert "--skip: is below 0" in command("calibrate", str(path), "--skip", "-1").err


def samples(scale: float) -> str:
    lines = []
    for length in (512, 1024, 2048, 4096, 8192, 16384):
        for size in (1, 2, 4, 8, 16):
            taken = scale * seconds(REAL, length, size)
            lines.append(json.dumps({"length": length, "cp_size": size, "seconds": taken}))
    return "\n".join(lines)


def test_calibration_replaces_the_presets_values(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    path.write_text(samples(2.0))
    fitted = tmp_path / "calibration.json"
    done = command("calibrate", str(path), "--json", str(fitted))
    assert done.code == 0
    assert "fitted: attention_share = 0.295" in done.out
    data = json.loads(fitted.read_text())
    assert data["mean_absolute_error"] < 1e-6
    slower = plan_json("--calibration", str(fitted))["metrics"]["makespan"]
    assert slower / plan_json()["metrics"]["makespan"] == pytest.approx(2.0, rel=0.05)


def test_calibrate_refuses_what_is_no_measurement(tmp_path: Path) -> None:
    assert "SAMPLES: is missing" in command("calibrate").err
    both = command("calibrate", "x", "--measure", "512")
    assert "--measure are both given" in both.err
    assert "--measure: is not a list of lengths" in command("calibrate", "--measure", "a").err
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"length": 5}\n')
    assert command("calibrate", str(bad)).code == 2
    bad.write_bytes(b"\xff\xfe")
    assert "SAMPLES: is not text" in command("calibrate", str(bad)).err
    assert command("calibrate", str(tmp_path / "missing")).code == 2
