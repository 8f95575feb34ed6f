"""Memory of a graph: blocks with a first and a last pass, and addresses in them.

Time is counted in captured passes. The life of a block begins with the pass that allocates it, and
ends with the pass after which only the tape refers to it: from then on an allocator may give its
bytes to the passes that follow. Two blocks whose lives do not overlap may be the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.multiprocessing.reductions import StorageWeakRef

NEVER = 1 << 60


class Block:
    """One allocation.

    Args:
        dtype: Dtype of its first use.
        owned: Whether the tape keeps it alive; memory from outside is not.
        born: Pass that allocated it; ``None`` for memory from outside.
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

    def find(self) -> torch.UntypedStorage | None:
        """Return the allocation, if it exists and was not moved by a resize."""
        if self.storage is not None:
            return self.storage
        found = torch.UntypedStorage._new_with_weak_ptr(self._weak.cdata)
        stays = found is not None and found.data_ptr() == self.start
        return found if stays and found.nbytes() >= self.bytes else None

    def may_be_overwritten_by(self, one: int) -> bool:
        """Return whether the replay of a pass may overwrite it.

        The pass allocates it again; or it lived only after or only before the capture of that pass,
        and may have had the same bytes.
        """
        return self.born is not None and (self.born == one or not self.born <= one <= self.died)

    def make_way_for(self, one: int) -> None:
        """Poison it if the replay of a pass, which is to begin, may overwrite it.

        A block that is still poison is skipped: since then only a pass of its life can have written
        to it, or an owner elsewhere. Otherwise a replay would fill the memory of the whole pool.
        """
        lost = self.may_be_overwritten_by(one)
        if lost and (not self._is_poison or self.held_elsewhere):
            self.poison()
        self._is_poison = lost and self.born != one

    def poison(self) -> None:
        """Fill it with values that show in every result."""
        if self.storage is not None and self.bytes:
            fill_with_poison(self.storage, self.dtype)
        self._is_poison = True


@dataclass(frozen=True)
class Address:
    """Address of a tensor: its block, its layout there, conjugate or negative bits."""

    block: Block
    dtype: torch.dtype
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    conjugate: bool = False
    negative: bool = False

    def tensor(self, storage: torch.UntypedStorage) -> torch.Tensor:
        """Return the tensor at this address of a storage."""
        empty = torch.empty(0, dtype=self.dtype, device=storage.device)
        found = empty.set_(storage, self.offset, self.size, self.stride)
        found = torch._conj(found) if self.conjugate else found
        return torch._neg_view(found) if self.negative else found


class TapePool:
    """All blocks of the captures of one pool, and the number of passes."""

    def __init__(self) -> None:
        self.passes = 0
        self._blocks: dict[int, Block] = {}

    def __iter__(self) -> Iterator[Block]:
        return iter(self._blocks.values())

    def find(self, tensor: torch.Tensor) -> Block | None:
        """Return the block of a tensor, if it is known."""
        return self._blocks.get(tensor.untyped_storage()._cdata)

    def add(
        self, tensor: torch.Tensor, label: str, *, owned: bool, born: int | None = None
    ) -> Block:
        """Return the block of a tensor; a new one, if it is not known."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self._blocks:
            self._blocks[storage._cdata] = Block(
                storage, tensor.dtype, label, owned=owned, born=born
            )
        return self._blocks[storage._cdata]

    def bury(self, one: int) -> None:
        """Note the blocks that nothing refers to any more: this pass was their last."""
        for block in self:
            if block.born is not None and block.died == NEVER and not block.held_elsewhere:
                block.died = one

    def drop(self, one: int) -> None:
        """Forget and free the blocks of a pass."""
        for key, block in tuple(self._blocks.items()):
            if block.born == one:
                block.storage = None
                del self._blocks[key]


def address_of(tensor: torch.Tensor, block: Block) -> Address:
    """Return the address of a tensor in its block."""
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
    """Fill a storage with NaN, the least integer, or true."""
    count = storage.nbytes() // dtype.itemsize
    values = torch.empty(0, dtype=dtype, device=storage.device).set_(storage, 0, (count,), (1,))
    if dtype.is_floating_point or dtype.is_complex:
        values.fill_(float("nan"))
    else:
        values.fill_(True if dtype == torch.bool else torch.iinfo(dtype).min)
