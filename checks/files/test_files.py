"""A file is the old one or the new one; a place that cannot be written is one line."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from ringproof import files
from ringproof.errors import InputError
from ringproof.files import read_bounded, read_input, write_atomically


def test_writing_is_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    write_atomically(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "new \ud800")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["b.json"]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755])
def test_a_file_keeps_its_mode(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "a"
    path.touch()
    path.chmod(mode)
    write_atomically(path, "new")
    assert stat.S_IMODE(path.stat().st_mode) == mode and path.read_text() == "new"


def test_a_file_keeps_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.touch()
    try:
        os.chown(path, 12345, 12345)
    except PermissionError:
        pytest.skip("only root gives files away")
    write_atomically(path, "new")
    assert (path.stat().st_uid, path.stat().st_gid) == (12345, 12345)


@pytest.mark.parametrize(("umask", "mode"), [(0o077, 0o600), (0o002, 0o664)])
def test_a_new_file_obeys_the_umask(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        write_atomically(tmp_path / "a", "new")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == mode


def test_a_read_only_file_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    path.chmod(0o444)
    with pytest.raises(InputError, match="read-only"):
        write_atomically(path, "new", field="--json")
    assert path.read_text() == "old" and len(list(tmp_path.iterdir())) == 1


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


def test_a_pipe_into_which_nobody_writes_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = tmp_path / "SKILL.md"
    os.mkfifo(pipe)
    writer = threading.Timer(0.3, lambda: pipe.write_bytes(b"text"))
    writer.start()
    assert read_bounded(pipe, 4) == b"text"
    writer.join()
    monkeypatch.setattr(files, "_PIPE_SECONDS", 0.1)
    with pytest.raises(InputError, match=r"\(nobody writes into this pipe\); name one"):
        read_input(pipe, 4, remedy="name one")
    reading, writing = os.pipe()
    late = threading.Timer(0.3, lambda: (os.write(writing, b"text"), os.close(writing)))
    late.start()
    assert read_bounded(Path(f"/dev/fd/{reading}"), 4) == b"text", "as of a shell"
    os.close(reading)


def test_a_pipe_is_written_where_somebody_reads_it(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(InputError, match="cannot be written"):
        write_atomically(pipe, "text")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_atomically(pipe, "text")
        assert os.read(reader, 100) == b"text"
    finally:
        os.close(reader)


@pytest.mark.parametrize("name", ["", "."])
def test_a_folder_is_not_written(name: str) -> None:
    with pytest.raises(InputError, match="it is a folder"):
        write_atomically(Path(name), "text")
