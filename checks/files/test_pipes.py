"""A pipe is read as it is written, and never waited for in silence."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ringproof import pipes
from ringproof.errors import InputError
from ringproof.files import read_bounded, read_input, write_atomically


@pytest.fixture
def pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(pipes, "PATIENCE_SECONDS", 0.3)
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


def behind(write: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    return thread


def test_a_pipe_without_a_writer_is_refused(pipe: Path) -> None:
    started = time.monotonic()
    with pytest.raises(InputError, match="nothing writes to this pipe; start the program"):
        read_bounded(pipe, 10)
    assert time.monotonic() - started < 5


def test_what_is_written_is_read(pipe: Path) -> None:
    written = os.urandom(300_000)  # more than a pipe holds
    behind(lambda: pipe.write_bytes(written) and None)
    assert read_bounded(pipe, 1 << 20) == written


def test_a_silent_writer_is_waited_for_with_a_word(
    pipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def write() -> None:
        with pipe.open("wb", buffering=0) as stream:
            stream.write(b"a")
            time.sleep(1)
            stream.write(b"b")

    behind(write)
    assert read_bounded(pipe, 10) == b"ab"
    assert capsys.readouterr().err == f"waiting for {pipe}: a pipe that is silent\n"


def test_a_writer_that_writes_nothing_is_the_end(pipe: Path) -> None:
    behind(lambda: pipe.open("wb").close())
    assert read_bounded(pipe, 10) == b""


def test_an_endless_device_is_refused() -> None:
    with pytest.raises(InputError, match="larger than 10 bytes"):
        read_input(Path("/dev/zero"), 10, remedy="name a file")


def test_a_folder_and_a_terminal_are_refused(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        pipes.open_input(tmp_path)
    controller, terminal = os.openpty()
    try:
        with pytest.raises(OSError, match="is a terminal"):
            pipes.open_input(Path(os.ttyname(terminal)))
    finally:
        os.close(controller)
        os.close(terminal)


def test_a_pipe_without_a_reader_is_no_output(pipe: Path) -> None:
    with pytest.raises(InputError, match="--json: cannot be written: nothing reads this pipe"):
        write_atomically(pipe, "text", field="--json")


def test_what_is_written_into_a_pipe_is_read(pipe: Path) -> None:
    found: list[bytes] = []
    reader = behind(lambda: found.append(pipe.read_bytes()))
    while not found:
        with contextlib.suppress(InputError):  # until the reader is there
            write_atomically(pipe, "text" * 100_000, field="--json")
            reader.join(10)
    assert found == [b"text" * 100_000]
