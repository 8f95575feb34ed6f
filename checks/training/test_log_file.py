"""The file of a run's records, as it is opened and added to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ringproof.cli.train_log import LogFile


@pytest.mark.parametrize(
    ("before", "append", "after"),
    [
        ("", True, "new\n"),
        ("old\n", True, "old\nnew\n"),
        ("old\nhal", True, "old\nhal\nnew\n"),  # killed while it wrote
        ("old\nhal", False, "new\n"),
    ],
)
def test_a_record_is_a_line_of_its_own(
    tmp_path: Path, before: str, append: bool, after: str
) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(before)
    file = LogFile.opened(str(path), "jsonl", append=append, first=True)
    assert path.read_text() == before  # a run that is refused loses nobody's log
    file.begin()
    file.add("new")
    assert path.read_text() == after


def test_only_the_first_rank_touches_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    LogFile.opened(str(path), "jsonl", append=False, first=False)
    assert not path.exists()


@pytest.mark.parametrize("append", [True, False])
def test_what_cannot_be_read_can_be_a_log(append: bool) -> None:
    """Such as a named pipe: it has no last line to end."""
    reader, writer = os.pipe()
    try:
        file = LogFile.opened(f"/dev/fd/{writer}", "jsonl", append=append, first=True)
        file.begin()
        file.add("record")
        assert os.read(reader, 100) == b"record\n"
    finally:
        os.close(reader)
        os.close(writer)
