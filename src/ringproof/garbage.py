"""Making many objects without Python looking for cycles among them again and again."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collection() -> Iterator[None]:
    """No cyclic garbage collection inside, as a context or around a function.

    Syntax trees, parse events and plans hold no cycles, so nothing of size waits for a collection;
    looking for some took a quarter of the time of ``anchors check`` and half of that of ``plan``.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
