"""Where upstream's code is that runs: a module's forward, its caller, an autograd function."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from typing import Any

OURS = ("torch.", "ringproof.")
INSTALLED = re.compile(r".*/(?:site|dist)-packages/")
FARTHEST = 6  # operations such as views between a tensor and the function that computed it


def forward_of(module: Any) -> str:
    """Return ``FILE:LINE`` of a module's forward."""
    return place_of(type(module).forward)


def place_of(function: Any) -> str:
    """Return ``FILE:LINE`` of a Python function; empty for another one."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return INSTALLED.sub("", f"{code.co_filename}:{code.co_firstlineno}") if code else ""


def caller() -> str:
    """Return ``FILE:LINE`` of the innermost frame that is neither torch's nor ours."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").startswith(OURS):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def made_by(tensor: Any) -> tuple[str, str]:
    """Return ``FILE:LINE`` of the forward and backward of the function that computed a tensor.

    Operations of torch between the two, such as views, are passed over. Both are empty where no
    such function is near.
    """
    for node in _behind(tensor.grad_fn):
        kind = getattr(node, "_forward_cls", None)
        if kind is not None:
            return place_of(kind.forward), place_of(kind.backward)
    return "", ""


def _behind(node: Any) -> Iterator[Any]:
    for _ in range(FARTHEST):
        if node is None:
            return
        yield node
        if len(node.next_functions) != 1:  # an operation on several tensors is no view
            return
        node = node.next_functions[0][0]
