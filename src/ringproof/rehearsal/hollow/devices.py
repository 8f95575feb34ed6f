"""What is on the GPU and what on the host, where both are the CPU.

The device is called ``cpu:0`` and the host ``cpu``: both are the CPU to torch, and upstream can
tell them apart. A tensor says which one it is on by what `Storages` knows of it.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ringproof.rehearsal.hollow.storages import Storages
from ringproof.rehearsal.standins import cuda
from ringproof.rehearsal.standins.guard import put

GPU = cuda.REAL_DEVICE("cpu", 0)
_DEVICE = torch.Tensor.device
Patch = tuple[object, str, Any]


def is_gpu(device: Any) -> bool:
    """Return whether an argument names the GPU, as upstream or as this file does."""
    if device is None or isinstance(device, bool):
        return False
    if isinstance(device, cuda.REAL_DEVICE):
        return device.type == "cuda" or (device.type == "cpu" and device.index is not None)
    return isinstance(device, int) or str(device).split(":")[0] == "cuda"


def is_host(device: Any) -> bool:
    """Return whether an argument names the host."""
    if isinstance(device, cuda.REAL_DEVICE):
        return bool(device.type == "cpu" and device.index is None)
    return isinstance(device, str) and device == "cpu"


def install(storages: Storages) -> None:
    """Tell the device from the host, for the rest of this process; after `cuda.install`."""
    put(_patches(storages))
    original = cuda.Device.__new__

    def make(cls: Any, *arguments: Any, **named: Any) -> Any:
        device = arguments[0] if arguments else named.get("type", named.get("device"))
        return GPU if is_gpu(device) else original(cls, *arguments, **named)

    cuda.Device.__new__ = make  # type: ignore[method-assign]


def _patches(storages: Storages) -> Iterator[Patch]:
    yield torch.Tensor, "device", property(lambda tensor: _device_of(storages, tensor))
    for name in cuda.FACTORIES:
        yield torch, name, _flagged(storages, getattr(torch, name))
    for name in cuda.TENSOR_FACTORIES:
        yield torch.Tensor, name, _flagged(storages, getattr(torch.Tensor, name))
    for holder in (torch.Tensor, torch.nn.Module):
        yield holder, "to", _moving(storages, holder.to)
    yield torch.Tensor, "cuda", lambda tensor, *_, **__: _uploaded(storages, tensor)
    yield torch.Tensor, "cpu", lambda tensor, *_, **__: _downloaded(storages, tensor)
    yield torch.nn.Module, "cuda", lambda module, *_, **__: _enter_all(storages, module)
    yield torch.UntypedStorage, "resize_", _resizing(storages, torch.UntypedStorage.resize_)
    ledger = storages.ledger
    yield torch.cuda, "memory_allocated", lambda *_, **__: ledger.bytes
    yield torch.cuda, "max_memory_allocated", lambda *_, **__: ledger.peak
    yield torch.cuda, "empty_cache", lambda: ledger.allocator.empty()
    yield torch.cuda, "memory_stats", lambda *_, **__: _statistics(storages)


def _device_of(storages: Storages, tensor: torch.Tensor) -> Any:
    device = _DEVICE.__get__(tensor)
    if device.type != "cpu" or not storages.holds(tensor):
        return device
    return cuda.REAL_DEVICE("cuda", 0) if storages.named_cuda else GPU


def naming_cuda(storages: Storages, function: Callable[..., Any]) -> Callable[..., Any]:
    """Let tensors on the device say so in upstream's words to a function that only looks."""

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        storages.named_cuda = True
        try:
            return function(*arguments, **named)
        finally:
            storages.named_cuda = False

    return call


def _flagged(storages: Storages, function: Callable[..., Any]) -> Callable[..., Any]:
    """Let what a factory makes for the GPU be on the device."""

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        if not is_gpu(named.get("device")):
            return function(*arguments, **named)
        with storages.wanted():
            return function(*arguments, **named)

    return call


def _moving(storages: Storages, function: Callable[..., Any]) -> Callable[..., Any]:
    """Let ``to`` copy between the host and the device."""

    @functools.wraps(function)
    def call(holder: Any, *arguments: Any, **named: Any) -> Any:
        device = named.get("device", arguments[0] if arguments else None)
        moved = function(holder, *arguments, **named)
        if is_gpu(device):
            if isinstance(moved, torch.nn.Module):
                return _enter_all(storages, moved)
            return _uploaded(storages, moved)
        if is_host(device) and isinstance(moved, torch.Tensor):
            return _downloaded(storages, moved)
        return moved

    return call


def _uploaded(storages: Storages, tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_meta or storages.holds(tensor):
        return tensor
    with storages.wanted():
        return torch.clone(tensor)


def _downloaded(storages: Storages, tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_meta or not storages.holds(tensor):
        return tensor
    with storages.hidden():
        return torch.clone(tensor)


def _enter_all(storages: Storages, module: Any) -> Any:
    for tensor in (*module.parameters(), *module.buffers()):
        storages.enter(tensor, "to")
    return module


def _resizing(storages: Storages, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(storage: Any, size: int) -> Any:
        found = function(storage, size)
        storages.resized(storage)
        return found

    return call


def _statistics(storages: Storages) -> defaultdict[str, int]:
    now, peak = storages.ledger.bytes, storages.ledger.peak
    kinds = ("allocated_bytes", "reserved_bytes", "active_bytes")
    known = {f"{kind}.all.current": now for kind in kinds}
    known |= {f"{kind}.all.peak": peak for kind in kinds}
    return defaultdict(int, known)
