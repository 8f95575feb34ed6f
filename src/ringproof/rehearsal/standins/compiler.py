"""Upstream's functions run as they are written: torch's compilers would look for a GPU.

Transformer Engine marks functions as not to be compiled when it is imported. For that torch would
import its compiler, which takes a second of a processor beside what upstream imports anyway.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ringproof.rehearsal.standins.guard import provide, put

COMPILER = "torch._dynamo"
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

    Nothing else of the compiler is there meanwhile: a call raises `StandInMissing`, and a module
    inside of it is not found.
    """
    if COMPILER in sys.modules:
        yield
        return
    provide(COMPILER, disable=_uncompiled, config=types.SimpleNamespace())  # which nothing obeys
    try:
        yield
    finally:
        del sys.modules[COMPILER], vars(torch)["_dynamo"]


def function_of(function: Any, named: Mapping[str, object]) -> Any:
    """Return the function that a compiler got, by place or by name; ``None`` for none."""
    return next((named[name] for name in NAMES if name in named), function)


def _uncompiled(function: Any = None, *_: object, **named: object) -> Any:
    """Return a function as it is, or a decorator that does so."""
    function = function_of(function, named)
    return function if function is not None else _uncompiled
