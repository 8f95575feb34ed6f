"""How the server of forks ends, which imports this module first; `limit_of_server` reads it."""

import errno
import sys
from types import TracebackType

LIMITS = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)


def _end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """End without a traceback and with the number of the limit that was reached, if one was.

    Where there is no memory for a `MemoryError`, Python raises `SystemError`.
    """
    full = isinstance(error, MemoryError | SystemError)
    number = errno.ENOMEM if full else getattr(error, "errno", None)
    if number not in LIMITS:
        sys.__excepthook__(kind, error, trace)
    sys.exit(number if number in LIMITS else 1)


sys.excepthook = _end
