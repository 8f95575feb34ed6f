"""Damaged files of every kind are read or refused; see `checks.cli.fuzz_files`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from checks.cli import fuzz_files
from ringproof.cli import main as command

SAMPLE = b"""---
name: hierarchical-context-parallel
description: Use it when a launch is read.
---
# A sample

```bash
export N=2
OPTIONS="--context-parallel-size $((N * 2)) --num-layers 2 ${MORE:-}"
torchrun --nproc_per_node 8 pretrain_gpt.py $OPTIONS --seq-length 4096
```
[rank0]: Traceback (most recent call last):
[rank0]: ValueError: a message
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_damaged_files_are_read_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """One file for all kinds: with those of the repository each commit would draw others."""
    monkeypatch.setattr(fuzz_files, "_read", lambda *_: (SAMPLE,))
    for kind in fuzz_files.kinds():
        assert list(fuzz_files.fuzz(8, seed=34, only=kind)) == [], kind


@pytest.mark.slow
def test_a_checkpoint_that_makes_its_reader_fail_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file is read by what ranks run, and not by the command."""

    def newest(folder: Path) -> None:
        assert not folder.is_dir()

    monkeypatch.setattr("ringproof.reference.training.checkpoint._newest", newest)
    (problem,) = fuzz_files.fuzz(1, seed=0, only="checkpoint run")
    assert problem.startswith("checkpoint run ['train', '--resume', 'saved']: exit code 3")


def test_a_file_that_makes_a_command_fail_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def reads(**_: object) -> None:
        assert not Path("x.yaml").exists()

    monkeypatch.setattr(command, "app", reads)
    (problem,) = fuzz_files.fuzz(1, seed=0, only="yaml")
    assert problem.startswith("yaml ['doctor', '--quick', 'x.yaml']: exit code 3")


@pytest.mark.slow
def test_changes_change_files_and_repeat_with_their_seed() -> None:
    known = fuzz_files.kinds()
    assert {*known} > {*fuzz_files.CHECKPOINTS, "yaml"}
    for kind in known.values():
        drawn = [fuzz_files.changed(random.Random(seed), kind) for seed in range(20)]
        assert len({*drawn}) > 15 and max(map(len, drawn)) <= fuzz_files.MOST_BYTES
        assert drawn[3] == fuzz_files.changed(random.Random(3), kind)
