"""The caching allocator's private interfaces by which upstream lets branches share addresses.

Transformer Engine's pull request 3353 rewinds the allocator between the branches of one slot, so
that branches of which only one runs take the same memory. The tape has no allocator: every branch
keeps memory of its own, a rewind is counted and does nothing, and a pool reports no blocks. What a
rehearsal shows of such code is therefore what is captured and replayed, and not that memory which
is shared on a device is never read by the wrong branch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

COUNTED = (
    "_cuda_getCheckpointState", "_cuda_setCheckpointPoolState", "_free_And_Remove_DeleterFn",
    "_accelerator_setAllocatorSettings",
)  # fmt: skip


class MemPool:
    """``torch.cuda.MemPool``: a handle and no blocks.

    Args:
        new_id: Makes a handle.
    """

    new_id: Callable[[], tuple[int, int]]

    def __init__(self, *_: object, **__: object) -> None:
        self.id = type(self).new_id()

    def snapshot(self, include_traces: bool = True) -> list[Any]:
        """Return the segments of the pool: none."""
        return []

    def use_count(self) -> int:
        """Return the number of users of the pool."""
        return 1


class Zeroed(TorchFunctionMode):
    """Zeros in new memory of a pool, whose lengths a stand-in may read during a capture."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Fill what is allocated empty."""
        made = func(*args, **(kwargs or {}))
        return made.zero_() if getattr(func, "__name__", "") == "empty" else made


def install(new_id: Callable[[], tuple[int, int]]) -> Counter[str]:
    """Accept what upstream asks of the allocator; return the count of what did nothing.

    Args:
        new_id: Makes handles of pools.
    """
    counts: Counter[str] = Counter()
    torch.cuda.MemPool = type("MemPool", (MemPool,), {"new_id": staticmethod(new_id)})
    torch.cuda.use_mem_pool = lambda *_, **__: Zeroed()
    torch.cuda.memory.get_allocator_backend = lambda: "native"
    torch.cuda.get_allocator_backend = torch.cuda.memory.get_allocator_backend
    for name in COUNTED:
        setattr(torch._C, name, _counted(counts, name))
    torch._C._cuda_checkPoolLiveAllocations = lambda *_: True
    torch._C._has_Standard_Deleter = lambda *_: True
    return counts


def _counted(counts: Counter[str], name: str) -> Callable[..., None]:
    def note(*_: object, **__: object) -> None:
        counts[name] += 1

    return note
