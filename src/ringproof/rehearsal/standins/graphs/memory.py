"""Pools whose blocks are also found by address, as upstream's weak references need.

Transformer Engine keeps static outputs by their address only, so that the allocator of the pool may
give their memory away. Here such a reference is a tensor over the same bytes that has no share in
the storage: it does not keep the block alive.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode

from ringproof.reference.graphs.tape.memory import Block, TapePool


class AliasedPool(TapePool):
    """A pool that knows which block a raw reference lies in."""

    def __init__(self) -> None:
        super().__init__()
        self._aliases: dict[int, tuple[Block, StorageWeakRef]] = {}

    def find(self, tensor: torch.Tensor) -> Block | None:
        """The block that a tensor lies in, by its storage or as a raw reference."""
        block = super().find(tensor)
        if block is not None:
            return block
        alias = self._aliases.get(tensor.untyped_storage()._cdata)
        return None if alias is None else alias[0]

    def alias(self, tensor: torch.Tensor, pointer: int) -> bool:
        """Note a tensor at an address as a raw reference, if the pool's own memory holds it."""
        for block in self:
            if block.storage is not None and block.start <= pointer < block.start + block.bytes:
                storage = tensor.untyped_storage()
                self._aliases[storage._cdata] = (block, StorageWeakRef(storage))
                return True
        return False


def _tensor_at(pointer: int, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Return a contiguous tensor over the bytes at an address, which it does not keep alive."""
    count = math.prod(shape)
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    buffer = (ctypes.c_char * (count * dtype.itemsize)).from_address(pointer)
    return torch.frombuffer(buffer, dtype=dtype).view(shape)


def refer(pools: Iterator[AliasedPool], reference: Any) -> torch.Tensor:
    """Return the tensor of an object that has ``data_ptr``, ``dtype`` and ``shape`` only.

    Args:
        reference: Upstream's weak reference.
    """
    pointer = int(reference.data_ptr())
    tensor = _tensor_at(pointer, reference.dtype, tuple(reference.shape))
    for pool in pools:
        if pool.alias(tensor, pointer):
            break
    return tensor


REWINDING = (
    "_cuda_getCheckpointState", "_cuda_setCheckpointPoolState", "_free_And_Remove_DeleterFn",
    "_accelerator_setAllocatorSettings",
)  # fmt: skip


class MemPool:
    """``torch.cuda.MemPool``: a handle and no blocks."""

    new_id: Callable[[], tuple[int, int]]

    def __init__(self, *_: object, **__: object) -> None:
        self.id = type(self).new_id()

    def snapshot(self, include_traces: bool = True) -> list[Any]:
        """Return the segments of the pool: none."""
        return []

    def use_count(self) -> int:
        """Return the number of users of the pool."""
        return 1


class PoolZeros(TorchFunctionMode):
    """Zeros in new memory of a pool, whose lengths a stand-in may read during a capture."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Fill what is allocated empty."""
        made = func(*args, **(kwargs or {}))
        return made.zero_() if getattr(func, "__name__", "") == "empty" else made


def allocator(new_id: Callable[[], tuple[int, int]]) -> Iterator[tuple[object, str, Any]]:
    """Yield what accepts all that upstream asks of the caching allocator, and does nothing.

    Transformer Engine's pull request 3353 rewinds the allocator between the branches of one slot,
    so that branches of which only one runs take the same memory. The tape has no allocator: every
    branch keeps memory of its own. A rehearsal does not show that memory which is shared on a
    device is never read by the wrong branch.
    """
    yield torch.cuda, "MemPool", type("MemPool", (MemPool,), {"new_id": staticmethod(new_id)})
    yield torch.cuda, "use_mem_pool", lambda *_, **__: PoolZeros()
    for holder in (torch.cuda, torch.cuda.memory):
        yield holder, "get_allocator_backend", lambda: "native"
    for name in REWINDING:
        yield torch._C, name, lambda *_, **__: None
    for name in ("_cuda_checkPoolLiveAllocations", "_has_Standard_Deleter"):
        yield torch._C, name, lambda *_: True
