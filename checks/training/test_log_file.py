"""The file of a run's records, as it is opened and added to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ringproof.cli.train_log import LogFile
from ringproof.errors import InputError


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
    file = LogFile.named(str(path), "jsonl", append=append)
    assert path.read_text() == before  # a run that is refused loses nobody's log
    file.begin()
    file.add("new")
    assert path.read_text() == after


@pytest.mark.parametrize("append", [True, False])
def test_what_cannot_be_read_can_be_a_log(append: bool) -> None:
    """Such as a named pipe: it has no last line to end."""
    reader, writer = os.pipe()
    try:
        file = LogFile.named(f"/dev/fd/{writer}", "jsonl", append=append)
        file.begin()
        file.add("record")
        assert os.read(reader, 100) == b"record\n"
    finally:
        os.close(reader)
        os.close(writer)


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--log: cannot be written: No space left on device"):
        LogFile.named("/dev/full", "jsonl", append=False).add("record")


FULL = """
import resource, sys
from ringproof.cli.train_log import LogFile
from ringproof.errors import InputError
from ringproof.errors import InputError
resource.setrlimit(resource.RLIMIT_FSIZE, (20, 20))
file = LogFile.named(sys.argv[1], "jsonl", append=True)
file.add("x" * 14)
try:
    file.add("y" * 14)
except InputError as error:
    print(error.problem)
"""


def test_a_line_that_does_not_fit_is_left_out(tmp_path: Path) -> None:
    """The system writes what fits of it, 5 bytes of 15."""
    path = tmp_path / "log"
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(path)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "cannot be written: File too large\n"
    assert path.read_text() == "x" * 14 + "\n"
