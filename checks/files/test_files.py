"""A file is the old one or the new one; a place that cannot be written is one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringproof.errors import InputError
from ringproof.files import write_atomically


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


@pytest.mark.parametrize("name", ["missing/a.json", "."])
def test_a_place_that_cannot_be_written_names_the_option(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="--json: cannot be written"):
        write_atomically(tmp_path / name, "x", field="--json")
    assert list(tmp_path.iterdir()) == []


def test_a_refusal_cannot_steer_a_terminal() -> None:
    error = InputError("card.yaml: \u202ekey\x1b[31m", "v\u200b", "no\nline", "re\x07medy")
    assert str(error) == "card.yaml: ?key?[31m: no?line (got v?); re?medy"
