"""What a run says of itself."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from ringproof.cli.train_log import LogFile
from ringproof.errors import InputError
from ringproof.reference.planning.samples import Step, parse_samples
from ringproof.reference.training.records import (
    EvaluationRecord,
    RunRecord,
    StepRecord,
    json_line,
)

NOW = datetime(2026, 11, 21, 6, 5, 4)
STEP = StepRecord(
    step=7,
    loss=1 / 3,
    losses={"lm": 0.3, "mtp": 1 / 3 - 0.3},
    grad_norm=math.pi,
    learning_rate=1e-3,
    samples=56,
    tokens=900,
    rows=1000,
    step_seconds=0.5,
    planning_seconds=0.01,
    microbatches=(((4, (200, 300)),), ((1, (50,)), (1, (350,)))),
    cp_histogram={4: 2, 1: 6},
)


def test_a_line_is_read_back_bit_by_bit() -> None:
    found = json.loads(json_line(STEP))
    assert found["kind"] == "step"
    assert (found["loss"], found["grad_norm"]) == (STEP.loss, STEP.grad_norm)
    assert found["cp_histogram"] == {"1": 6, "4": 2}
    assert found["tokens_per_second"] == 1800
    assert found["microbatches"] == [
        [{"cp_size": 4, "lengths": [200, 300]}],
        [{"cp_size": 1, "lengths": [50]}, {"cp_size": 1, "lengths": [350]}],
    ]
    assert found["padding_fraction"] == pytest.approx(0.1)
    assert "\n" not in json_line(STEP)


def test_the_planner_can_be_calibrated_from_it() -> None:
    (sample,) = parse_samples(json_line(STEP))
    assert isinstance(sample, Step)
    assert sample.microbatches == STEP.microbatches
    assert sample.seconds == pytest.approx(STEP.step_seconds - STEP.planning_seconds)


def test_a_loss_that_is_no_number_is_said_and_not_hidden() -> None:
    assert math.isnan(json.loads(json_line(replace(STEP, loss=math.nan)))["loss"])


def test_the_line_to_watch_says_what_runs() -> None:
    line = STEP.progress_line(300)
    for part in (
        "step   7/300",
        "0.333333",
        "3.1416",
        "1,800 tokens/s",
        "10%",
        "microbatches 2",
        "CP 1:6 4:2",
    ):
        assert part in line


def test_megatrons_line_has_its_fields_and_its_precision() -> None:
    line = STEP.megatron_line(300, NOW)
    assert line.startswith(" [2026-11-21 06:05:04.000000] iteration        7/     300 | ")
    for part in (
        "consumed samples:           56 |",
        "elapsed time per iteration (ms): 500.0 |",
        "learning rate: 1.000000E-03 |",
        "global batch size:     8 |",
        "lm loss: 3.000000E-01 |",
        "mtp_1 loss: 3.333333E-02 |",
        "grad norm: 3.142 |",
        "number of nan iterations:   0 |",
    ):
        assert part in line


def test_other_records_have_lines_of_their_own() -> None:
    run = RunRecord(arguments={"seed": 1}, world_size=4, environment={"torch": "2.6"})
    assert json.loads(json_line(run))["kind"] == "run"
    evaluation = EvaluationRecord(step=5, loss=2.5, losses={"lm": 2.5})
    assert json.loads(json_line(evaluation)) == {
        "kind": "evaluation",
        "step": 5,
        "loss": 2.5,
        "losses": {"lm": 2.5},
    }
    assert "validation loss at iteration 5 | lm loss value: 2.500000E+00" in (
        evaluation.megatron_line(300, NOW)
    )


def test_a_log_without_a_file_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    LogFile.named("", "jsonl", append=False).add("nothing")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InputError, match="unknown"):
        LogFile.named("", "yaml", append=False)
