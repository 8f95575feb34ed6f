"""The classes and functions of ``torch.cuda`` by which upstream captures and replays graphs."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ringproof.errors import InputError
from ringproof.reference.graphs.tape.segment import TapeSegment, UndefinedBehaviour
from ringproof.rehearsal.protocol.reports import GraphCapture
from ringproof.rehearsal.standins.graphs.memory import AliasedPool, allocator, refer
from ringproof.rehearsal.standins.graphs.recording import Kernel, OngoingCapture
from ringproof.rehearsal.standins.guard import missing, put

PoolId = tuple[int, int]

ALLOCATOR = (
    "_cuda_beginAllocateCurrentThreadToPool", "_cuda_beginAllocateCurrentStreamToPool",
    "_cuda_endAllocateToPool", "_cuda_releasePool", "_cuda_cudaHostAllocator",
    "_tensors_data_ptrs_at_indices_equal", "_construct_CUDA_Tensor_From_Storage_And_Metadata",
)  # fmt: skip
"""Functions of the caching allocator that have no counterpart on the tape."""


@dataclass
class Tapes:
    """All graphs of a process, and the capture that runs.

    Attributes:
        uses: Graphs in the order of their captures.
    """

    uses: list[GraphCapture] = field(default_factory=list)
    undefined: UndefinedBehaviour = field(default_factory=UndefinedBehaviour)
    capture: OngoingCapture | None = None
    _pools: dict[PoolId, AliasedPool] = field(default_factory=dict)
    _fresh: dict[PoolId, list[TapeSegment]] = field(default_factory=dict)
    _ids: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def captures(self) -> bool:
        """Return whether a capture runs."""
        return self.capture is not None

    def new_id(self) -> PoolId:
        """Return a handle of a pool that is not in use."""
        return 0, next(self._ids)

    def pool(self, name: PoolId) -> AliasedPool:
        """Return the pool of a handle."""
        if name not in self._pools:
            self._pools[name] = AliasedPool()
            self._fresh[name] = []
        return self._pools[name]

    def begin(self, name: PoolId) -> OngoingCapture:
        """Begin a capture into a pool.

        Raises:
            InputError: Another one runs.
        """
        if self.capture is not None:
            raise InputError("torch.cuda.graph", "another capture still runs; end it first")
        pool = self.pool(name)
        self.capture = OngoingCapture(f"graph {len(self.uses) + 1}", pool, self.undefined)
        self.capture.begin()
        return self.capture

    def end(self, name: PoolId, *, failed: bool) -> int | None:
        """End the capture; return its index in `uses`, unless it failed."""
        assert self.capture is not None
        ended, self.capture = self.capture, None
        ended.end(failed=failed)
        if failed:
            return None
        self._fresh[name].append(ended.segment)
        pool, position = list(self._pools).index(name), ended.segment.number
        spaces = [operation.function.namespace for operation in ended.segment.operations]
        held = len(spaces), spaces.count(Kernel.namespace), spaces.count("c10d")
        self.uses.append(GraphCapture(pool, position, *held, ended.segment.private_bytes, 0))
        return len(self.uses) - 1

    def leave_nothing(self, name: PoolId) -> None:
        """Destroy what the captures since the last replay of a pool have computed."""
        fresh = self._fresh[name]
        while fresh:
            fresh.pop(0).leave_nothing()

    def run_or_record(self, symbol: str, action: Callable[[], None]) -> None:
        """Do something on the host; during a capture also at each replay."""
        if self.capture is None:
            action()
        else:
            self.capture.recorder.record_host(symbol, action)

    def tensor_of(self, reference: Any) -> torch.Tensor:
        """Return the tensor of upstream's weak reference."""
        return refer(iter(self._pools.values()), reference)


class Graph:
    """``torch.cuda.CUDAGraph`` on the tape; `install` makes a class of it that knows its tapes."""

    tapes: Tapes

    def __init__(self, keep_graph: bool = False) -> None:
        self._pool: PoolId | None = None
        self._segment: TapeSegment | None = None
        self._use: int | None = None
        self.generators: list[torch.Generator] = []

    def register_generator_state(self, generator: torch.Generator) -> None:
        """Let replays advance a state."""
        self.generators.append(generator)

    def pool(self) -> PoolId:
        """Return the handle of the graph's pool."""
        if self._pool is None:
            self._pool = self.tapes.new_id()
        return self._pool

    def capture_begin(self, pool: PoolId | None = None, capture_error_mode: str = "") -> None:
        """Begin a capture into a pool, a new one unless given."""
        self._pool = pool or self.tapes.new_id()
        self._segment = self.tapes.begin(self._pool).segment

    def capture_end(self, *, failed: bool = False) -> None:
        """End the capture."""
        assert self._pool is not None
        self._use = self.tapes.end(self._pool, failed=failed)
        if failed:
            self._segment = None

    def replay(self) -> None:
        """Run the recorded operations.

        Raises:
            RuntimeError: Nothing was captured, as on a device.
        """
        if self._segment is None or self._pool is None or self._use is None:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        # A capture on a device computes nothing: what was read before a replay was garbage.
        self.tapes.leave_nothing(self._pool)
        use = self.tapes.uses[self._use]
        self.tapes.uses[self._use] = replace(use, replays=use.replays + 1)
        self._segment.replay()

    def reset(self) -> None:
        """Forget the capture."""
        if self._segment is not None:
            self._segment.reset()
        self._segment = self._use = None

    def _nothing(self, *_: object) -> None:
        """The tape needs no preparation, keeps everything, and has no picture."""

    instantiate = enable_debug_mode = debug_dump = _nothing


@contextlib.contextmanager
def graph(
    cuda_graph: Graph, pool: PoolId | None = None, *_: object, **__: object
) -> Iterator[None]:
    """``torch.cuda.graph``: a capture for the length of a ``with`` block."""
    cuda_graph.capture_begin(pool)
    try:
        yield
    except BaseException:
        cuda_graph.capture_end(failed=True)
        raise
    cuda_graph.capture_end()


def install(devices: int) -> Tapes:
    """Put the tape in the place of CUDA graphs, for the rest of this process."""
    tapes = Tapes()
    captured = type("CUDAGraph", (Graph,), {"tapes": tapes})
    record = functools.partial(tapes.run_or_record, "switch of a generator's state")
    for holder in (torch.cuda, torch.cuda.graphs):
        put((
            (holder, "CUDAGraph", captured),
            (holder, "graph", graph),
            (holder, "graph_pool_handle", tapes.new_id),
            (holder, "is_current_stream_capturing", tapes.captures),
        ))  # fmt: skip
    put((
        (torch._C, "_graph_pool_handle", tapes.new_id),
        (torch._C, "_cuda_isCurrentStreamCapturing", tapes.captures),
        (torch.cuda, "synchronize", _outside(tapes, "torch.cuda.synchronize")),
        (torch.cuda, "default_generators", (DeviceGenerator(record),) * devices),
        (torch, "as_tensor", _with_references(tapes, torch.as_tensor)),
        *((torch._C, name, missing(f"torch._C.{name}")) for name in ALLOCATOR),
        *allocator(tapes.new_id),
    ))  # fmt: skip
    return tapes


def one_operation_each(tapes: Tapes) -> Callable[[str, Callable[..., Any]], Callable[..., Any]]:
    """Return a wrapper by symbol for stand-ins of kernels.

    While a capture runs, each call of a stand-in is recorded as one operation.
    """

    def wrap(symbol: str, function: Callable[..., Any]) -> Callable[..., Any]:
        kernel = Kernel(symbol, function)

        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            if tapes.capture is None:
                return function(*arguments, **named)
            return tapes.capture.recorder.record_kernel(kernel, arguments, named)

        return call

    return wrap


def _outside(tapes: Tapes, symbol: str) -> Callable[..., None]:
    """Return a function that does nothing, and that no device can run while it captures."""

    def call(*_: Any, **__: Any) -> None:
        if tapes.captures():
            raise InputError(symbol, f"{symbol} was called during a capture; call it outside")

    return call


def _with_references(tapes: Tapes, as_tensor: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``torch.as_tensor`` for objects that give a device's address only."""

    @functools.wraps(as_tensor)
    def call(data: Any, *arguments: Any, **named: Any) -> Any:
        if not isinstance(data, torch.Tensor) and hasattr(data, "__cuda_array_interface__"):
            return tapes.tensor_of(data)
        return as_tensor(data, *arguments, **named)

    return call


Record = Callable[[Callable[[], None]], None]


class GeneratorState(torch.Generator):
    """A state that a generator can be switched to."""

    def clone_state(self) -> GeneratorState:
        """Return another state with the same content."""
        return _state(self.get_state())

    def graphsafe_get_state(self) -> GeneratorState:
        """Return the state itself."""
        return self

    def graphsafe_set_state(self, new_state: GeneratorState) -> GeneratorState:
        """Take over the content of another state."""
        self.set_state(new_state.get_state())
        return self


def _state(content: torch.Tensor) -> GeneratorState:
    found = GeneratorState()
    found.set_state(content)
    return found


class DeviceGenerator(torch.Generator):
    """The default generator of a device: the CPU's, with states that can be switched."""

    def __new__(cls, record: Record) -> Any:
        """Make a generator whose own numbers nobody draws."""
        return super().__new__(cls)

    def __init__(self, record: Record) -> None:
        self._record = record
        self._current = _state(torch.get_rng_state())

    # The content of the current state is that of the CPU's default generator.
    get_state = torch.default_generator.get_state
    set_state = torch.default_generator.set_state
    manual_seed = torch.default_generator.manual_seed
    initial_seed = torch.default_generator.initial_seed

    def clone_state(self) -> GeneratorState:
        """Return a new state with the content of the current one."""
        return _state(self.get_state())

    def graphsafe_get_state(self) -> GeneratorState:
        """Return the current state."""
        self._current.set_state(self.get_state())
        return self._current

    def graphsafe_set_state(self, new_state: GeneratorState) -> DeviceGenerator:
        """Switch to another state; in a capture, at each replay."""

        def switch() -> None:
            self._current.set_state(self.get_state())
            torch.default_generator.set_state(new_state.get_state())
            self._current = new_state

        self._record(switch)
        return self
