"""The follower of `ringproof logs watch`: appended lines, partial lines, truncation, rotation."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringproof.errors import InputError
from ringproof.harness.logs.watching.following import BLOCK_BYTES, Follower
from ringproof.harness.logs.watching.watch import MOST_POINTS, Curve

LONG = "x" * 400
SCENARIOS: dict[str, list[tuple[str, str, list[bytes | None]]]] = {
    "a line is given once and only when it is complete": [
        ("append", "one\ntw", [b"one"]),
        ("append", "", []),
        ("append", "o\nthr", [b"two"]),
    ],
    "a file is waited for": [("remove", "", []), ("append", "one\n", [b"one"])],
    "a truncated file begins anew": [
        ("append", "a long first line\nrest", [b"a long first line"]),
        ("write", "new\n", [b"rest", None, b"new"]),
    ],
    "a file that was written anew and is longer begins anew": [
        ("append", "old\n", [b"old"]),
        ("write", "other and longer\n", [None, b"other and longer"]),
        ("append", "appended\n", [b"appended"]),  # the control: what only grows does not
    ],
    "a file cut to its first lines begins anew": [
        ("append", f"{LONG}\nsecond\n", [LONG.encode(), b"second"]),
        ("write", f"{LONG}\n", [None, LONG.encode()]),
    ],
    "a rotated file is read to its end first": [
        ("append", "one\n", [b"one"]),
        ("rotate", "two\n", [b"two"]),
        ("append", "four\n", [None, b"four"]),
    ],
}


def change(log: Path, operation: str, text: str) -> None:
    """Do to a log what its writer, or logrotate, does."""
    if operation == "remove":
        log.unlink()
        return
    with log.open("w" if operation == "write" else "a") as stream:
        stream.write(text)
    if operation == "rotate":
        log.rename(log.with_name("log.1"))


@pytest.mark.parametrize("name", SCENARIOS)
def test_lines_that_follow(tmp_path: Path, name: str) -> None:
    log = tmp_path / "log"
    log.touch()
    follower = Follower(str(log), "LOG")
    for operation, text, expected in SCENARIOS[name]:
        change(log, operation, text)
        assert list(follower.lines()) == expected
        assert follower.waiting is (operation == "remove")
    rest = b"thr" if "complete" in name else b""
    assert [follower.unfinished(), follower.unfinished()] == [rest, b""]
    follower.close()


def test_what_is_written_just_before_a_rotation_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    change(log, "append", "one\n")
    follower = Follower(str(log), "LOG")
    replaced = follower._replaced

    def after_a_late_line() -> bool:
        if not log.with_name("log.1").exists():
            change(log, "rotate", "late\n")
            change(log, "append", "new\n")
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
