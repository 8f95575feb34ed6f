"""How ``ringproof train`` ends in one line: what a rank refuses, and checkpoints that are there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ringproof.cli import train as command
from ringproof.harness.cluster import Cluster, RankRefusal
from smoke import training_command
from smoke.training_command import Command


@pytest.fixture
def train(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, cluster: Cluster
) -> Command:
    return Command(capsys, monkeypatch, cluster)


@pytest.fixture
def on_rank(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Have the ranks run something else."""
    return lambda case: monkeypatch.setattr(command, "on_rank", case)


def test_what_one_rank_refuses_alone_is_one_line(
    train: Command, on_rank: Callable[[Any], None], cluster: Cluster
) -> None:
    """The others wait for it and are stopped. Whoever runs cases still learns which rank it was."""
    on_rank(training_command.rank_one_refuses)
    said = "b.txt: cannot be read, says rank 1 (got 3); leave it out"
    assert train.refusal("--cp", "3") == said
    with pytest.raises(RankRefusal, match=r"rank 1 failed first: InputError: b\.txt.*was stopped"):
        cluster.run(training_command.rank_one_refuses, world_size=3)


@pytest.mark.slow
def test_what_nobody_expects_keeps_its_traceback(
    train: Command, on_rank: Callable[[Any], None]
) -> None:
    """Negative control."""
    on_rank(training_command.rank_one_breaks)
    code, _, errors = train("--cp", "3")
    assert code == 1
    assert errors.startswith("error: rank 1 failed first: KeyError")
    assert "Traceback" in errors


@pytest.mark.slow
def test_a_folder_with_checkpoints_is_not_begun_in(train: Command, tmp_path: Path) -> None:
    """Nor is what is there touched. A resumption that has nothing to do says so, and one with more
    steps than the learning rate was made for says why not.
    """
    kept = tmp_path / "kept"
    save = ("--save", str(kept))
    code, output, errors = train(*save)
    assert (code, errors) == (0, "")
    assert "already" not in output
    before = sorted(kept.rglob("*"))
    assert f"--save: has checkpoints of a run (got {kept}); go on with --resume" in (
        train.refusal(*save)
    )
    code, output, errors = train(*save, "--resume")
    assert (code, output) == (0, "already at step 1 of 1: nothing to do\n"), errors
    assert train.refusal(*save, "--resume", "--steps", "2") == (
        "--steps: the checkpoint in kept was saved with 1, and the learning rate of the steps done "
        "depends on it (got 2); resume with the same, or begin anew in another folder"
    )
    assert sorted(kept.rglob("*")) == before


def test_without_a_checkpoint_there_is_nothing_to_resume(train: Command, tmp_path: Path) -> None:
    said = train.refusal("--save", str(tmp_path), "--resume")
    assert said.startswith("--resume: there is no finished checkpoint (got ")
