"""Pools whose blocks are also found by address, as upstream's weak references need.

Transformer Engine keeps static outputs by their address only, so that the allocator of the pool may
give their memory away. Here such a reference is a tensor over the same bytes that has no share in
the storage: it does not keep the block alive.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

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

    def block_at(self, pointer: int) -> Block | None:
        """The block of the pool's own memory that holds an address."""
        for block in self:
            if block.storage is not None and block.start <= pointer < block.start + block.bytes:
                return block
        return None

    def add_alias(self, tensor: torch.Tensor, block: Block) -> None:
        """Note that a tensor is a raw reference into a block."""
        storage = tensor.untyped_storage()
        self._aliases[storage._cdata] = (block, StorageWeakRef(storage))


def tensor_at(pointer: int, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Return a contiguous tensor over the bytes at an address, which it does not keep alive."""
    count = math.prod(shape)
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    buffer = (ctypes.c_char * (count * dtype.itemsize)).from_address(pointer)
    return torch.frombuffer(buffer, dtype=dtype).view(shape)


def refer(pools: Iterator[AliasedPool], reference: Any) -> torch.Tensor:
    """Return the tensor of an object that has ``data_ptr``, ``dtype`` and ``shape`` only.

    Args:
        pools: Pools in one of which the address may lie.
        reference: Upstream's weak reference.
    """
    pointer = int(reference.data_ptr())
    tensor = tensor_at(pointer, reference.dtype, tuple(reference.shape))
    for pool in pools:
        block = pool.block_at(pointer)
        if block is not None:
            pool.add_alias(tensor, block)
            break
    return tensor
