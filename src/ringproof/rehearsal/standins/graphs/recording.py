"""One capture of upstream's code on the tape."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from ringproof.errors import InputError
from ringproof.reference.graphs.tape.memory import Address, Block, address_of
from ringproof.reference.graphs.tape.operation import BlockAccess, Frozen, Operation, blocks
from ringproof.reference.graphs.tape.recorder import (
    HostCalls,
    RandomState,
    Recorder,
    name_of,
    place,
)
from ringproof.reference.graphs.tape.segment import TapeSegment, UndefinedBehaviour
from ringproof.rehearsal.standins.graphs.memory import AliasedPool


class DeviceRandomState(RandomState):
    """Random numbers of a pass that draws from the device's generator in any registered state."""

    def before(self, arguments: Iterable[Any], place: str) -> Frozen | None:
        """Refuse generators other than the device's."""
        given = [one for one in arguments if isinstance(one, torch.Generator)]
        if any(one._cdata != torch.default_generator._cdata for one in given):
            sentence = f"{place} draws from its own generator; draw from the device's generator"
            raise InputError(self._name, sentence)
        return None

    def check(self, place: str) -> None:
        """Accept every state: switching states is an operation of the graph."""


class DeviceCalls(HostCalls):
    """Host calls of a pass, in a process in which every CUDA device is the CPU.

    ``.to("cuda")`` arrives here as ``.to("cpu")``, so that copies to the host are not seen.
    """

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Look at all calls but ``to``."""
        if getattr(func, "__name__", "") == "to":
            return func(*args, **dict(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs)


class DeviceRecorder(Recorder):
    """Records upstream's operations; stand-ins of kernels count as one operation each."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[Any],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Let an empty tensor be put at an address, which is a view; record all else."""
        if func.name().startswith("aten::set_") and args[0].numel() == 0:
            return func(*args, **dict(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)

    def record_kernel(
        self, kernel: Kernel, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Run a stand-in, and write its call down as one operation."""
        with without_modes():
            return self._run_kernel(kernel, args, dict(kwargs))

    def _run_kernel(self, kernel: Kernel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        where = place()
        arguments = tree_map_only(torch.Tensor, self._address, args)
        keywords = tree_map_only(torch.Tensor, self._address, kwargs)
        given = blocks((arguments, keywords))
        self._keep(given)
        result = _computed(kernel, args, kwargs)
        found = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        results = tuple(self._new_address(tensor, kernel, where) for tensor in found)
        touch = BlockAccess(given, given | blocks(results))
        self.operations.append(Operation(kernel, arguments, keywords, results, touch, None, where))
        return result

    def record_host(self, name: str, action: Callable[[], None]) -> None:
        """Do something on the host, at each replay again."""
        with without_modes():
            action()
        nothing: frozenset[Block] = frozenset()
        self.operations.append(
            Operation(
                Kernel(name, action), (), {}, (), BlockAccess(nothing, nothing), None, place()
            )
        )

    def _is_harmless(self, func: Any, args: tuple[Any, ...]) -> bool:
        """Let a backward pass write a number by a mask, which on a device is a fill.

        Python calls inside of a backward pass are not seen, so that the number arrives as a tensor
        without dimensions; the graph keeps it.
        """
        if torch._C._current_graph_task_id() != -1:
            if func.name() == "aten::lift_fresh" and args[0].dim() == 0:
                self._pool.add(args[0], "a number", owned=True)
                return True
            if func.name() == "aten::index_put_" and args[2].dim() == 0:
                return True
        return super()._is_harmless(func, args)

    def _address(self, tensor: torch.Tensor) -> Address:
        """Where an argument is; upstream's drivers name the parameters, so that is not asked."""
        block = self._pool.find(tensor)
        if block is None:
            label = f"{name_of(tensor)}, first used at {place()}"
            block = self._pool.add(tensor, label, owned=False)
        found = address_of(tensor, block)
        if tensor.numel() == 0 or tensor.untyped_storage().data_ptr() == block.start:
            return found
        offset = (tensor.data_ptr() - block.start) // tensor.element_size()
        return dataclasses.replace(found, offset=offset)


def _computed(kernel: Kernel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a stand-in during a capture, in which a device computes nothing.

    Static memory may hold anything then. Where a stand-in cannot use the lengths that it finds, it
    is called again with lengths of zero, so that its results have their shapes.
    """
    try:
        return kernel(*args, **kwargs)
    except (IndexError, RuntimeError):
        return kernel(*_without_lengths(args), **_without_lengths(kwargs))


def _without_lengths(tree: Any) -> Any:
    def zero(tensor: torch.Tensor) -> torch.Tensor:
        return tensor if tensor.is_floating_point() else torch.zeros_like(tensor)

    return tree_map_only(torch.Tensor, zero, tree)


@contextlib.contextmanager
def without_modes() -> Iterator[None]:
    """Let torch run as if no capture did."""
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        yield


class OngoingCapture:
    """A capture from its begin to its end."""

    def __init__(self, name: str, pool: AliasedPool, undefined: UndefinedBehaviour) -> None:
        self._pool = pool
        self.segment = TapeSegment(name, pool, undefined)
        random = DeviceRandomState(name, (), repeat=True)
        self.recorder = DeviceRecorder(name, pool, self.segment.number, random, None)
        self._modes = contextlib.ExitStack()
        self._calls = DeviceCalls(name, self.recorder)

    def begin(self) -> None:
        """Start to record."""
        self._pool.bury(self.segment.number - 1)  # what was let go between two passes
        self._pool.passes += 1
        self._modes.enter_context(self._calls)
        self._modes.enter_context(self.recorder)

    def end(self, *, failed: bool) -> None:
        """Stop, undo what the capture computed outside of the pool, and make it replayable."""
        self._modes.close()
        self._pool.bury(self.segment.number)
        self.recorder.undo()
        if failed:
            self.segment.reset()
        else:
            self.segment.load(self.recorder.operations)


class Kernel:
    """What the tape calls in a replay, with the names that it asks operations for."""

    namespace = "kernel"

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self._name = name
        self._function = function

    def name(self) -> str:
        """Return the symbol."""
        return self._name

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Run the stand-in."""
        return self._function(*arguments, **named)
