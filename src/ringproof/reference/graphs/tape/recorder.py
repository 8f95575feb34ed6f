"""Records the operations of a captured function below autograd, and refuses what no graph can hold.

Python calls that are not operations on a CPU (copies between host and device, and fills) are seen
by :class:`HostCalls`. A refusal has the line of the captured function, and its name for a tensor.

A tensor subclass (``DTensor``) reaches a dispatch mode as a whole. Its operations are returned to
it, so that the operations on its parts and its communication are recorded, as a GPU would replay
them.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Number
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode_stack,
    is_traceable_wrapper_subclass,
)
from torch.utils._pytree import tree_leaves, tree_map_only

from ringproof.errors import InputError
from ringproof.reference.graphs.tape.memory import Address, Block, TapePool, address_of
from ringproof.reference.graphs.tape.operation import Frozen, Operation, touched
from ringproof.reference.graphs.tape.refusals import (
    BRINGS,
    NAME_DEVICE,
    Refusal,
    makes_on_host,
    why_call_refused,
    why_refused,
)

_ALLOCATIONS = "empty empty_like empty_permuted empty_strided new_empty new_empty_strided"
ALLOCATES_ONLY = frozenset(f"aten::{name}" for name in _ALLOCATIONS.split())
"""Operations without a kernel: a replay does not change the new memory."""

_PACKAGE = Path(__file__).parents[3]
DRIVER = str(_PACKAGE / "reference" / "graphs" / "capture.py")
_OWN = ("reference/graphs", "rehearsal/standins")
SKIPPED = (
    *(str(_PACKAGE / folder) for folder in _OWN),
    str(Path(torch.__file__).parent),
    contextlib.__file__,
)


class RandomState:
    """The random generators of one captured pass.

    On CUDA a graph reads seed and offset of a registered generator (the device's own is one) from
    memory at each replay and advances the offset, so that replays draw the numbers that eager calls
    would have drawn. torch refuses an unregistered generator during capture. A kernel that gets its
    seed from the host as a number draws the same numbers at every replay: ``repeat``.

    Args:
        registered: Generators that advance at each replay.
        repeat: Whether unregistered generators are accepted, and repeat the numbers of the capture.
    """

    def __init__(self, name: str, registered: Sequence[torch.Generator], *, repeat: bool) -> None:
        self._name, self._repeat = name, repeat
        self._states = [(generator, generator.get_state()) for generator in registered]

    def before(self, arguments: Iterable[Any], place: str) -> Frozen | None:
        """Return the state that an operation repeats, if its generator is not registered.

        Raises:
            InputError: An unregistered generator, or a registered one whose state was set.
        """
        self.check(place)
        given = [one for one in arguments if isinstance(one, torch.Generator)]
        generator = given[0] if given else torch.default_generator
        # A dispatch mode gets another Python object for the same generator.
        if any(generator._cdata == known._cdata for known, _ in self._states):
            return None
        if not self._repeat:
            problem = (
                f"{place} draws from a generator that is not registered with the graph: "
                "every replay would draw the same numbers"
            )
            raise InputError(self._name, f"{problem}; pass it in generators=")
        return generator, generator.get_state()

    def after(self) -> None:
        """Note the states of the generators after an operation that draws."""
        self._states = [(generator, generator.get_state()) for generator, _ in self._states]

    def check(self, place: str) -> None:
        """Refuse a state that was changed other than by an operation.

        Raises:
            InputError: A state was set.
        """
        for generator, state in self._states:
            if not torch.equal(generator.get_state(), state):
                problem = f"the state of a random generator was set before {place}: "
                problem += "a replay would not set it"
                raise InputError(self._name, f"{problem}; seed outside of the graph")


def draws(operation: Any) -> bool:
    """Return whether an operation draws random numbers."""
    return torch.Tag.nondeterministic_seeded in operation.tags


class Recorder(TorchDispatchMode):
    """Records operations while it is active.

    Args:
        pool: Blocks that are known.
        trained: Leaves of a forward that may require a gradient; ``None`` for a backward.
    """

    def __init__(
        self,
        name: str,
        pool: TapePool,
        one: int,
        random: RandomState,
        trained: Sequence[torch.Tensor] | None,
    ) -> None:
        super().__init__()
        self.name, self.operations = name, list[Operation]()
        self._pool, self._pass, self._random = pool, one, random
        self._trained = None if trained is None else {t.untyped_storage()._cdata for t in trained}
        self._before: dict[Block, torch.UntypedStorage] = {}
        self._on_host: dict[int, torch.UntypedStorage] = {}
        self._fills = False

    @contextlib.contextmanager
    def filling(self) -> Iterator[None]:
        """Mark that a number is written by a mask, which on a device is a fill."""
        self._fills = True
        try:
            yield
        finally:
            self._fills = False

    def keep_on_host(self, tensors: Iterable[torch.Tensor]) -> None:
        """Remember tensors that would be on the host where the others are on a GPU."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            self._on_host[storage._cdata] = storage

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[Any],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operation, and record it if a device would run a kernel."""
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
        computes_on_host = self._computes_on_host((args, kwargs))
        result = self._record(func, args, kwargs)
        if computes_on_host:
            self.keep_on_host(_tensors(result))
        return result

    def _computes_on_host(self, given: Any) -> bool:
        """Return whether all tensors of an operation are on the host.

        Raises:
            InputError: Some are on the host, and some on the device. A tensor without dimensions
                may be: a kernel takes it as a number.
        """
        if not self._on_host:
            return False
        places = {t: t.untyped_storage()._cdata in self._on_host for t in _tensors(given)}
        if all(places.values()):
            return bool(places)
        if any(on_host and tensor.dim() for tensor, on_host in places.items()):
            raise self._refusal(Refusal("a tensor made without device=", BRINGS, NAME_DEVICE))
        return False

    def _is_harmless(self, func: Any, args: tuple[Any, ...]) -> bool:
        """Return whether a device can run an operation that is refused otherwise."""
        if func.name() == "aten::lift_fresh":
            return self._pool.find(args[0]) is not None  # no data of the host
        if func.name() not in ("aten::index_put", "aten::index_put_") or args[2].dim() > 0:
            return False
        # Torch's own backward writes a zero where a number was written, and by the same mask.
        return self._fills or (self._trained is None and user_frame() is None)

    def _record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        where = place()
        arguments = tree_map_only(torch.Tensor, self._address, args)
        keywords = tree_map_only(torch.Tensor, self._address, kwargs)
        self._keep(touched(func, arguments, keywords, ()).writes)
        frozen = self._random.before((*args, *kwargs.values()), where) if draws(func) else None
        result = func(*args, **kwargs)
        if draws(func):
            self._random.after()
        found = _tensors(result)
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
        """Restore memory outside of the graph: on a device a capture computes nothing."""
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
        """Return the address of an argument; memory from outside is not kept alive."""
        if tensor.layout != torch.strided:
            why = "is not a plain strided tensor"
            raise self._refusal(Refusal(name_of(tensor), why, "make it one"))
        block = self._pool.find(tensor)
        if self._would_get_no_gradient(tensor, block):
            why = "requires a gradient, and is no input or parameter of the capture: it gets none"
            raise self._refusal(Refusal(name_of(tensor), why, "name it among the parameters"))
        if block is None:
            label = f"{name_of(tensor)}, first used at {place()}"
            block = self._pool.add(tensor, label, owned=False)
        return address_of(tensor, block)

    def _would_get_no_gradient(self, tensor: torch.Tensor, block: Block | None) -> bool:
        """Return whether it is a leaf from outside that is not among the parameters."""
        return (
            self._trained is not None
            and tensor.requires_grad
            and tensor.is_leaf
            and (block is None or block.born is None)
            and tensor.untyped_storage()._cdata not in self._trained
        )

    def _new_address(self, tensor: torch.Tensor, func: Any, where: str) -> Address | None:
        """Return the address of a result, if the operation allocated it."""
        if self._pool.find(tensor) is not None:
            return None
        label = f"result of {func.name()} at {where}"
        block = self._pool.add(tensor, label, owned=True, born=self._pass)
        return address_of(tensor, block)

    def _check_wrapping(self, func: Any, found: list[torch.Tensor]) -> None:
        """Refuse an operation that computes a subclass: its result would not be recorded."""
        for tensor in found:
            wrapped = is_traceable_wrapper_subclass(tensor)
            names = tensor.__tensor_flatten__()[0] if wrapped else ()
            parts = [getattr(tensor, name) for name in names] or [tensor]
            if any(self._pool.find(part) is None for part in parts):
                why = f"computes a {type(tensor).__name__} in one operation"
                raise self._refusal(Refusal(func.name(), why, "use its local tensor"))

    def _refusal(self, refusal: Refusal) -> InputError:
        problem = f"{refusal.what} at {place()}: {refusal.why}"
        return InputError(self.name, f"{problem}; {refusal.remedy}")


def refuse_while_recording(name: str) -> None:
    """Refuse to capture or replay a graph during another capture, as a device does.

    Raises:
        InputError: A capture runs.
    """
    if any(isinstance(mode, Recorder) for mode in _get_current_dispatch_mode_stack()):
        problem = f"it is inside of a capture at {place()}"
        raise InputError(name, f"{problem}; leave it out, or capture what it computes instead")


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _has_no_memory(tree: Any) -> bool:
    """Return whether one of the tensors has no memory."""
    return any(tensor.is_meta or isinstance(tensor, FakeTensor) for tensor in _tensors(tree))


def _has_work(func: Any, results: tuple[Address | None, ...]) -> bool:
    """Return whether a device would run a kernel, which it does not for views and allocations.

    A view made in place (``squeeze_``) changes an address that only Python keeps.
    """
    if func.name().partition(".")[0] in ALLOCATES_ONLY or torch.Tag.inplace_view in func.tags:
        return False
    changes = func._schema.is_mutable or not func._schema.returns
    return bool(changes or func.namespace == "c10d" or any(results))


class HostCalls(TorchFunctionMode):
    """Refuses Python calls that copy between host and device, which on a CPU do nothing."""

    def __init__(self, name: str, recorder: Recorder) -> None:
        super().__init__()
        self._name, self._recorder = name, recorder

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Check the name of a call, and run it."""
        kwargs = dict(kwargs or {})
        refusal = why_call_refused(getattr(func, "__name__", ""), args, kwargs)
        if refusal is not None:
            problem = f"{refusal.what} at {place()}: {refusal.why}"
            raise InputError(self._name, f"{problem}; {refusal.remedy}")
        if func is torch.Tensor.__setitem__:
            with self._recorder.filling():
                filled = fill_by_number(*args)
            if filled:
                return None
        result = func(*args, **kwargs)
        if makes_on_host(getattr(func, "__name__", ""), kwargs):
            self._recorder.keep_on_host(_tensors(result))
        return result


def fill_by_number(x: torch.Tensor, index: Any, value: Any) -> bool:
    """Run ``x[index] = value`` as a fill if torch does so on a GPU; return whether it does.

    On a GPU, writing a number by slices and integers, or by a mask, is a fill whose number is a
    constant of the capture. On a CPU torch makes a tensor of the number first, which would look
    like data from the host. By indices that are tensors, lists or several masks torch copies the
    number to a GPU, too.
    """
    if not isinstance(value, Number):
        return False
    pieces = index if isinstance(index, tuple) else (index,)
    if all(_is_basic(piece) for piece in pieces):
        x[index].fill_(value)
        return True
    if not _is_mask(index, x):
        return False
    # Not masked_fill_, whose backward lays gradients out in another way, and so rounds differently.
    x.index_put_((index,), torch.full((), value, dtype=x.dtype, device=x.device))
    return True


def _is_basic(piece: Any) -> bool:
    """Return whether a piece of an index only chooses a view."""
    basic = piece is None or piece is ... or isinstance(piece, int | slice)
    return basic and not isinstance(piece, bool)


def _is_mask(index: Any, x: torch.Tensor) -> bool:
    """Return whether an index is a mask of the first dimensions."""
    if not isinstance(index, torch.Tensor) or index.dtype != torch.bool:
        return False
    return index.shape == x.shape[: index.dim()]


def user_frame() -> FrameType | None:
    """Return the innermost frame of the captured function; ``None`` in autograd's own nodes."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(SKIPPED):
        if frame.f_code.co_filename == DRIVER:
            return None
        frame = frame.f_back
    return frame


def place() -> str:
    """Return ``model/moe.py:99``, or the node of the backward, if there is one."""
    frame = user_frame()
    if frame is None:
        node = getattr(torch._C, "_current_autograd_node", lambda: None)()
        return f"the backward of {node.name()}" if node is not None else "a module of torch"
    return f"{'/'.join(Path(frame.f_code.co_filename).parts[-2:])}:{frame.f_lineno}"


def name_of(tensor: torch.Tensor) -> str:
    """Return the function's name for a tensor: a variable, or an attribute of ``self``.

    >>> name_of(torch.ones(2))
    'a tensor float32 [2]'
    """
    kind = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
    frame = user_frame()
    if frame is None:
        return f"a tensor {kind}"
    owner = frame.f_locals.get("self")
    attributes = {
        name: value
        for part in ("__dict__", "_buffers", "_parameters")
        for name, value in getattr(owner, part, {}).items()
    }
    named = (
        *frame.f_locals.items(),
        *((f"self.{name}", value) for name, value in attributes.items()),
        *frame.f_globals.items(),
    )
    found = next((name for name, value in named if value is tensor), None)
    return f"`{found}` {kind}" if found else f"a tensor {kind}"
