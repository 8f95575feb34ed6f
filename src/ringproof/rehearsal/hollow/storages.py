"""Which storages of torch exist on the device, and which of them have no content."""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from ringproof.rehearsal.hollow.ledger import Ledger, Origin
from ringproof.rehearsal.standins.guard import calling_place

Key = int
Described = tuple[tuple[int, ...], str]
Pending = tuple[Any, str, tuple[int, ...], str]


class Storages:
    """Watches the storages of this process, and tells the ledger of those on the device.

    The device is the CPU, too. A tensor counts as one of the device if it was asked for there, or
    if one of the inputs of the operation that made it is there.

    Attributes:
        scopes: Names of the modules whose forward runs, outermost first.
        phase: What upstream does; see `Origin`.
        named_cuda: Whether tensors on the device say that its type is ``cuda``.
        invented: How often upstream read a number that nothing computed, by what and where.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.scopes: list[str] = []
        self.phase = "setup"
        self.named_cuda = False
        self.invented: Counter[str] = Counter()
        self._numbers: dict[Key, tuple[Any, int]] = {}
        self._hollow: dict[Key, Any] = {}
        self._inside: dict[Key, Any] = {}  # of a kernel that still runs
        self._pending: list[Pending] = []
        self._depth = self._compiled = self._wanted = self._hidden = 0
        self._rewritten: dict[Key, tuple[int, Described]] = {}

    # -- the device -----------------------------------------------------------------------------

    @contextlib.contextmanager
    def wanted(self) -> Iterator[None]:
        """Let what is made meanwhile be on the device."""
        self._wanted += 1
        try:
            yield
        finally:
            self._wanted -= 1

    @contextlib.contextmanager
    def hidden(self) -> Iterator[None]:
        """Let what is made meanwhile be on the host."""
        self._hidden += 1
        try:
            yield
        finally:
            self._hidden -= 1

    def holds(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is on the device."""
        key = tensor.untyped_storage()._cdata
        return _lives(self._numbers.get(key, (None, 0))[0]) or _lives(self._inside.get(key))

    def take_part(self, tensors: Iterable[torch.Tensor]) -> bool:
        """Return whether an operation with these inputs runs on the device."""
        if self._hidden:
            return False
        return bool(self._wanted) or any(self.holds(t) for t in tensors if not t.is_meta)

    def enter(self, value: Any, operation: str) -> None:
        """Note the tensors that an operation on the device returned."""
        if isinstance(value, torch.Tensor):
            self._enter_tensor(value, operation)
        elif isinstance(value, list | tuple):
            for item in value:
                self.enter(item, operation)

    def _enter_tensor(self, tensor: torch.Tensor, operation: str) -> None:
        if tensor.is_meta or self.holds(tensor):
            return
        storage = tensor.untyped_storage()
        described = (operation, *_described(tensor))
        if not self._depth:
            self._born(storage, *described)
            return
        key, inside = storage._cdata, self._inside
        self._pending.append((weakref.ref(storage), *described))
        inside[key] = weakref.ref(storage, lambda _: inside.pop(key, None))

    def _born(self, storage: Any, operation: str, shape: tuple[int, ...], dtype: str) -> None:
        key, ledger = storage._cdata, self.ledger
        number = ledger.enter(storage.nbytes(), self._origin(operation, shape, dtype))

        def gone(_: object) -> None:
            if self._numbers.get(key, (None, 0))[1] == number:
                del self._numbers[key]
            ledger.drop(number, backward=in_backward())

        self._numbers[key] = (weakref.ref(storage, gone), number)

    def _origin(self, operation: str, shape: tuple[int, ...], dtype: str) -> Origin:
        scope = self.scopes[-1] if self.scopes else ""
        place = calling_place()
        return Origin(operation, shape, dtype, place, scope, self.phase, in_backward())

    def number(self, tensor: torch.Tensor) -> int | None:
        """Return the ledger's number of a tensor's block, if it has one."""
        reference, number = self._numbers.get(tensor.untyped_storage()._cdata, (None, 0))
        return number if _lives(reference) else None

    def resized(self, storage: Any) -> None:
        """Note that upstream gave a storage another size."""
        reference, number = self._numbers.get(storage._cdata, (None, 0))
        if _lives(reference):
            self.ledger.resize(number, storage.nbytes())

    def share(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Give the memory of a tensor to one whose storage upstream has emptied."""
        storage, count = target.untyped_storage(), source.untyped_storage().nbytes()
        number = self.number(source)
        if number is not None:
            self.ledger.resize(number, 0)
        torch.UntypedStorage.resize_(storage, count)
        if self.is_hollow(source):
            self.make_hollow(target)
        else:
            storage.copy_(source.untyped_storage())

    def received(self, tensor: torch.Tensor) -> None:
        """Note that a collective wrote into a tensor."""
        number = self.number(tensor)
        if number is not None:
            self.ledger.blocks[number].received = True

    # -- kernels --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def kernel(self, *, compiled: bool = False) -> Iterator[None]:
        """Enter only what is left of the block: the stand-in's temporaries are not the kernel's.

        Args:
            compiled: Whether torch's compiler would make the kernel. It computes what is written
                into an argument apart, and copies it.
        """
        self._depth += 1
        self._compiled += compiled
        try:
            yield
        finally:
            self._depth -= 1
            self._compiled -= compiled
            if not self._depth:
                self._leave_kernel()

    def _leave_kernel(self) -> None:
        rewritten = tuple(self._rewritten.values())
        self._rewritten.clear()
        pending, self._pending = self._pending, []
        for reference, operation, shape, dtype in pending:
            storage = reference()
            if storage is not None and storage._cdata not in self._numbers:
                self._born(storage, operation, shape, dtype)
            del storage
        self.ledger.pass_by([(size, self._origin("written", *told)) for size, told in rewritten])

    def written(self, tensor: torch.Tensor) -> None:
        """Note that an operation writes into a tensor."""
        if self._compiled and self.number(tensor) is not None:
            size = tensor.numel() * tensor.element_size()
            self._rewritten[tensor.untyped_storage()._cdata] = size, _described(tensor)

    # -- content --------------------------------------------------------------------------------

    def is_hollow(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor has no content."""
        return _lives(self._hollow.get(tensor.untyped_storage()._cdata))

    def make_hollow(self, tensor: torch.Tensor) -> torch.Tensor:
        """Declare that a tensor has no content; return it."""
        storage, hollow = tensor.untyped_storage(), self._hollow
        key = storage._cdata

        def gone(reference: object) -> None:
            if hollow.get(key) is reference:
                del hollow[key]

        hollow[key] = weakref.ref(storage, gone)
        return tensor

    def invent(self, what: str) -> None:
        """Note that upstream gets a number that nothing computed."""
        self.invented[f"{what} at {calling_place()}"] += 1


def _described(tensor: torch.Tensor) -> Described:
    """Return the shape and the name of the dtype."""
    return tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")


def in_backward() -> bool:
    """Return whether the backward pass runs in this thread."""
    return bool(sys.modules["torch"]._C._current_graph_task_id() != -1)


def _lives(reference: Any) -> bool:
    return reference is not None and reference() is not None
