"""Hold a file or a folder for one run, so that a second run does not write there at the same time.

The kernel releases the lock when the process has ended, however it ends, and no file is left.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ringproof.errors import InputError

_LOCKS = Path("/proc/locks")


@contextlib.contextmanager
def held_file(path: Path, option: str) -> Iterator[None]:
    """Make a file where it is missing, and hold it while the block runs.

    A file that was made and is still empty at the end is removed. A pipe or device is not held.
    ``option`` is the option that named it, for the message.

    Raises:
        InputError: It cannot be written, or another process holds it.
    """
    made = not path.exists()
    if not made and not path.is_file():
        yield
        return
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        problem = f"cannot be written: {error.strerror}"
        raise InputError(option, path, problem, "name another file") from error
    try:
        _lock(handle, path, option)
        yield
    finally:
        if made and not os.fstat(handle).st_size:
            path.unlink(missing_ok=True)
        os.close(handle)


@contextlib.contextmanager
def held_replaced(path: Path, option: str) -> Iterator[None]:
    """Hold a file that is replaced as a whole while the block runs, by an empty file beside it.

    Arguments and errors are those of `held_file`.
    """
    if path.exists() and not path.is_file():
        yield
        return
    with held_file(path.with_name(f".{path.name}.held"), option):
        yield


@contextlib.contextmanager
def held_folder(folder: Path, option: str) -> Iterator[None]:
    """Make a folder where it is missing, and hold it while the block runs.

    A folder that was made and is still empty at the end is removed.

    Raises:
        InputError: It is a file, it cannot be made or written, or another process holds it.
    """
    missing = [part for part in (folder, *folder.parents) if not part.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    except FileExistsError as error:
        raise InputError(option, folder, "is a file", "name a folder") from error
    except OSError as error:
        problem = f"cannot be written: {error.strerror or error}"
        raise InputError(option, folder, problem, "name a writable folder") from error
    try:
        _lock(handle, folder, option)
        yield
    finally:
        os.close(handle)
        with contextlib.suppress(OSError):
            for part in missing:
                part.rmdir()


def _lock(handle: int, path: Path, option: str) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        problem = f"{_holder(handle)} writes there"
        raise InputError(option, path, problem, "wait until it ends, or name another") from error
    except OSError:  # a file system without locks
        return


def _holder(handle: int) -> str:
    """Return who holds the lock of an open file, by ``/proc/locks`` (see proc_locks(5))."""
    status = os.fstat(handle)
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    with contextlib.suppress(OSError):
        for line in _LOCKS.read_text().splitlines():
            fields = line.split()
            if "->" not in fields and "FLOCK" in fields and device in fields:
                return f"process {fields[fields.index(device) - 1]}"
    return "another process"
