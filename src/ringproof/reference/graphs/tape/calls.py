"""Python calls that no operation shows: copies between host and device, and numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ringproof.errors import InputError
from ringproof.reference.graphs.refusals import why_call_refused
from ringproof.reference.graphs.tape.fill import fill_by_number
from ringproof.reference.graphs.tape.recorder import Recorder
from ringproof.reference.graphs.tape.source import place


class HostCalls(TorchFunctionMode):
    """Refuses Python calls that copy between host and device, which on a CPU do nothing.

    Args:
        name: Of the pass.
        recorder: Of the pass.
    """

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
        """Look at the call's name, then let it through."""
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
