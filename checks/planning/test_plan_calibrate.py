"""``ringproof plan calibrate``: what was measured replaces the preset's values."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from checks.planning.batches import seconds
from checks.planning.plan_run import plan, plan_json


def samples(scale: float) -> str:
    from ringproof.reference.planning.hardware import hardware
    from ringproof.reference.planning.shapes import model_shape
    from ringproof.reference.planning.timing import StepCost

    model = StepCost(shape=model_shape("llama3-8b"), machine=hardware("h100"))
    lines = []
    for length in (512, 1024, 2048, 4096, 8192, 16384):
        for size in (1, 2, 4, 8, 16):
            taken = scale * seconds(model, length, size)
            lines.append(json.dumps({"length": length, "cp_size": size, "seconds": taken}))
    return "\n".join(lines)


def test_calibration_replaces_the_presets_values(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    path.write_text(samples(2.0))
    fitted = tmp_path / "calibration.json"
    done = plan("calibrate", str(path), "--json", str(fitted))
    assert done.code == 0
    assert "fitted: attention_share = 0.295" in done.out
    data = json.loads(fitted.read_text())
    assert data["mean_absolute_error"] < 1e-6
    slower = plan_json("--calibration", str(fitted))["metrics"]["makespan"]
    assert slower / plan_json()["metrics"]["makespan"] == pytest.approx(2.0, rel=0.05)


def test_calibrate_refuses_what_is_no_measurement(tmp_path: Path) -> None:
    assert "SAMPLES: is missing" in plan("calibrate").err
    both = plan("calibrate", "x", "--measure", "512")
    assert "--measure are both given" in both.err
    assert "--measure: is not a list of lengths" in plan("calibrate", "--measure", "a").err
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"length": 5}\n')
    assert plan("calibrate", str(bad)).code == 2
    bad.write_bytes(b"\xff\xfe")
    assert "SAMPLES: is not text" in plan("calibrate", str(bad)).err
    assert plan("calibrate", str(tmp_path / "missing")).code == 2
