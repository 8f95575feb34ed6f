"""Python calls that are not operations on a CPU: copies between host and device, and fills."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Number
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ringproof.errors import InputError
from ringproof.harness.tape.recorder import Recorder
from ringproof.harness.tape.refusals import why_call_refused
from ringproof.harness.tape.source import place


class HostCalls(TorchFunctionMode):
    """Refuses Python calls that copy between host and device, which on a CPU do nothing."""

    def __init__(self, name: str, recorder: Recorder) -> None:
        super().__init__()
        self._name, self._recorder = name, recorder

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Check the name of a call, and run it."""
        kwargs = dict(kwargs or {})
        refusal = why_call_refused(getattr(func, "__name__", ""), args, kwargs)
        if refusal is not None:
            problem = f"{refusal.what} at {place()}: {refusal.why}"
            raise InputError(self._name, None, problem, refusal.remedy)
        if func is torch.Tensor.__setitem__:
            with self._recorder.filling():
                filled = fill_by_number(*args)
            if filled:
                return None
        return func(*args, **kwargs)


def fill_by_number(x: torch.Tensor, index: Any, value: Any) -> bool:
    """Run ``x[index] = value`` as a fill if torch does so on a GPU; return whether it does.

    On a GPU, writing a number by slices and integers, or by a mask, is a fill whose number is a
    constant of the capture. On a CPU torch makes a tensor of the number first, which would look
    like data from the host. By indices that are tensors, lists or several masks torch copies the
    number to a GPU, too.
    """
    if not isinstance(value, Number):
        return False
    pieces = index if isinstance(index, tuple) else (index,)
    if all(_is_basic(piece) for piece in pieces):
        x[index].fill_(value)
        return True
    if not _is_mask(index, x):
        return False
    # Not masked_fill_, whose backward lays gradients out in another way, and so rounds differently.
    x.index_put_((index,), torch.full((), value, dtype=x.dtype, device=x.device))
    return True


def _is_basic(piece: Any) -> bool:
    """Return whether a piece of an index only chooses a view."""
    basic = piece is None or piece is ... or isinstance(piece, int | slice)
    return basic and not isinstance(piece, bool)


def _is_mask(index: Any, x: torch.Tensor) -> bool:
    """Return whether an index is a mask of the first dimensions."""
    if not isinstance(index, torch.Tensor) or index.dtype != torch.bool:
        return False
    return index.shape == x.shape[: index.dim()]
