"""The programs behind the records about graphs, in a few steps: they find equal, and broken."""

from __future__ import annotations

import json
from pathlib import Path
from unittest import mock

import pytest
import torch

from benchmarks.graphs import cuda, parity
from docs.making.graph_bank import PICTURE, bank_that_ran
from ringproof.cluster import Cluster
from ringproof.reference.graphs import bank

slow = pytest.mark.slow
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
