"""A file is the old one or the new one; a place that cannot be written is one line."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from ringproof.errors import InputError
from ringproof.files import read_bounded, read_input, write_atomically


def test_writing_is_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    write_atomically(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "new \ud800")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["b.json"]


def test_others_may_read_what_was_written(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a", "x")
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o644


def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_atomically(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_atomically(pipe, "through")
    assert os.read(reader, 100) == b"through"
    os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_links_in_a_circle_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(InputError, match="--json: cannot be written"):
        write_atomically(tmp_path / "a", "x", field="--json")


@pytest.mark.parametrize("name", ["missing/a.json", "."])
def test_a_place_that_cannot_be_written_names_the_option(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="--json: cannot be written"):
        write_atomically(tmp_path / name, "x", field="--json")
    assert list(tmp_path.iterdir()) == []


def test_a_refusal_cannot_steer_a_terminal() -> None:
    error = InputError("card.yaml: \u202ekey\x1b[31m", "v\u200b", "no\nline", "re\x07medy")
    assert str(error) == "card.yaml: ?key?[31m: no?line (got v?); re?medy"


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"12345")
    assert read_bounded(path, 5) == b"12345"
    with pytest.raises(OSError, match="larger than 4 bytes"):
        read_bounded(path, 4)
    with pytest.raises(InputError, match=r"--card: cannot be read: larger than 4 bytes .*; cut it"):
        read_input(path, 4, field="--card", remedy="cut it")
    with pytest.raises(InputError, match=r"missing: cannot be read: No such file.*; name one"):
        read_input(tmp_path / "missing", 4, remedy="name one")
