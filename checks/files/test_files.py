"""A file is the old one or the new one; a place that cannot be written is one line."""

from __future__ import annotations

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
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("old", 0o644)
    assert [entry.name for entry in tmp_path.iterdir()] == ["b.json"]


def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_atomically(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_a_device_is_not_replaced() -> None:
    write_atomically(Path("/dev/null"), "gone")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


@pytest.mark.parametrize("name", ["missing/a.json", ".", "circle"])
def test_a_place_that_cannot_be_written_names_the_option(tmp_path: Path, name: str) -> None:
    (tmp_path / "circle").symlink_to(tmp_path / "back")
    (tmp_path / "back").symlink_to(tmp_path / "circle")
    with pytest.raises(InputError, match=r"--json: .* cannot be written"):
        write_atomically(tmp_path / name, "x", field="--json")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back", "circle"]


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"12345")
    assert read_bounded(path, 5) == b"12345"
    with pytest.raises(OSError, match="larger than 4 bytes"):
        read_bounded(path, 4)
    with pytest.raises(InputError, match=r"--card: .* \(larger than 4 bytes\); cut it"):
        read_input(path, 4, field="--card", remedy="cut it")
    with pytest.raises(InputError, match=r"missing: .* \(No such file.*; name one"):
        read_input(tmp_path / "missing", 4, remedy="name one")
