"""A recorded operation, how it is run again, and the transfers that it may have to wait for.

The captured function waited for its transfers somewhere, but its waits are not operations. They
follow from the buffers: an operation that reads received data, or writes to data that is being
sent, came after a wait.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_any_only, tree_leaves, tree_map_only

from ringproof.reference.graphs.tape.memory import Address, Block

FUNCTIONAL = ("_c10d_functional", "_c10d_functional_autograd")

ALSO_WRITTEN = MappingProxyType({"aten::native_batch_norm": ("running_mean", "running_var")})
"""Arguments that an operation writes although its schema does not say so."""


Frozen = tuple[torch.Generator, torch.Tensor]
"""A random generator, and the state from which every replay draws."""


class BlockAccess(NamedTuple):
    """Blocks that an operation reads and writes."""

    reads: frozenset[Block]
    writes: frozenset[Block]

    def conflicts(self, other: BlockAccess) -> bool:
        """Whether the order of the two matters."""
        return bool(
            self.writes & other.writes or self.writes & other.reads or self.reads & other.writes
        )


class Transfers:
    """Transfers that were started and not waited for."""

    def __init__(self) -> None:
        self._pending: list[tuple[Any, BlockAccess]] = []

    def start(self, work: Any, touch: BlockAccess) -> None:
        """Remember a ``Work``."""
        self._pending.append((work, touch))

    def make_way_for(self, touch: BlockAccess) -> None:
        """Wait for the transfers that conflict with an operation."""
        if not self._pending:
            return
        blocking = [work for work, other in self._pending if touch.conflicts(other)]
        self._pending = [one for one in self._pending if not touch.conflicts(one[1])]
        for work in blocking:
            work.wait()

    def finish(self) -> None:
        """Wait for all transfers."""
        pending, self._pending = self._pending, []
        for work, _ in pending:
            work.wait()


@dataclass(frozen=True)
class Operation:
    """An operation, with addresses in place of tensors.

    Args:
        results: Addresses of its new tensors, in order; ``None`` for results that are arguments.
        touch: Blocks that it reads and writes.
        frozen: State of the generator that it draws from, if that is not registered.
        place: Line that called it.
    """

    function: Any
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    results: tuple[Any, ...]
    touch: BlockAccess
    frozen: Frozen | None
    place: str

    def bound(self, tensor_at: Callable[[Address], Any]) -> Operation:
        """Return the operation with tensors in place of (some) addresses."""
        return replace(
            self,
            arguments=tree_map_only(Address, tensor_at, self.arguments),
            keywords=tree_map_only(Address, tensor_at, self.keywords),
            results=tree_map_only(Address, tensor_at, self.results),
        )

    @cached_property
    def is_bound(self) -> bool:
        """Whether no address is left."""
        parts = (self.arguments, self.keywords, self.results)
        return not tree_any_only(Address, lambda _: True, parts)

    def run(self, transfers: Transfers) -> None:
        """Run it again, and copy its results to their addresses."""
        transfers.make_way_for(self.touch)
        if self.frozen is None:
            result = self.function(*self.arguments, **self.keywords)
        else:
            result = self._run_frozen(*self.frozen)
        if self.function.namespace == "c10d":
            work = result[-1] if isinstance(result, tuple) else result
            if work is not None:
                transfers.start(work, self.touch)
            return
        found = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        if self.function.namespace in FUNCTIONAL:
            found = [torch.ops._c10d_functional.wait_tensor(tensor) for tensor in found]
        for place, tensor in zip(self.results, found, strict=True):
            if place is not None:
                place.copy_(tensor)

    def _run_frozen(self, generator: torch.Generator, state: torch.Tensor) -> Any:
        current = generator.get_state()
        generator.set_state(state)
        try:
            return self.function(*self.arguments, **self.keywords)
        finally:
            generator.set_state(current)


def touched(function: Any, arguments: Any, keywords: Any, results: Any) -> BlockAccess:
    """Return the blocks that an operation reads and writes, from its schema.

    Schemas of c10d do not say what they write. It is the first argument, except of a send.
    """
    if function.namespace == "c10d":
        sends = function.name().startswith("c10d::send")
        first, rest = blocks(arguments[:1]), blocks(arguments[1:])
        return BlockAccess(first, frozenset()) if sends else BlockAccess(rest, first)
    named = dict(zip((one.name for one in function._schema.arguments), arguments, strict=False))
    named |= keywords
    written = {
        one.name
        for one in function._schema.arguments
        if one.alias_info is not None and one.alias_info.is_write
    } | set(ALSO_WRITTEN.get(function.name(), ()))
    return BlockAccess(
        blocks([value for name, value in named.items() if name not in written]),
        blocks([value for name, value in named.items() if name in written]) | blocks(results),
    )


def blocks(tree: Any) -> frozenset[Block]:
    """Return the blocks of all addresses in nested lists, tuples and dictionaries."""
    return frozenset(leaf.block for leaf in tree_leaves(tree) if isinstance(leaf, Address))
