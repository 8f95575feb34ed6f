"""``ringproof train --graphs bank``: what it says of its graphs, and what its ranks refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ringproof.harness.cluster import Cluster
from smoke.training_command import Command

BANK = ("--graphs", "bank", "--graph-warmup", "1")


@pytest.fixture
def train(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, cluster: Cluster
) -> Command:
    return Command(capsys, monkeypatch, cluster)


ON_RANKS = [
    pytest.param(
        ("--cp", "2", "--graph-rows", "16"),
        "--graph-rows: the longest sequence has 32 rows on each of 2 CP ranks (got 16); raise it",
        marks=pytest.mark.slow,
    ),
    pytest.param(
        ("--cp", "2", "--graph-sequences", "1"),
        "--graph-sequences: a pack of CP size 1 has 4 entries, a dummy included (got 1); raise it",
        marks=pytest.mark.slow,
    ),
    pytest.param(
        ("--pp", "2", "--graph-slots", "1"),
        "--graph-slots: a plan of 3 microbatches has 2 in flight (got 1); raise it, or use --gr",
        marks=pytest.mark.slow,
    ),
    pytest.param(
        ("--backend", "gloo", "--graph-backend", "cuda"),
        "--graph-backend: ",
        id="no GPU, or none that the model is on",
    ),
]
"""Options, and the beginning of what is said; what is refused before: checks/training."""


@pytest.mark.parametrize(("options", "said"), ON_RANKS)
def test_what_only_ranks_can_find_is_refused_by_all(
    train: Command, options: tuple[str, ...], said: str
) -> None:
    assert train.refusal(*BANK, *options).startswith(said)


def test_a_run_says_what_it_captured_and_replayed(train: Command, tmp_path: Path) -> None:
    """The options of the refusals above, where they fit. Padded sequences fit, too."""
    log = tmp_path / "run.jsonl"
    fitting = ("--cp", "2", "--graph-rows", "64", "--graph-sequences", "9", "--force-cp", "2,1")
    code, output, errors = train(*BANK, *fitting, "--log", str(log), "--json", f"{log}.json")
    assert code == 0, errors
    first, step, last = output.splitlines()
    assert first.startswith("graphs: tape, layer  CP 1 2  1 slot  8 entries a rank, 16 in all")
    assert "step 1/1" in step
    assert last == "graphs replayed: CP 1:2 2:2  eager 0"
    records = [json.loads(line) for line in log.read_text().splitlines()]
    assert [record["kind"] for record in records] == ["run", "graphs", "step", "graph_totals"]
    result = json.loads(Path(f"{log}.json").read_text())
    assert (result["graphs"], result["graph_totals"]) == (records[1], records[3])
    assert result["graph_totals"]["replays"] == records[2]["graph_replays"]
    assert train(*BANK, "--schedule", "padded")[0] == 0


@pytest.mark.slow
def test_a_size_that_never_came_up_is_named(train: Command) -> None:
    """Sequences of 32 fit one rank, so no step needs two; with longer ones steps do."""
    short = ("--cp", "2", "--data", "synthetic:mean=8", "--max-length", "16")
    _, output, _ = train(*BANK, *short)
    assert "CP size 2 was never replayed" in output.splitlines()[-1]
    _, output, _ = train(*BANK, "--cp", "2", "--force-cp", "2,1")
    assert "never" not in output


def test_a_megatron_log_has_its_steps_only(train: Command, tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    assert train(*BANK, "--log", str(log), "--log-format", "megatron")[0] == 0
    assert log.read_text().count("\n") == log.read_text().count("iteration  ") == 1


def test_without_graphs_nothing_is_said_of_them(train: Command) -> None:
    code, output, _ = train()
    assert code == 0
    assert output.startswith("step 1/1")
    assert "graph" not in output
