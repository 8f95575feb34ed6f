"""Damaged files of every kind are read or refused; see `checks.cli.fuzz_files`."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from checks.cli import fuzz_files
from ringproof.cli import main as command


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_damaged_files_are_read_or_refused() -> None:
    counts = Counter[str]()
    assert list(fuzz_files.fuzz(60, seed=34, counts=counts)) == []
    assert counts.keys() == fuzz_files.kinds().keys()


def test_a_file_that_makes_a_command_fail_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def reads(**_: object) -> None:
        assert not Path("x.yaml").exists()

    monkeypatch.setattr(command, "app", reads)
    (problem,) = fuzz_files.fuzz(1, seed=0, only="yaml")
    assert problem.startswith("yaml ['doctor', 'x.yaml']: exit code 3")


def test_changes_change_files_and_repeat_with_their_seed() -> None:
    known = fuzz_files.kinds()
    for kind in known.values():
        drawn = [fuzz_files.changed(random.Random(seed), kind) for seed in range(20)]
        assert len({*drawn}) > 15 and max(map(len, drawn)) <= fuzz_files.MOST_BYTES
        assert drawn[3] == fuzz_files.changed(random.Random(3), kind)
