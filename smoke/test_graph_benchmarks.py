"""The programs behind the records about graphs, in a few steps: they find equal, and broken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch

from benchmarks.gpu.record import main as record_of
from benchmarks.gpu.record import record
from benchmarks.graphs import cuda, parity
from docs.making.graph_bank import PICTURE, bank_that_ran
from ringproof.cluster import Cluster
from ringproof.reference.graphs import bank

slow = pytest.mark.slow
GPU = Path(__file__).parents[1] / "benchmarks" / "gpu"
RECORD = Path(parity.__file__).parent / "results" / "parity.json"


@slow
def test_a_row_is_measured_as_recorded(cluster: Cluster) -> None:
    row = parity.measure(cluster, parity.CONTROL, 2)
    assert parity.holds(row)
    assert row["sizes"] == [1, 2, 4]
    assert set(row["replays"]) == {"1", "2", "4"}
    assert row["graphs"]["entries"] == 4 * row["graphs"]["entries_of_rank"]
    # Without capacity packs have fewer rows; that may round otherwise, depending on the processor.
    assert 0 <= row["off_difference"] < 1e-12
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))
    assert [list(one) for one in recorded["rows"]] == [list(row)] * len(recorded["rows"])


@slow
def test_boundaries_of_the_microbatch_before_are_seen(cluster: Cluster) -> None:
    (control,) = parity.measure_controls(cluster, ["one-behind"], 3)
    assert control["seen"]
    assert control["first_step"] == 2
    assert control["difference"] > 1e-3


@slow
def test_the_picture_of_the_bank_is_up_to_date() -> None:
    """If not: ``python -m docs.making.graph_bank``."""
    assert PICTURE.read_text(encoding="utf-8") == str(bank_that_ran())


@slow
def test_the_layer_benchmark_runs_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    """It says that it measured nothing, and records nothing."""
    before = cuda.RECORD.read_bytes() if cuda.RECORD.exists() else None
    assert cuda.main(["--device", "cpu"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("On a CPU, on the tape")
    assert "same bits: yes" in shown
    assert before == (cuda.RECORD.read_bytes() if cuda.RECORD.exists() else None)


def test_the_layer_benchmark_sees_a_wrong_replay() -> None:
    """Negative control: a slot that was never filled."""
    with mock.patch.object(bank, "load", lambda static, batch: None):
        found = cuda.measure(cuda.TINY[0], "tape", torch.device("cpu"), 2)
    assert found["same bits"] is False


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_the_layer_benchmark_needs_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert cuda.main([]) == 2
    assert "there is no GPU here" in capsys.readouterr().err


def run_on_gpu(*parts: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """``benchmarks/gpu/run.sh`` with this Python."""
    return subprocess.run(
        ["bash", str(GPU / "run.sh"), *parts],
        env={**os.environ, "PYTHON": sys.executable, **variables},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.mark.slow
def test_what_the_gpu_script_cannot_run_is_one_line(tmp_path: Path) -> None:
    unknown = run_on_gpu("everything", OUT=str(tmp_path))
    assert (unknown.returncode, unknown.stderr.count("\n")) == (2, 1)
    assert unknown.stderr.startswith("error: everything: is no part; use any of: machine captures")
    blind = run_on_gpu("machine", OUT=str(tmp_path), CUDA_VISIBLE_DEVICES="")
    assert (blind.returncode, blind.stderr.count("\n")) == (2, 1)
    assert "sees no GPU" in blind.stderr
    assert not [*tmp_path.iterdir()]


def test_a_record_of_nothing_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert record_of([str(tmp_path), "--json", str(tmp_path / "made.json")]) == 2
    assert capsys.readouterr().err == f"error: folder: {tmp_path} has no output of run.sh\n"
    assert not [*tmp_path.iterdir()]


@slow
def test_the_gpu_script_runs_without_a_gpu_and_is_recorded(tmp_path: Path) -> None:
    done = run_on_gpu("machine", "training", OUT=str(tmp_path), DEVICE="cpu", STEPS="2")
    assert done.returncode == 0, done.stdout[-2000:]
    found = record(tmp_path)["training"]
    assert [(one["preset"], one["steps"]) for one in found] == [
        ("moonlight-tiny", 2),
        ("qwen3-tiny", 2),
    ]
    assert all(one["same bits"] and one["replays"] == {"1": 8, "2": 8, "4": 8} for one in found)
    bank = tmp_path / "qwen3-tiny-bank.jsonl"
    bank.write_text(bank.read_text().replace('"loss": 5.', '"loss": 6.', 1))
    assert [one["same bits"] for one in record(tmp_path)["training"]] == [True, False]
