"""Memory as a graph knows it: blocks with a birth and a death, and addresses in them.

Time is counted in captured passes. A block that a pass allocates is born with it, and dies with the
pass at whose end nothing but the tape holds it: from then on an allocator may give its bytes to the
passes that follow. Two blocks whose lives do not touch may therefore be the same bytes.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass

import torch
from torch.multiprocessing.reductions import StorageWeakRef

NEVER = 1 << 60


class Block:
    """One allocation.

    Args:
        storage: The allocation.
        dtype: As which it was first used.
        label: What to call it.
        owned: Whether the tape keeps it alive; what comes from outside it does not.
        born: The pass that allocated it; ``None`` if none did.
    """

    def __init__(
        self,
        storage: torch.UntypedStorage,
        dtype: torch.dtype,
        label: str,
        *,
        owned: bool,
        born: int | None = None,
    ) -> None:
        self.storage = storage if owned else None
        self.start, self.bytes = storage.data_ptr(), storage.nbytes()
        self.dtype, self.label = dtype, label
        self.born, self.died = born, NEVER
        self.bound = 0  # tensors of the tape that hold it
        self._is_poison = False
        # Also keeps the number by which it is found from being given to another allocation.
        self._weak = StorageWeakRef(storage)

    @property
    def held_elsewhere(self) -> bool:
        """Whether anything beside the tape keeps it alive."""
        assert self.storage is not None
        return torch._C._storage_Use_Count(self.storage._cdata) > 1 + self.bound

    @property
    def is_gone(self) -> bool:
        """Whether nothing keeps it alive any more."""
        return bool(self._weak.expired())

    def find(self) -> torch.UntypedStorage | None:
        """The allocation, if it still is, and where it was: resizing a storage moves its bytes."""
        if self.storage is not None:
            return self.storage
        found = torch.UntypedStorage._new_with_weak_ptr(self._weak.cdata)
        stays = found is not None and found.data_ptr() == self.start
        return found if stays and found.nbytes() >= self.bytes else None

    def may_be_overwritten_by(self, one: int) -> bool:
        """Whether replaying a pass leaves nothing certain in it.

        That pass allocates it anew; or it lived only after or only before that pass was captured,
        and may have had the same bytes.
        """
        return self.born is not None and (self.born == one or not self.born <= one <= self.died)

    def make_way_for(self, one: int) -> None:
        """Poison it if the replay of a pass, which is to begin, may overwrite it.

        One that is poison still is left alone: since then only a pass of its life can have written
        to it, or whoever holds it. Without this a replay would fill the memory of the whole pool.
        """
        lost = self.may_be_overwritten_by(one)
        if lost and (not self._is_poison or self.held_elsewhere):
            self.poison()
        self._is_poison = lost and self.born != one

    def poison(self) -> None:
        """Fill it with what no computation survives unnoticed."""
        if self.storage is not None and self.bytes:
            fill_with_poison(self.storage, self.dtype)
        self._is_poison = True


@dataclass(frozen=True)
class Address:
    """Where a tensor is: a block, what of it, and whether to read conjugates or negatives there."""

    block: Block
    dtype: torch.dtype
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    conjugate: bool = False
    negative: bool = False

    def tensor(self, storage: torch.UntypedStorage, start: int = 0) -> torch.Tensor:
        """The tensor at this address, without history.

        Args:
            storage: What the block lies in.
            start: Where in it, in bytes.
        """
        empty = torch.empty(0, dtype=self.dtype, device=storage.device)
        offset = self.offset + start // self.dtype.itemsize
        found = empty.set_(storage, offset, self.size, self.stride)
        found = torch._conj(found) if self.conjugate else found
        return torch._neg_view(found) if self.negative else found


class TapePool:
    """All blocks that captures of one pool know of, and the count of passes.

    Args:
        reuses: Whether results that only one pass needs share memory; see ``scratch``.
    """

    def __init__(self, *, reuses: bool = False) -> None:
        self.passes, self.reuses = 0, reuses
        self.scratch = torch.UntypedStorage(0)
        self._blocks: dict[int, Block] = {}

    def __iter__(self) -> Iterator[Block]:
        return iter(self._blocks.values())

    def find(self, tensor: torch.Tensor) -> Block | None:
        """The block that a tensor lies in, if known."""
        return self._blocks.get(tensor.untyped_storage()._cdata)

    def add(
        self, tensor: torch.Tensor, label: str, *, owned: bool, born: int | None = None
    ) -> Block:
        """A block for a tensor's memory; the one it has, if it has one."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self._blocks:
            self._blocks[storage._cdata] = Block(
                storage, tensor.dtype, label, owned=owned, born=born
            )
        return self._blocks[storage._cdata]

    def bury(self, one: int) -> None:
        """Note which blocks nothing holds any more: this pass was the last that they lived in."""
        for block in self:
            if block.born is not None and block.died == NEVER and not block.held_elsewhere:
                block.died = one

    def let_go(self, one: int) -> None:
        """Free results of the pass that runs which nothing holds any more."""
        for block in self if self.reuses else ():
            living = block.born == one and block.died == NEVER and block.storage is not None
            if living and not block.held_elsewhere:
                block.died, block.storage = one, None

    def reserve(self, size: int) -> int:
        """Let the scratch memory have so many bytes; by how many it grew."""
        grown = max(0, size - self.scratch.nbytes())
        if grown:
            self.scratch.resize_(size)
        return grown

    def forget(self, one: int, shared: Container[Block]) -> None:
        """Forget the blocks of a pass that share memory; give back to others what was let go."""
        for key, block in tuple(self._blocks.items()):
            if block in shared:
                block.storage = None
                del self._blocks[key]
            elif block.born == one and block.storage is None:
                block.storage = torch.UntypedStorage(block.bytes)

    def drop(self, passes: frozenset[int]) -> None:
        """Forget and free what these passes allocated."""
        for key, block in tuple(self._blocks.items()):
            if block.born in passes:
                block.storage = None
                del self._blocks[key]


def address_of(tensor: torch.Tensor, block: Block) -> Address:
    """Where in the block the tensor lies."""
    return Address(
        block,
        tensor.dtype,
        tensor.storage_offset(),
        tuple(tensor.shape),
        tensor.stride(),
        tensor.is_conj(),
        tensor.is_neg(),
    )


def fill_with_poison(storage: torch.UntypedStorage, dtype: torch.dtype) -> None:
    """NaN for floating point, the least integer, true for flags."""
    count = storage.nbytes() // dtype.itemsize
    values = torch.empty(0, dtype=dtype, device=storage.device).set_(storage, 0, (count,), (1,))
    if dtype.is_floating_point or dtype.is_complex:
        values.fill_(float("nan"))
    else:
        values.fill_(True if dtype == torch.bool else torch.iinfo(dtype).min)
