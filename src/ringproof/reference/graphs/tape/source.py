"""Which line of the captured function did it, and what the tensor is called there."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from types import FrameType

import torch

OWN = str(Path(__file__).parents[1])
DRIVER = str(Path(OWN, "capturing.py"))
STAND_INS = str(Path(__file__).parents[3] / "rehearsal" / "standins")
SKIPPED = (str(Path(torch.__file__).parent), OWN, STAND_INS, contextlib.__file__)


def user_frame() -> FrameType | None:
    """The innermost frame of the captured function; ``None`` where autograd runs its own nodes."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(SKIPPED):
        if frame.f_code.co_filename == DRIVER:
            return None
        frame = frame.f_back
    return frame


def place() -> str:
    """``model/moe.py:99``, or the node of the backward, or neither if all of it is torch's."""
    frame = user_frame()
    if frame is None:
        node = getattr(torch._C, "_current_autograd_node", lambda: None)()
        return f"the backward of {node.name()}" if node is not None else "a module of torch"
    return f"{'/'.join(Path(frame.f_code.co_filename).parts[-2:])}:{frame.f_lineno}"


def name_of(tensor: torch.Tensor) -> str:
    """What the function calls a tensor: a variable, or an attribute of ``self``.

    >>> name_of(torch.ones(2))
    'a tensor float32 [2]'
    """
    kind = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
    frame = user_frame()
    if frame is None:
        return f"a tensor {kind}"
    owner = frame.f_locals.get("self")
    attributes = {
        name: value
        for part in ("__dict__", "_buffers", "_parameters")
        for name, value in getattr(owner, part, {}).items()
    }
    named = (
        *frame.f_locals.items(),
        *((f"self.{name}", value) for name, value in attributes.items()),
        *frame.f_globals.items(),
    )
    found = next((name for name, value in named if value is tensor), None)
    return f"`{found}` {kind}" if found else f"a tensor {kind}"
