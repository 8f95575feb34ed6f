"""Upstream's functions run as they are written: torch's compilers would look for a GPU.

Transformer Engine marks functions as not to be compiled when it is imported. For that torch would
import its compiler, which takes a second of a processor beside what upstream imports anyway.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from ringproof.rehearsal.standins.guard import put

COMPILER = "torch._dynamo"
ABSENT = "torch._dynamo.comptime"
"""Transformer Engine imports it if it is there, to warn in what is compiled."""
NAMES = ("fn", "model", "obj")
"""Names of the argument that is a function."""
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
    sys.meta_path.insert(0, once := _Once())
    try:
        yield
    finally:
        sys.meta_path.remove(once)
        _take_back()


def function_of(function: Any, named: Mapping[str, object]) -> Any:
    """Return the function that a compiler got, by place or by name; ``None`` for none."""
    return next((named[name] for name in NAMES if name in named), function)


def _uncompiled(function: Any = None, *_: object, **named: object) -> Any:
    """Return a function as it is, or a decorator that does so."""
    function = function_of(function, named)
    return function if function is not None else _uncompiled


class _Unimported(types.ModuleType):
    """Stands for the compiler until something that it does not have is asked for."""

    disable = staticmethod(_uncompiled)

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.config = types.SimpleNamespace()  # nothing is compiled that would obey it

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":  # ``inspect`` asks all modules for these
            raise AttributeError(name)
        _take_back()
        return getattr(importlib.import_module(COMPILER), name)


class _Once(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules of the compiler that are there since Python asked for the path of it.

    Python would run them a second time, since it has looked for them in ``sys.modules`` before.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return a spec for a module of the compiler that is imported, nothing for others."""
        known = fullname.startswith(f"{COMPILER}.") and sys.modules.get(fullname)
        if not known:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, loader_state=known)

    def exec_module(self, module: types.ModuleType) -> None:
        """Put the module that is imported in the place of an empty one."""
        assert module.__spec__ is not None
        sys.modules[module.__name__] = module.__spec__.loader_state


def _take_back() -> None:
    if isinstance(sys.modules.get(COMPILER), _Unimported):
        del sys.modules[COMPILER], sys.modules[ABSENT], vars(torch)["_dynamo"]
