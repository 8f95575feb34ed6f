"""Writes down what the captured function does, below autograd, and refuses what no graph can hold.

A tensor subclass (``DTensor``) reaches a dispatch mode as a whole. Its operations are handed back
to it, so that what is written down are those on its parts, and its communication: what a GPU
would replay.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode_stack,
    is_traceable_wrapper_subclass,
)

from ringproof.errors import InputError
from ringproof.reference.graphs.refusals import Refusal, why_refused
from ringproof.reference.graphs.tape.chance import Chance, draws
from ringproof.reference.graphs.tape.memory import Address, Block, TapePool, address_of
from ringproof.reference.graphs.tape.operation import Operation, leaves, replaced, touched
from ringproof.reference.graphs.tape.source import name_of, place, user_frame

ALLOCATES_ONLY = frozenset(
    {
        f"aten::{name}"
        for name in (
            "empty",
            "empty_like",
            "empty_permuted",
            "empty_strided",
            "new_empty",
            "new_empty_strided",
        )
    }
)
"""No kernel: a replay leaves in the new memory what was there."""

SWEEP_BYTES = 8 << 20
"""So many bytes of results later it is asked again which of them nothing holds any more."""


class Recorder(TorchDispatchMode):
    """Records operations while it is active.

    Args:
        name: Of the pass.
        pool: Where blocks are looked up and added.
        one: The pass, as a time.
        chance: The random generators.
        trained: Of a forward, all that may require a gradient; ``None`` for a backward.
    """

    def __init__(
        self,
        name: str,
        pool: TapePool,
        one: int,
        chance: Chance,
        trained: Sequence[torch.Tensor] | None,
    ) -> None:
        super().__init__()
        self.name, self.operations = name, list[Operation]()
        self._pool, self._pass, self._chance = pool, one, chance
        self._trained = None if trained is None else {t.untyped_storage()._cdata for t in trained}
        self._before: dict[Block, torch.UntypedStorage] = {}
        self._fills = False
        self._new_bytes = 0

    @contextmanager
    def filling(self) -> Iterator[None]:
        """While a number is written by a mask, which on a device is a fill."""
        self._fills = True
        try:
            yield
        finally:
            self._fills = False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[Any],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operation, and write it down if a device would have had anything to do."""
        kwargs = dict(kwargs or {})
        subclasses = [
            kind for kind in types if kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
        ]
        if subclasses and not any(issubclass(kind, FakeTensor) for kind in subclasses):
            return NotImplemented
        if subclasses or _has_no_memory((args, kwargs)):
            return func(*args, **kwargs)
        if not isinstance(func, torch._ops.OpOverload):
            raise self._refusal(Refusal(str(func), "is no single operation", "leave it out"))
        found = None if self._is_harmless(func, args) else why_refused(func, args, kwargs)
        if found is not None:
            raise self._refusal(found)
        return self._record(func, args, kwargs)

    def _is_harmless(self, func: Any, args: tuple[Any, ...]) -> bool:
        """Whether an operation that is refused otherwise does here what a device can do."""
        if func.name() == "aten::lift_fresh":
            return self._pool.find(args[0]) is not None  # no data of the host
        if func.name() not in ("aten::index_put", "aten::index_put_") or args[2].dim() > 0:
            return False
        # Torch's own backward writes a zero where a number was written, and by the same mask.
        return self._fills or (self._trained is None and user_frame() is None)

    def _record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        where = place()
        arguments = replaced(args, torch.Tensor, self._address)
        keywords = replaced(kwargs, torch.Tensor, self._address)
        self._keep(touched(func, arguments, keywords, ()).writes)
        frozen = self._chance.before((*args, *kwargs.values()), where) if draws(func) else None
        result = func(*args, **kwargs)
        if draws(func):
            self._chance.after()
        found = [leaf for leaf in leaves(result) if isinstance(leaf, torch.Tensor)]
        if _has_no_memory(found):
            return result
        if any(is_traceable_wrapper_subclass(tensor) for tensor in found):
            self._check_wrapping(func, found)
            return result
        results = tuple(self._new_address(tensor, func, where) for tensor in found)
        if _has_work(func, results):
            touch = touched(func, arguments, keywords, results)
            operation = Operation(func, arguments, keywords, results, touch, frozen, where)
            self.operations.append(operation)
        return result

    def undo(self) -> None:
        """Give memory outside the values that it had: on a device a capture computes nothing."""
        for block, before in self._before.items():
            storage = block.find()
            if storage is not None:
                storage.copy_(before)

    def _keep(self, written: Iterable[Block]) -> None:
        for block in written:
            storage = block.find() if block.born is None and block not in self._before else None
            if storage is not None:
                self._before[block] = storage.clone()

    def _address(self, tensor: torch.Tensor) -> Address:
        """Where an argument is; one from outside is noted, and not kept alive."""
        if tensor.layout != torch.strided:
            raise self._refusal(
                Refusal(name_of(tensor), "is not a plain strided tensor", "make it one")
            )
        block = self._pool.find(tensor)
        if self._would_get_no_gradient(tensor, block):
            why = "requires a gradient, and is no input or parameter of the capture: it gets none"
            raise self._refusal(Refusal(name_of(tensor), why, "name it among the parameters"))
        if block is None:
            label = f"{name_of(tensor)}, first used at {place()}"
            block = self._pool.add(tensor, label, owned=False)
        return address_of(tensor, block)

    def _would_get_no_gradient(self, tensor: torch.Tensor, block: Block | None) -> bool:
        """Whether it is a leaf that the function found around it, and that nobody named."""
        return (
            self._trained is not None
            and tensor.requires_grad
            and tensor.is_leaf
            and (block is None or block.born is None)
            and tensor.untyped_storage()._cdata not in self._trained
        )

    def _new_address(self, tensor: torch.Tensor, func: Any, where: str) -> Address | None:
        """Where a result is, if the operation allocated it."""
        if self._pool.find(tensor) is not None:
            return None
        label = f"result of {func.name()} at {where}"
        self._new_bytes += tensor.untyped_storage().nbytes()
        if self._new_bytes > SWEEP_BYTES:
            self._pool.let_go(self._pass)
            self._new_bytes = 0
        block = self._pool.add(tensor, label, owned=True, born=self._pass)
        return address_of(tensor, block)

    def _check_wrapping(self, func: Any, found: list[torch.Tensor]) -> None:
        """An operation may put a subclass around what is there; what it computed would be lost."""
        for tensor in found:
            wrapped = is_traceable_wrapper_subclass(tensor)
            names = tensor.__tensor_flatten__()[0] if wrapped else ()
            parts = [getattr(tensor, name) for name in names] or [tensor]
            if any(self._pool.find(part) is None for part in parts):
                why = f"computes a {type(tensor).__name__} in one operation"
                raise self._refusal(Refusal(func.name(), why, "use its local tensor"))

    def _refusal(self, refusal: Refusal) -> InputError:
        problem = f"{refusal.what} at {place()}: {refusal.why}"
        return InputError(self.name, None, problem, refusal.remedy)


def refuse_while_recording(name: str) -> None:
    """No device captures or replays a graph while it captures another one.

    Args:
        name: Of what is to be captured or replayed.

    Raises:
        InputError: See above.
    """
    if any(isinstance(mode, Recorder) for mode in _get_current_dispatch_mode_stack()):
        problem = f"is inside of a capture at {place()}"
        raise InputError(name, None, problem, "leave it out, or capture what it computes instead")


def _has_no_memory(tree: Any) -> bool:
    """Whether a tensor among these is one of shapes alone."""
    return any(
        isinstance(leaf, torch.Tensor) and (leaf.is_meta or isinstance(leaf, FakeTensor))
        for leaf in leaves(tree)
    )


def _has_work(func: Any, results: tuple[Address | None, ...]) -> bool:
    """Whether a device would run anything: not for views, allocations and questions of shape.

    A view made in place (``squeeze_``) changes an address that only Python keeps.
    """
    if func.name().partition(".")[0] in ALLOCATES_ONLY or torch.Tag.inplace_view in func.tags:
        return False
    changes = func._schema.is_mutable or not func._schema.returns
    return bool(changes or func.namespace == "c10d" or any(results))
