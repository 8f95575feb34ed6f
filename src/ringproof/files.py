"""Writing a file in one step, reading a file of limited size, and listing a folder."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import select
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from ringproof.errors import InputError, shown

_PIPE_SECONDS = 10.0
_SNIFFED_BYTES = 4096
_NOT_IN_TEXT = tuple("\ufffd" + "".join(map(chr, range(7))) + "\x0e\x0f\x10\x11\x12\x7f")


def write_atomically(path: Path, content: str | bytes, *, field: str = "") -> None:
    """Write to a temporary file in the same folder, then rename it into place.

    A file that is replaced keeps its mode and its owner; a new one has those that any new file of
    this process has. A link stays, and what it leads to is replaced. What is not a file, such as
    ``/dev/null``, is written to as it is.

    Args:
        field: The option that named the path, for the message.

    Raises:
        InputError: The file cannot be written there, or it is there and read-only.
    """
    data = content.encode() if isinstance(content, str) else content
    try:
        place = path.resolve() if path.is_symlink() else path
        if place.is_dir():
            raise OSError(errno.EISDIR, "it is a folder")
        if place.exists() and not place.is_file():
            _write_special(place, data)
            return
        old = place.stat() if place.is_file() else None
        if old is not None and not old.st_mode & 0o222:
            raise OSError(errno.EACCES, "it is read-only")
        # Python's own temporary files are private, whatever the umask of the process.
        temporary = place.with_name(f".{place.name[:100]}.{secrets.token_hex(8)}")
        temporary.touch(exist_ok=False)
        try:
            if old is not None:
                _take_over(temporary, old)
            with temporary.open("wb") as stream:
                stream.write(data)
            temporary.replace(place)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except (OSError, RuntimeError) as error:  # before Python 3.13 links in a circle are the latter
        why = getattr(error, "strerror", None) or error
        sentence = f"{shown(path)} cannot be written ({why}); name a writable place"
        raise InputError(field or "file", sentence) from error


def _write_special(path: Path, data: bytes) -> None:
    """Write to a device or a pipe; a pipe that nobody reads is an error, and no wait."""
    handle = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    os.set_blocking(handle, True)
    with os.fdopen(handle, "wb") as stream:
        stream.write(data)


def _take_over(path: Path, old: os.stat_result) -> None:
    """Give a new file the owner and the mode of the one that it replaces, where this is allowed."""
    with contextlib.suppress(PermissionError):
        os.chown(path, old.st_uid, old.st_gid)
    path.chmod(old.st_mode & 0o777)  # after the owner, whose change takes bits away


def make_folder(folder: Path, *, field: str) -> None:
    """Create a folder and those above it; ``field`` is the option that named it.

    Raises:
        InputError: It cannot be created, or nothing can be written there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        sentence = f"{shown(folder)} cannot be written ({error.strerror}); name a writable folder"
        raise InputError(field, sentence) from error


def make_new_folder(folder: Path, *, field: str) -> None:
    """Create a folder as `make_folder` does.

    Raises:
        InputError: It cannot be created, or there is something in it.
    """
    make_folder(folder, field=field)
    check_new_folder(folder, field=field)


def check_new_folder(folder: Path, *, field: str) -> None:
    """Raise an `InputError` where there is something in a folder."""
    if folder.is_dir() and any(folder.iterdir()):
        raise InputError(field, f"{shown(folder)} is not empty; name a new folder")


@contextlib.contextmanager
def claimed(folder: Path, *, field: str) -> Iterator[None]:
    """Keep a folder that exists for this process, in which others would mix their files with ours.

    The kernel gives it back when this process ends, however it does.

    Raises:
        InputError: Another process has it.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # of a file system without locks
            _lock(handle, folder, field)
        yield
    finally:
        os.close(handle)


def _lock(handle: int, folder: Path, field: str) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        sentence = f"another run writes into {shown(folder)}; wait for it, or name another folder"
        raise InputError(field, sentence) from error


def read_bounded(path: Path, limit: int) -> bytes:
    """Read a file of at most ``limit`` bytes.

    Raises:
        OSError: The file cannot be read, it is larger (``errno.EFBIG``), or it is a named pipe into
            which nobody writes.
    """
    with _opened(path) as stream:
        data = stream.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"larger than {limit:,} bytes")
    return data


def _opened(path: Path) -> BinaryIO:
    """Open a file; a named pipe that lies in a folder of anybody is not waited for without end.

    What a shell makes of ``<(COMMAND)`` is a pipe without a name, and a command may take its time.
    """
    if not (path.is_fifo() and path.resolve().is_fifo()):
        return path.open("rb")
    stream = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb")
    events = select.poll()
    events.register(stream, select.POLLIN)
    if not events.poll(1000 * _PIPE_SECONDS):
        stream.close()
        raise OSError(errno.ENXIO, "nobody writes into this pipe")
    os.set_blocking(stream.fileno(), True)
    return stream


def read_input(path: Path, limit: int, *, field: str = "", remedy: str) -> bytes:
    """Read a file of at most ``limit`` bytes that the user named.

    Args:
        field: Option that named the file; the path itself by default.
        remedy: What to do when the file cannot be read.

    Raises:
        InputError: The file cannot be read, or it is too large.
    """
    try:
        return read_bounded(path, limit)
    except OSError as error:
        what = shown(path) if field else "the file"
        sentence = f"{what} cannot be read ({error.strerror}); {remedy}"
        raise InputError(field or str(path), sentence) from error


def walk_folders(
    root: Path, skip: Callable[[Path], bool], deepest: int | None = None
) -> Iterator[tuple[Path, list[str], list[Path]]]:
    """Yield every folder, the names of its files and the folders in it that are links, sorted.

    Args:
        skip: Whether to leave out a subfolder.
        deepest: Level below ``root`` whose folders are the last; no limit by default.
    """
    for where, folders, files in os.walk(root, followlinks=False):
        here = Path(where)
        is_last = len(here.relative_to(root).parts) == deepest
        folders[:] = sorted(name for name in folders if not is_last and not skip(here / name))
        yield here, sorted(files), [here / name for name in folders if (here / name).is_symlink()]


def walk_files(folder: Path, skip: Callable[[str], bool]) -> Iterator[Path]:
    """Yield the regular files below a folder, folder by folder, sorted by name.

    Links are neither followed nor returned. ``skip`` says whether to leave out a subfolder, by its
    name.
    """
    for where, names, _ in walk_folders(folder, lambda path: skip(path.name)):
        for path in (where / name for name in names):
            if not path.is_symlink() and path.is_file():
                yield path


def looks_binary(data: bytes) -> bool:
    """Whether the first bytes of a file are not those of a text.

    In binary data more than one character in twenty is not UTF-8, or a control character that no
    text holds. One odd byte does not make a script binary.
    """
    text = data[:_SNIFFED_BYTES].decode("utf-8", errors="replace")
    return 20 * sum(map(text.count, _NOT_IN_TEXT)) > len(text)
