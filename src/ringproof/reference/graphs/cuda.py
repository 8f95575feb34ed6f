"""CUDA graphs, as ``torch.cuda.make_graphed_callables`` makes them, in any order of passes.

Each pass is a graph of its own. All graphs of a pool share its private memory; ``order`` says what
that asks of replays. Communication is captured with the rest: NCCL's kernels become nodes of the
graph, and all ranks of a group have to replay it together.

Forwards and backwards are captured on one stream, torch's own for captures: autograd runs a
backward on the stream of its forward, and one that left it would leave the capture.

A function that raises leaves the device as it was. A call that the driver refuses during a capture,
or a transfer that is still under way at its end, does not: torch says that its allocator and
generators are then in no defined state. The graphs are dropped and the stream is given back, but a
run that goes on should try eager steps first.
"""

from __future__ import annotations

import gc
import inspect
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from ringproof.errors import InputError
from ringproof.reference.graphs.backend import Capture
from ringproof.reference.graphs.capturing import capture_in_order
from ringproof.reference.graphs.conditions import check_warm_up
from ringproof.reference.graphs.order import Pass
from ringproof.reference.graphs.replaying import Graphed

# The thread that watches over NCCL queries events all the time, which "global" would forbid.
ERROR_MODE = "thread_local"


@dataclass(frozen=True)
class CudaBackend:
    """See ``CaptureBackend``.

    Args:
        device: A GPU.
        check_liveness: Let torch refuse replays that would read a freed tensor from outside; has
            no effect where ``torch.cuda.graph`` knows no ``check_input_liveness``. It slows every
            replay.
    """

    device: torch.device
    check_liveness: bool = False
    name: str = field(default="cuda", init=False)

    def new_pool(self) -> Any:
        """See ``CaptureBackend``."""
        return torch.cuda.graph_pool_handle()

    def capture(
        self,
        captures: Sequence[Capture],
        *,
        order: Sequence[Pass] | None = None,
        pool: Any | None = None,
        warm_up: int = 3,
        generators: Sequence[torch.Generator] = (),
    ) -> tuple[Graphed, ...]:
        """See ``CaptureBackend``. The device's own generator is registered always.

        Raises:
            InputError: No warm-up; or see ``CaptureBackend``.
        """
        check_warm_up(warm_up)
        with torch.cuda.device(self.device):
            own = torch.cuda.default_generators[torch.cuda.current_device()]
            memory = self.new_pool() if pool is None else pool
            session = _CudaSession(self, memory, (own, *generators))
            return capture_in_order(session, captures, order, warm_up)


class CudaSegment:
    """One pass as a graph.

    Args:
        name: Of the pass.
        checked: Whether torch refuses replays.
    """

    def __init__(self, name: str, *, checked: bool) -> None:
        self.name, self._checked = name, checked
        self.graph = torch.cuda.CUDAGraph()
        self.private_bytes = 0

    def replay(self) -> None:
        """On the current stream.

        Raises:
            InputError: With ``check_liveness``, a tensor from outside was freed.
        """
        try:
            self.graph.replay()
        except RuntimeError as error:
            if not self._checked:
                raise  # the device failed, perhaps long before
            raise refused(self.name, error, "replayed") from error

    def reset(self) -> None:
        """Free the graph; its memory goes with the last graph of the pool."""
        self.graph.reset()
        self.private_bytes = 0


class _CudaSession:
    """See ``capturing.Session``."""

    checked = True

    def __init__(
        self, backend: CudaBackend, pool: Any, generators: tuple[torch.Generator, ...]
    ) -> None:
        self.generators = generators
        self._backend, self._pool, self._index = backend, pool, torch.cuda.current_device()
        self._segments: list[CudaSegment] = []

    @contextmanager
    def warming_up(self) -> Iterator[None]:
        """On the stream of the captures, torch's own, which it makes when first asked.

        cuBLAS gets a workspace for each stream on first use. Made in a capture, it would lie in the
        pool, and stay there when the graphs are gone.
        """
        torch.cuda.synchronize()
        side = torch.cuda.graph(torch.cuda.CUDAGraph()).capture_stream
        side.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(side):
                yield
        finally:
            torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()

    def refer(self, tensor: torch.Tensor, label: str) -> None:
        """A device knows no names; what is on the host or another GPU cannot be captured."""
        if tensor.get_device() != self._index:
            raise InputError(label, tensor.device, "not on the GPU of the capture", "move it there")

    @contextmanager
    def record(self, name: str, trained: Sequence[torch.Tensor] | None) -> Iterator[CudaSegment]:
        segment = CudaSegment(name, checked=self._liveness())
        self._segments.append(segment)
        for generator in self.generators[1:]:  # torch registers the device's own
            segment.graph.register_generator_state(generator)
        with (
            _raised_by_name(name) as first,
            _own_stream(),
            no_collection(),
            self._graph(segment),
            first,
        ):
            before = torch.cuda.memory_reserved()  # torch has emptied its cache to begin
            yield segment
        segment.private_bytes = max(0, torch.cuda.memory_reserved() - before)

    def _graph(self, segment: CudaSegment) -> AbstractContextManager[None]:
        options = {"check_input_liveness": True} if self._liveness() else {}
        made: AbstractContextManager[None] = torch.cuda.graph(
            segment.graph, pool=self._pool, capture_error_mode=ERROR_MODE, **options
        )
        return made

    def finish(self) -> None:
        torch.cuda.synchronize()

    def abort(self) -> None:
        for segment in self._segments:
            segment.reset()
        self._segments.clear()

    def _liveness(self) -> bool:
        known = inspect.signature(torch.cuda.graph.__init__).parameters
        return self._backend.check_liveness and "check_input_liveness" in known


class _First:
    """Remembers what the function raised: the end of a capture that failed raises once more."""

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def __enter__(self) -> None:
        """Nothing to do."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self.error = error


@contextmanager
def _raised_by_name(name: str) -> Iterator[_First]:
    """Raise what the function raised; if that came from the driver or torch, as an InputError."""
    first = _First()
    try:
        yield first
    except Exception as last:
        error = first.error or last
        if isinstance(error, RuntimeError):
            raise refused(name, error, "captured") from error
        if error is last:
            raise
        raise error from None


@contextmanager
def _own_stream() -> Iterator[None]:
    """Go back to the current stream: ``torch.cuda.graph`` stays on its own if its end raises."""
    with torch.cuda.stream(torch.cuda.current_stream()):
        yield


@contextmanager
def no_collection() -> Iterator[None]:
    """Keep Python from finding garbage: to destroy a graph there would break the capture."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def refused(name: str, error: RuntimeError, done: str) -> InputError:
    """The driver's or torch's first line, with the pass that it speaks of.

    Args:
        name: Of the pass.
        error: What was raised.
        done: ``captured`` or ``replayed``.
    """
    remedy = "capture it on the CPU with the tape backend, which names the line"
    if isinstance(error, torch.cuda.OutOfMemoryError):
        remedy = "lower the capacity, the slots, or the CP sizes"
    first = str(error).strip().partition("\n")[0]
    return InputError(name, None, f"cannot be {done}: {first}", remedy)
