"""Upstream's functions run as they are written: torch's compilers would look for a GPU.

Transformer Engine marks functions as not to be compiled when it is imported. For that torch would
import its compiler, which takes about a quarter of the time of importing all of upstream.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch

from ringproof.rehearsal.standins.guard import put

COMPILER = "torch._dynamo"
ABSENT = "torch._dynamo.comptime"
"""Transformer Engine imports it if it is there, to warn in what is compiled."""
MARKS = ("allow_in_graph", "assume_constant_result", "disable")


def install() -> None:
    """Compile nothing, for the rest of this process."""
    put((
        (torch, "compile", _uncompiled),
        (torch.jit, "script", _uncompiled),
        *((torch.compiler, name, _uncompiled) for name in MARKS),
    ))  # fmt: skip


@contextlib.contextmanager
def left_out() -> Iterator[None]:
    """Let upstream mark functions for torch's compiler without importing it, unless it is there.

    Whatever else is asked of the compiler imports it.
    """
    if COMPILER in sys.modules:
        yield
        return
    vars(torch)["_dynamo"] = sys.modules[COMPILER] = _Unimported(COMPILER)
    sys.modules[ABSENT] = None  # type: ignore[assignment]  # `None` is for "absent"
    try:
        yield
    finally:
        _take_back()


class _Unimported(types.ModuleType):
    """Stands for the compiler until something that it does not have is asked for."""

    disable = staticmethod(lambda fn=None, *_, **__: _uncompiled(fn))

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.config = types.SimpleNamespace()  # nothing is compiled that would obey it

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":  # ``inspect`` asks all modules for these
            raise AttributeError(name)
        _take_back()
        return getattr(importlib.import_module(COMPILER), name)


def _take_back() -> None:
    if isinstance(sys.modules.get(COMPILER), _Unimported):
        del sys.modules[COMPILER], sys.modules[ABSENT], vars(torch)["_dynamo"]


def _uncompiled(function: Any = None, *_: object, **__: object) -> Any:
    """Return a function as it is, or a decorator that does so."""
    return function if function is not None else _uncompiled
