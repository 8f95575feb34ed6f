"""Checks before the first capture that the graphs of a bank will fit in memory.

The estimate is measured: each part runs forward and backward once, without a graph, on a
microbatch of the size that it will be captured with. Its graph will hold the memory that is alive
then: activations and results after the forward, gradients of inputs and parameters after the
backward. Memory that is alive at the peak of a pass only is shared by all graphs of a slot.
"""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ringproof.budget import free_memory
from ringproof.errors import InputError
from ringproof.reference.graphs.bank import BankOptions
from ringproof.reference.graphs.replay import bytes_of
from ringproof.reference.graphs.scopes import Part
from ringproof.reference.model.batch import PackedBatch
from ringproof.reference.model.static import batch_tensors


@dataclass(frozen=True)
class MemoryNeed:
    """Memory that a rank's graphs need, and memory that is free.

    Args:
        place: Host, or GPU of a host. Ranks of one place share its memory.
        shared: Bytes that are free for all ranks of the place; ``None`` if unknown.
        own: Bytes that this process may still allocate (``ulimit -v``); ``None`` without a limit.
    """

    place: str
    needed: int
    shared: int | None
    own: int | None


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of results of operations that something still holds."""

    def __init__(self) -> None:
        super().__init__()
        self._made: dict[int, tuple[StorageWeakRef, int]] = {}
        self._given: dict[int, StorageWeakRef] = {}
        self.peak = 0

    @property
    def now(self) -> int:
        """Bytes that are alive."""
        self._made = {key: one for key, one in self._made.items() if not one[0].expired()}
        return sum(size for _, size in self._made.values())

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[Any],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operation, and note the memory that it made."""
        for storage in _storages((args, kwargs)):
            if storage._cdata not in self._made:
                self._given[storage._cdata] = StorageWeakRef(storage)
        result = func(*args, **(kwargs or {}))
        for storage in _storages(result):
            if storage._cdata not in self._given and storage._cdata not in self._made:
                self._made[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
                self.peak = max(self.peak, self.now)
        return result


def _storages(tree: Any) -> list[torch.UntypedStorage]:
    return [leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def estimated_bytes(
    parts: Sequence[Part], batch: PackedBatch, sizes: int, options: BankOptions
) -> int:
    """Estimate the bytes that a bank of these parts will hold on this rank.

    A collective over the CP group of the microbatch and TP, as a capture is.

    Args:
        batch: A microbatch of the largest CP size.
        sizes: Number of CP sizes; they overlay each other on a GPU, and not on the tape.
    """
    found = [_part_bytes(part, batch, options) for part in parts]
    if not found:
        return 0
    copies = sizes if options.backend.name == "tape" else 1
    kept = copies * sum(kept for kept, _ in found)
    return options.slots * (kept + max(peak for _, peak in found))


def _part_bytes(part: Part, batch: PackedBatch, options: BankOptions) -> tuple[int, int]:
    """Return the bytes that a graph of a part keeps from pass to pass, and the peak of a pass."""
    x = torch.zeros(options.shape, dtype=options.dtype, device=options.device, requires_grad=True)
    wanted = [x, *(one for one in part.module.parameters() if one.requires_grad)]
    static = bytes_of([x, *batch_tensors(batch).values()])
    with LiveBytes() as live, torch.enable_grad():
        outputs = part.run(part.module.forward, x, batch)
        kept = live.now
        tensors = (outputs,) if isinstance(outputs, torch.Tensor) else outputs
        roots = [one for one in tensors if one is not None and one.requires_grad]
        zeros = [torch.zeros_like(root) for root in roots]
        gradients = torch.autograd.grad(roots, wanted, zeros, allow_unused=True) if roots else ()
        kept += bytes_of([*zeros, *gradients])
    return static + kept, live.peak


def need_of(needed: int, device: torch.device) -> MemoryNeed:
    """Return the need of this rank, with the memory that is free where it runs."""
    host = socket.gethostname()
    if device.type == "cuda" and torch.cuda.is_available():
        free, _ = torch.cuda.mem_get_info(device)
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        name = f"GPU {torch.cuda.get_device_properties(device).uuid} of {host}"
        return MemoryNeed(name, needed, free + cached, None)
    return MemoryNeed(host, needed, free_memory(), allowed_memory())


def allowed_memory() -> int | None:
    """Bytes of address space that this process may still take."""
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if most == resource.RLIM_INFINITY else most - psutil.Process().memory_info().vms


def check_fits(own: MemoryNeed, rows: int) -> None:
    """Refuse graphs that will not fit. A collective over the world; every rank raises the same.

    Raises:
        InputError: The estimate of some place exceeds its free memory. ``rows`` are those of a
            microbatch on each rank, for the message.
    """
    found: list[MemoryNeed] = [own] * dist.get_world_size()
    dist.all_gather_object(found, own)
    for place in dict.fromkeys(need.place for need in found):
        here = [need for need in found if need.place == place]
        needed = sum(need.needed for need in here)
        free = min((need.shared for need in here if need.shared is not None), default=needed)
        if needed > free:
            raise _too_large(rows, f"{len(here)} ranks on {place}", needed, free)
        for need in here:
            if need.own is not None and need.needed > need.own:
                raise _too_large(rows, f"a rank on {place}", need.needed, need.own)


def _too_large(rows: int, whose: str, needed: int, free: int) -> InputError:
    problem = (
        f"the graphs of {whose} need about {needed / 2**30:.1f} GiB, "
        f"and {free / 2**30:.1f} GiB are free"
    )
    remedy = "lower --graph-rows, --max-tokens-per-rank or --graph-slots, or give fewer --cp-sizes"
    return InputError("graph_rows", rows, problem, remedy)
