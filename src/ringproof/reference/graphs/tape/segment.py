"""A captured pass on the tape, and its replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ringproof.errors import InputError
from ringproof.reference.graphs.tape.memory import Address, Block, TapePool, fill_with_poison
from ringproof.reference.graphs.tape.operation import Operation, Transfers, blocks
from ringproof.reference.graphs.tape.recorder import refuse_while_recording


@dataclass(frozen=True)
class UndefinedBehaviour:
    """Options of a replay where a device's behaviour is undefined.

    Args:
        faithful: Continue as a device would: read a freed tensor as poison, overwrite a slot in
            flight. Otherwise this is refused, with the name of the tensor.
        poison: Before each replay, destroy the memory that a device may have overwritten.
    """

    faithful: bool = False
    poison: bool = True


class TapeSegment:
    """One pass. Its operations are set by :meth:`load`, once all passes are captured."""

    def __init__(self, name: str, pool: TapePool, undefined: UndefinedBehaviour) -> None:
        self.name, self._pool, self._undefined = name, pool, undefined
        self.number = pool.passes
        self.operations: tuple[Operation, ...] = ()
        self._outside: tuple[Block, ...] = ()
        self._bound: list[Block] = []

    @property
    def private_bytes(self) -> int:
        """Memory that the pass allocated. Nothing is reused, neither in it nor by other passes."""
        return sum(block.bytes for block in self._pool if block.born == self.number)

    def load(self, operations: Sequence[Operation]) -> None:
        """Take the operations, and keep the graph's own memory alive.

        Raises:
            InputError: A tensor from outside is gone already, unless ``faithful``.
        """
        self._outside = tuple(
            dict.fromkeys(
                block
                for operation in operations
                for block in sorted(
                    blocks((operation.arguments, operation.keywords)), key=lambda one: one.label
                )
                if block.storage is None
            )
        )
        tensors: dict[Address, Any] = {}

        def tensor_at(address: Address) -> Any:
            if address.block.storage is None:
                return address
            if address not in tensors:
                tensors[address] = address.tensor(address.block.storage)
                address.block.bound += 1
                self._bound.append(address.block)
            return tensors[address]

        self.operations = tuple(operation.bound(tensor_at) for operation in operations)
        self._storages()

    def leave_nothing(self) -> None:
        """Destroy the results of the capture: on a device it computes nothing."""
        if self._undefined.poison:
            for block in self._pool:
                if block.born == self.number:
                    block.poison()

    def replay(self) -> None:
        """Run every operation again.

        Raises:
            InputError: Another capture runs, or a tensor from outside was freed, and nothing has
                run; or an operation cannot use the values that it finds.
        """
        refuse_while_recording(self.name)
        storages = self._storages()
        if self._undefined.poison:
            for block in self._pool:
                block.make_way_for(self.number)
        transfers = Transfers()

        def tensor_at(address: Address) -> torch.Tensor:
            return address.tensor(storages[address.block])

        with torch.no_grad():
            for operation in self.operations:
                ready = operation if operation.is_bound else operation.bound(tensor_at)
                self._run(ready, transfers)
            transfers.finish()

    def reset(self) -> None:
        """Free its memory."""
        self.operations, self._outside = (), ()
        while self._bound:
            self._bound.pop().bound -= 1
        self._pool.drop(self.number)

    def _run(self, operation: Operation, transfers: Transfers) -> None:
        try:
            operation.run(transfers)
        except (IndexError, RuntimeError) as error:
            if operation.function.namespace != "aten":
                raise  # a transfer fails because of another rank
            first = str(error).strip().partition("\n")[0]
            problem = (
                f"{operation.function.name()} at {operation.place} fails in the replay: {first}"
            )
            remedy = "check the values of the inputs: a device would stop, or go on in silence"
            raise InputError(self.name, f"{problem}; {remedy}") from error

    def _storages(self) -> dict[Block, torch.UntypedStorage]:
        """Return the memory outside of the graph that it reads and writes."""
        found = {block: block.find() for block in self._outside}
        return {
            block: self._gone(block) if storage is None else storage
            for block, storage in found.items()
        }

    def _gone(self, block: Block) -> torch.UntypedStorage:
        if not self._undefined.faithful:
            problem = f"dangling address: {block.label}, was freed or moved after the capture"
            remedy = "keep it alive as long as the graph, or pass it as a static input"
            raise InputError(self.name, f"{problem}; {remedy}")
        storage = torch.UntypedStorage(block.bytes)
        fill_with_poison(storage, block.dtype)
        return storage
