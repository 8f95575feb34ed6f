"""Whether the graphs of a bank will fit in memory, asked before the first capture.

The estimate is measured: each part runs forward and backward once, without a graph, on a
microbatch of the size that it will be captured with. What is alive then is what its graph will
hold: activations and results after the forward, gradients of inputs and parameters after the
backward. What is alive at the peak of a pass is scratch memory, which all graphs of a slot share.
"""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ringproof.errors import InputError
from ringproof.reference.graphs.bank import BankOptions
from ringproof.reference.graphs.scopes import Part
from ringproof.reference.model.batch import PackedBatch
from ringproof.reference.model.static import batch_tensors

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")
STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class Need:
    """What a rank's graphs need, and what there is.

    Args:
        place: Whose memory it is: a host, or a GPU of one. Ranks of one place share it.
        needed: Bytes, estimated.
        shared: Bytes that are free for all ranks of the place; ``None`` where nothing says so.
        own: Bytes that this process may still take (``ulimit -v``); ``None`` without a limit.
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
    """Bytes that a bank of these parts will hold on this rank.

    A collective over the CP group of the microbatch and TP, as a capture is.

    Args:
        parts: Of one stage.
        batch: A microbatch of the largest CP size.
        sizes: CP sizes of the bank; they overlay each other on a GPU, and not on the tape.
        options: Of the bank.
    """
    found = [_part_bytes(part, batch, options) for part in parts]
    if not found:
        return 0
    copies = sizes if options.backend.name == "tape" else 1
    kept = copies * sum(kept for kept, _ in found)
    return options.slots * (kept + max(peak for _, peak in found))


def _part_bytes(part: Part, batch: PackedBatch, options: BankOptions) -> tuple[int, int]:
    """What a graph of a part holds from pass to pass, and at most in one of them."""
    x = torch.zeros(options.shape, dtype=options.dtype, device=options.device, requires_grad=True)
    wanted = [x, *(one for one in part.module.parameters() if one.requires_grad)]
    static = _bytes([x, *batch_tensors(batch).values()])
    with LiveBytes() as live, torch.enable_grad():
        outputs = part.run(part.module.forward, x, batch)
        kept = live.now
        tensors = (outputs,) if isinstance(outputs, torch.Tensor) else outputs
        roots = [one for one in tensors if one is not None and one.requires_grad]
        zeros = [torch.zeros_like(root) for root in roots]
        gradients = torch.autograd.grad(roots, wanted, zeros, allow_unused=True) if roots else ()
        kept += _bytes([*zeros, *(one for one in gradients if one is not None)])
    return static + kept, live.peak


def _bytes(tensors: Sequence[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def need_of(needed: int, device: torch.device) -> Need:
    """What this rank needs, with what is free where it runs."""
    host = socket.gethostname()
    if device.type == "cuda" and torch.cuda.is_available():
        free, _ = torch.cuda.mem_get_info(device)
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        name = f"GPU {torch.cuda.get_device_properties(device).uuid} of {host}"
        return Need(name, needed, free + cached, None)
    return Need(host, needed, free_memory(), allowed_memory())


def free_memory() -> int | None:
    """Bytes that the processes of this host, or of this container, may still take.

    A container's usage includes the cache of files, of which the kernel gives up the inactive part.
    """
    found = [_in_table(MEMINFO, "MemAvailable:", 1024)]
    try:
        most, used = (int((CGROUP / f"memory.{name}").read_text()) for name in ("max", "current"))
        found.append(most - used + (_in_table(CGROUP / "memory.stat", "inactive_file", 1) or 0))
    except (OSError, ValueError):  # no limit, or none of this kind
        pass
    known = [one for one in found if one is not None]
    return min(known, default=None)


def allowed_memory() -> int | None:
    """Bytes of address space that this process may still take."""
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    used = _in_table(STATUS, "VmSize:", 1024)
    return None if most == resource.RLIM_INFINITY or used is None else most - used


def _in_table(path: Path, name: str, unit: int) -> int | None:
    """A number in a file of the kernel's, as bytes; ``unit`` is how many each of it stands for."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    rows = (line.split() for line in lines)
    return next((int(row[1]) * unit for row in rows if row[:1] == [name]), None)


def check_fits(own: Need, rows: int) -> None:
    """Refuse graphs that will not fit. A collective over the world; every rank raises the same.

    Args:
        own: What this rank needs, and what there is.
        rows: Of a microbatch on each rank, for the message.

    Raises:
        InputError: The estimate of some place is larger than what is free there.
    """
    found: list[Need] = [own] * dist.get_world_size()
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
