"""What a command says when the machine gives it no more of something."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from types import MappingProxyType

from ringproof.errors import InputError, shown

_PROCESSES = ("processes", "no more can be started; raise `ulimit -u`, or use fewer ranks")
_MEMORY = ("memory", "no more can be had; raise `ulimit -v` and `ulimit -d`, or ask for less")
_THREADS = ("threads", "a rank can start no more; raise `ulimit -u`, `ulimit -v` and `ulimit -d`")
_DISK = ("disk", "no space is left; free some, or set TMPDIR to a folder that has room")
_LARGE = ("files", "one would become larger than is allowed; raise `ulimit -f`")
_REASONS = MappingProxyType(
    {
        errno.EAGAIN: _PROCESSES,
        errno.ENOMEM: _MEMORY,
        errno.EMFILE: ("files", "no more can be opened; raise `ulimit -n`, or use fewer ranks"),
        errno.ENFILE: ("files", "this machine can open no more; end other programs"),
        errno.EFBIG: _LARGE,
        errno.ENOSPC: _DISK,
        errno.EDQUOT: _DISK,
        errno.EROFS: ("disk", "it is read-only; name folders on another one"),
        errno.EIO: ("disk", "it cannot be read or written; name folders on another one"),
    }
)
_TEXTS = (
    ("start new thread", _PROCESSES),
    ("RuntimeError: Resource temporarily unavailable", _THREADS),
    ("DistStoreError: File too large", _LARGE),
    ("failed to map segment", _MEMORY),
    ("allocate memory", _MEMORY),
    ("No usable temporary directory", ("TMPDIR", "no folder for temporary files can be written; "
                                       "set TMPDIR to one that has room")),
)  # fmt: skip
"""Where no number says what is missing."""


def limit_behind(error: BaseException) -> InputError | None:
    """Return in one line which limit of the machine an error comes from, or ``None``."""
    for cause in _chain(error):
        number = cause.errno if isinstance(cause, OSError) else None
        if isinstance(cause, MemoryError):
            number = errno.ENOMEM
        if isinstance(cause, OSError) and number == errno.ENAMETOOLONG:
            return InputError(
                "path", f"{shown(cause.filename)} is too long for a file; name another"
            )
        if isinstance(cause, PermissionError) and cause.filename:
            sentence = f"{shown(cause.filename)} is closed to this user; open it, or name another"
            return InputError("files", sentence)
        texts = (reason for text, reason in _TEXTS if text in str(cause))
        reason = _REASONS.get(number or 0) or next(texts, None)
        if reason is not None:
            return InputError(*reason)
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and those that it was raised for."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
