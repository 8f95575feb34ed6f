"""What a capture asks for: of its inputs, of the results, and of the modes of torch around it."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ringproof.errors import InputError
from ringproof.reference.graphs.backend import Capture, Outputs


def check_modes() -> None:
    """Refuse modes of torch that a graph would take into itself.

    Raises:
        InputError: Autocast with its cache on; inference mode, whose tensors no one may overwrite;
            anomaly detection, which reads every gradient.
    """
    for kind in ("cuda", "cpu"):
        if torch.is_autocast_enabled(kind) and torch.is_autocast_cache_enabled():
            raise InputError(
                "autocast",
                kind,
                "its cache would hand weights of the capture to every replay",
                "capture under torch.autocast(..., cache_enabled=False)",
            )
    if torch.is_inference_mode_enabled():
        raise InputError(
            "inference_mode",
            None,
            "what it makes can be neither overwritten nor differentiated later",
            "capture outside of it, or under torch.no_grad()",
        )
    if torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled():
        raise InputError(
            "detect_anomaly",
            None,
            "it reads every gradient, which synchronises the device during capture",
            "switch it off, or pass check_nan=False",
        )


def check_warm_up(times: int) -> None:
    """Refuse a capture on a GPU that nothing has run before.

    What is made on first use cannot be made during a capture: handles of cuBLAS, communicators of
    NCCL and their connections from rank to rank.

    Raises:
        InputError: See above.
    """
    if times < 1:
        problem = "handles and communicators are made on first use, and no capture can make them"
        raise InputError("graph_warmup", times, problem, "give 1 or more")


def check_inputs(capture: Capture) -> None:
    """Refuse inputs and parameters whose memory cannot stand for any value of them.

    Raises:
        InputError: See above.
    """
    inputs = {f"input {index}": tensor for index, tensor in enumerate(capture.inputs)}
    everything = {**inputs, **capture.parameters}
    for name, tensor in everything.items():
        _check_kind(capture.name, name, tensor)
    if len({id(tensor) for tensor in everything.values()}) < len(inputs) + len(capture.parameters):
        raise InputError(
            capture.name, None, "a tensor is there twice", "name each input and parameter once"
        )
    for name, tensor in inputs.items():
        plain = tensor.layout == torch.strided and tensor.is_leaf and tensor.is_contiguous()
        if not plain or tensor.is_inference():
            raise InputError(
                capture.name, tuple(tensor.shape), f"{name} is a view or a result", "make a copy"
            )
    _check_apart(capture.name, inputs)


def _check_kind(capture: str, name: str, tensor: torch.Tensor) -> None:
    if is_traceable_wrapper_subclass(tensor):
        raise InputError(
            capture,
            type(tensor).__name__,
            f"{name} is a tensor subclass, whose parts have no fixed address",
            "pass its local tensor, and wrap it inside of the function",
        )
    if tensor._backward_hooks:
        raise InputError(
            capture,
            name,
            "has a hook on its gradient, which would run in the graph and once more after it",
            "register it after the capture",
        )


def _check_apart(capture: str, inputs: Mapping[str, torch.Tensor]) -> None:
    """Copying one argument in must not overwrite another one's."""
    spans = sorted(
        (tensor.data_ptr(), tensor.data_ptr() + tensor.numel() * tensor.element_size(), name)
        for name, tensor in inputs.items()
        if tensor.numel()
    )
    for (_, end, name), (start, _, other) in pairwise(spans):
        if start < end:
            raise InputError(capture, f"{name} and {other}", "share memory", "make copies")


def checked_outputs(name: str, outputs: Outputs) -> tuple[torch.Tensor | None, ...]:
    """What the function returned, as a tuple.

    Raises:
        InputError: It is neither a plain tensor nor a tuple of such and ``None``.
    """
    found = (outputs,) if isinstance(outputs, torch.Tensor) else outputs
    plain = isinstance(found, tuple) and all(
        o is None or (isinstance(o, torch.Tensor) and not is_traceable_wrapper_subclass(o))
        for o in found
    )
    if not plain:
        kinds = [type(o).__name__ for o in found] if isinstance(found, tuple) else type(found)
        raise InputError(
            name, kinds, "a graph returns plain tensors only", "return a tensor or a tuple of them"
        )
    return found
