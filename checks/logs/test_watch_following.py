"""The follower of `ringproof logs watch`: appended lines, partial lines, truncation, rotation."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringproof.errors import InputError
from ringproof.harness.logs.watching.following import BLOCK_BYTES, Follower
from ringproof.harness.logs.watching.watch import MOST_POINTS, Curve


def append(path: Path, text: str) -> None:
    with path.open("a") as stream:
        stream.write(text)


def test_a_line_is_given_once_and_only_when_it_is_complete(tmp_path: Path) -> None:
    log = tmp_path / "log"
    append(log, "one\ntw")
    follower = Follower(str(log), "LOG")
    assert list(follower.lines()) == [b"one"]
    assert list(follower.lines()) == []
    append(log, "o\nthr")
    assert list(follower.lines()) == [b"two"]
    assert follower.unfinished() == b"thr"
    assert follower.unfinished() == b""
    follower.close()


def test_a_file_is_waited_for(tmp_path: Path) -> None:
    follower = Follower(str(tmp_path / "log"), "LOG")
    assert list(follower.lines()) == []
    assert follower.waiting
    append(tmp_path / "log", "one\n")
    assert list(follower.lines()) == [b"one"]
    assert not follower.waiting


def test_a_truncated_file_begins_anew(tmp_path: Path) -> None:
    log = tmp_path / "log"
    append(log, "a long first line\nrest")
    follower = Follower(str(log), "LOG")
    assert list(follower.lines()) == [b"a long first line"]
    log.write_text("new\n")
    assert list(follower.lines()) == [b"rest", None, b"new"]


def test_a_file_that_was_written_anew_and_is_longer_begins_anew(tmp_path: Path) -> None:
    log = tmp_path / "log"
    append(log, "old\n")
    follower = Follower(str(log), "LOG")
    list(follower.lines())
    log.write_text("other and longer\n")
    assert list(follower.lines()) == [None, b"other and longer"]
    append(log, "appended\n")  # the control: what only grows does not begin anew
    assert list(follower.lines()) == [b"appended"]


def test_a_rotated_file_is_read_to_its_end_first(tmp_path: Path) -> None:
    log = tmp_path / "log"
    append(log, "one\n")
    follower = Follower(str(log), "LOG")
    assert list(follower.lines()) == [b"one"]
    append(log, "two\n")
    log.rename(tmp_path / "log.1")
    assert list(follower.lines()) == [b"two"]
    append(tmp_path / "log.1", "three\n")
    append(log, "four\n")
    assert list(follower.lines()) == [b"three", None, b"four"]


def test_a_file_cut_to_its_first_lines_begins_anew(tmp_path: Path) -> None:
    log, first = tmp_path / "log", "x" * 400
    append(log, f"{first}\nsecond\n")
    follower = Follower(str(log), "LOG")
    list(follower.lines())
    log.write_text(f"{first}\n")
    assert list(follower.lines()) == [None, first.encode()]


def test_what_is_written_just_before_a_rotation_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    append(log, "one\n")
    follower = Follower(str(log), "LOG")
    replaced = follower._replaced

    def after_a_late_line() -> bool:
        if not (tmp_path / "log.1").exists():
            append(log, "late\n")
            log.rename(tmp_path / "log.1")
            append(log, "new\n")
        return replaced()

    monkeypatch.setattr(follower, "_replaced", after_a_late_line)
    assert list(follower.lines()) == [b"one", b"late", None, b"new"]


def test_a_line_without_an_end_does_not_fill_memory(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"x" * (5 * BLOCK_BYTES))
    pieces = list(Follower(str(log), "LOG").lines())
    assert len(pieces) >= 2
    assert max(len(piece or b"") for piece in pieces) <= 2 * BLOCK_BYTES


@pytest.mark.parametrize("content", [b"\x1f\x8b\x08\x00", None])
def test_what_cannot_be_followed_is_refused(tmp_path: Path, content: bytes | None) -> None:
    place = tmp_path
    if content is not None:
        place = tmp_path / "log"
        place.write_bytes(content)
    with pytest.raises(InputError):
        list(Follower(str(place), "LOG").lines())


def test_a_long_curve_is_bounded_and_keeps_its_peak() -> None:
    curve = Curve()
    for step in range(1, 100_001):
        curve.add(step, 9.0 if step == 54_321 else 1.0)
    assert len(curve.points) <= MOST_POINTS
    assert max(point.high for point in curve.points) == 9.0
    assert sum(point.count for point in curve.points) == 100_000
    assert all(a.last + 1 == b.first for a, b in zip(curve.points, curve.points[1:], strict=False))
    curve.cut(50_000)
    assert max(point.high for point in curve.points) == 1.0
