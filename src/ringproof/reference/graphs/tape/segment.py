"""A captured pass on the tape, and its replay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ringproof.errors import InputError
from ringproof.reference.graphs.tape.memory import (
    Address,
    Block,
    TapePool,
    fill_with_poison,
)
from ringproof.reference.graphs.tape.operation import Operation, blocks
from ringproof.reference.graphs.tape.recorder import refuse_while_recording
from ringproof.reference.graphs.tape.scratch import lay_out
from ringproof.reference.graphs.tape.transfers import Transfers


@dataclass(frozen=True)
class Realism:
    """What a replay does where a device's behaviour is undefined.

    Args:
        faithful: Go on as a device would: read a freed tensor as poison, let a slot in flight be
            overwritten. Otherwise such a thing is refused by name.
        poison: Before each replay, destroy what a device is free to have overwritten.
    """

    faithful: bool = False
    poison: bool = True


class TapeSegment:
    """One pass. Records are handed over with :meth:`load`, once all passes are captured.

    Args:
        name: Of the pass.
        pool: Its memory.
        realism: See :class:`Realism`.
    """

    def __init__(self, name: str, pool: TapePool, realism: Realism) -> None:
        self.name, self._pool, self._realism = name, pool, realism
        self.number = pool.passes
        self._operations: tuple[Operation, ...] = ()
        self._outside: tuple[Block, ...] = ()
        self._bound: list[Block] = []
        self._scratch_bytes = 0

    @property
    def private_bytes(self) -> int:
        """What the pool grew by: memory of the pass's own, and more scratch memory."""
        own = sum(block.bytes for block in self._pool if block.born == self.number)
        return own + self._scratch_bytes

    @property
    def operations(self) -> tuple[Operation, ...]:
        """What a replay runs."""
        return self._operations

    def load(self, operations: Sequence[Operation]) -> None:
        """Take the records, and hold on to the graph's own memory.

        Raises:
            InputError: A tensor from outside is gone already, unless that is what to show.
        """
        places = self._shared_places(operations)
        self._outside = tuple(
            dict.fromkeys(
                block
                for operation in operations
                for block in sorted(
                    blocks((operation.arguments, operation.keywords)), key=lambda one: one.label
                )
                if block.storage is None and block not in places
            )
        )
        tensors: dict[Address, Any] = {}

        def tensor_at(address: Address) -> Any:
            if address.block in places:
                return address.tensor(self._pool.scratch, places[address.block])
            if address.block.storage is None:
                return address
            if address not in tensors:
                tensors[address] = address.tensor(address.block.storage)
                address.block.bound += 1
                self._bound.append(address.block)
            return tensors[address]

        self._operations = tuple(operation.bound(tensor_at) for operation in operations)
        self._storages()

    def _shared_places(self, operations: Sequence[Operation]) -> Mapping[Block, int]:
        """Where in the pool's scratch memory the blocks lie that only this pass needs."""
        if not self._pool.reuses:
            return {}
        layout = lay_out(operations, self.number)
        self._scratch_bytes = self._pool.reserve(layout.bytes)
        self._pool.forget(self.number, layout.places)
        return layout.places

    def leave_nothing(self) -> None:
        """Destroy what the capture computed: on a device nothing is there before a replay."""
        if self._realism.poison:
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
        if self._realism.poison:
            for block in self._pool:
                block.make_way_for(self.number)
        transfers = Transfers()

        def tensor_at(address: Address) -> torch.Tensor:
            return address.tensor(storages[address.block])

        with torch.no_grad():
            for operation in self._operations:
                ready = operation if operation.is_bound else operation.bound(tensor_at)
                self._run(ready, transfers)
            transfers.finish()

    def reset(self) -> None:
        """Free what it holds."""
        self._operations, self._outside, self._scratch_bytes = (), (), 0
        while self._bound:
            self._bound.pop().bound -= 1
        self._pool.drop(frozenset({self.number}))

    def _run(self, operation: Operation, transfers: Transfers) -> None:
        try:
            operation.run(transfers)
        except (IndexError, RuntimeError) as error:
            if operation.function.namespace != "aten":
                raise  # a transfer fails because of another rank
            raise InputError(
                self.name,
                None,
                f"{operation.function.name()} at {operation.place} fails in the replay: "
                f"{str(error).strip().partition(chr(10))[0]}",
                "check the values of the inputs: a device would stop, or go on in silence",
            ) from error

    def _storages(self) -> dict[Block, torch.UntypedStorage]:
        """The memory outside of the graph that it reads and writes."""
        found = {block: block.find() for block in self._outside}
        return {
            block: self._gone(block) if storage is None else storage
            for block, storage in found.items()
        }

    def _gone(self, block: Block) -> torch.UntypedStorage:
        if not self._realism.faithful:
            raise InputError(
                self.name,
                None,
                f"dangling address: {block.label}, was freed or moved after the capture",
                "keep it alive as long as the graph, or pass it as a static input",
            )
        storage = torch.UntypedStorage(block.bytes)
        fill_with_poison(storage, block.dtype)
        return storage
