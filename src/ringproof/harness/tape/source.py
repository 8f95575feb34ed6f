"""Line of the captured function that called an operation, and its name for a tensor."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from types import FrameType

import torch

_PACKAGE = Path(__file__).parents[2]
DRIVER = str(_PACKAGE / "reference" / "graphs" / "capture.py")
_OWN = ("reference/graphs", "harness/tape", "rehearsal/standins")
SKIPPED = (
    *(str(_PACKAGE / folder) for folder in _OWN),
    str(Path(torch.__file__).parent),
    contextlib.__file__,
)


def user_frame() -> FrameType | None:
    """Return the innermost frame of the captured function; ``None`` in autograd's own nodes."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(SKIPPED):
        if frame.f_code.co_filename == DRIVER:
            return None
        frame = frame.f_back
    return frame


def place() -> str:
    """Return ``model/moe.py:99``, or the node of the backward, if there is one."""
    frame = user_frame()
    if frame is None:
        node = getattr(torch._C, "_current_autograd_node", lambda: None)()
        return f"the backward of {node.name()}" if node is not None else "a module of torch"
    return f"{'/'.join(Path(frame.f_code.co_filename).parts[-2:])}:{frame.f_lineno}"


def name_of(tensor: torch.Tensor) -> str:
    """Return the function's name for a tensor: a variable, or an attribute of ``self``.

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
