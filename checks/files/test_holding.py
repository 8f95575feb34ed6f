"""Two runs do not write to one file or into one folder at the same time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from ringproof import holding
from ringproof.errors import InputError
from ringproof.holding import held_file, held_folder, held_replaced

HOLD = """
import sys
from pathlib import Path
from ringproof import holding
with getattr(holding, sys.argv[1])(Path(sys.argv[2]), "--log"):
    print("held", flush=True)
    sys.stdin.read()
"""
Hold = Callable[[Path, str], AbstractContextManager[None]]
KINDS = pytest.mark.parametrize("hold", [held_file, held_folder], ids=["file", "folder"])


@contextmanager
def another(hold: Hold, path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the path."""
    words = [sys.executable, "-c", HOLD, hold.__name__, str(path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as made:
        assert made.stdout
        assert made.stdout.readline() == "held\n"
        yield made
        made.kill()


@KINDS
def test_the_second_is_refused_and_told_of_the_first(hold: Hold, tmp_path: Path) -> None:
    path = tmp_path / "place"
    with another(hold, path) as first:
        message = f"--log: process {first.pid} writes there .*; wait until it ends, or name another"
        with pytest.raises(InputError, match=message), hold(path, "--log"):
            pass
        first.kill()
        first.wait()
        with hold(path, "--log"):
            pass


def test_a_holder_that_cannot_be_seen_is_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holding, "_LOCKS", tmp_path / "none")
    with (
        another(held_file, tmp_path / "place"),
        pytest.raises(InputError, match="another process writes there"),
        held_file(tmp_path / "place", "--log"),
    ):
        pass


@KINDS
def test_what_was_made_and_stays_empty_is_removed(hold: Hold, tmp_path: Path) -> None:
    path = tmp_path / "place"
    with pytest.raises(InputError), hold(path, "--log"):
        assert path.exists()
        raise InputError("field", 1, "is wrong", "correct it")
    assert not path.exists()


def test_folders_on_the_way_are_removed_as_well(tmp_path: Path) -> None:
    with held_folder(tmp_path / "a" / "b", "--out"):
        pass
    assert list(tmp_path.iterdir()) == []


@KINDS
def test_what_was_there_or_was_written_stays(hold: Hold, tmp_path: Path) -> None:
    path = tmp_path / "place"
    with hold(path, "--log"):
        (path / "file" if path.is_dir() else path).write_text("written")
    assert path.exists()
    empty = tmp_path / "empty"
    empty.mkdir() if hold is held_folder else empty.touch()
    with hold(empty, "--log"):
        pass
    assert empty.exists()


def test_a_file_is_no_folder_and_a_device_is_not_held(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is a file"), held_folder(tmp_path / "file", "--out"):
        pass
    with held_file(Path("/dev/null"), "--log"), held_file(Path("/dev/null"), "--log"):
        pass


def test_a_file_that_is_replaced_stays_held(tmp_path: Path) -> None:
    """A new file has no lock, so an empty one beside it is held, and removed at the end."""
    path = tmp_path / "run.html"
    with another(held_replaced, path) as first:
        (tmp_path / "new").write_text("page")
        (tmp_path / "new").replace(path)
        message = f"--html: process {first.pid} writes there"
        with pytest.raises(InputError, match=message), held_replaced(path, "--html"):
            pass
        assert path.read_text() == "page"
        first.kill()
        first.wait()
    with held_replaced(path, "--html"):
        pass
    assert path.read_text() == "page"
