"""CUDA graphs, as ``torch.cuda.make_graphed_callables`` makes them.

Each pass is a graph of its own. All graphs of a pool share its private memory. Communication is
captured with the rest: NCCL's kernels become nodes of the graph, and all ranks of a group have to
replay it together.

Forwards and backwards are captured on one stream, torch's own for captures: autograd runs a
backward on the stream of its forward, and a backward on another stream would leave the capture.

A function that raises leaves the device unchanged. A call that the driver refuses during a capture,
or a transfer that has not ended at its end, does not: torch says that its allocator and generators
are then undefined. The graphs are dropped and the stream is restored, but a run that continues
should try eager steps first.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from ringproof.errors import InputError
from ringproof.reference.graphs.backend import Capture
from ringproof.reference.graphs.capture import Session, capture_all, check_warm_up
from ringproof.reference.graphs.replay import Graphed

# NCCL's watchdog thread queries events all the time, which "global" would forbid.
ERROR_MODE = "thread_local"


@dataclass(frozen=True)
class CudaBackend:
    """Captures on a GPU; see ``CaptureBackend``."""

    device: torch.device
    name: str = field(default="cuda", init=False)

    def new_pool(self) -> Any:
        """See ``CaptureBackend``."""
        return torch.cuda.graph_pool_handle()

    def capture(
        self, captures: Sequence[Capture], *, pool: Any | None = None, warm_up: int = 3
    ) -> tuple[Graphed, ...]:
        """See ``CaptureBackend``.

        Raises:
            InputError: There is no warm-up; or see ``CaptureBackend``.
        """
        check_warm_up(warm_up)
        with torch.cuda.device(self.device):
            session = _CudaSession(self.new_pool() if pool is None else pool)
            return capture_all(session, captures, warm_up)


class CudaSegment:
    """One pass as a graph; see ``replay.Segment``."""

    def __init__(self) -> None:
        self.graph = torch.cuda.CUDAGraph()
        self.private_bytes = 0

    def replay(self) -> None:
        """Replay on the current stream."""
        self.graph.replay()

    def reset(self) -> None:
        """Free the graph; its memory is freed with the last graph of the pool."""
        self.graph.reset()
        self.private_bytes = 0


class _CudaSession(Session):
    def __init__(self, pool: Any) -> None:
        self._pool, self._index = pool, torch.cuda.current_device()
        super().__init__((torch.cuda.default_generators[self._index],))

    @contextmanager
    def warming_up(self) -> Iterator[None]:
        """Use the stream of the captures, torch's own, which it makes when first asked.

        cuBLAS gets a workspace for each stream on first use. Made in a capture, it would be in the
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
        """Refuse a tensor on the host or on another GPU."""
        if tensor.get_device() != self._index:
            problem = f"it is on {tensor.device}, and not on the GPU of the capture"
            raise InputError(label, f"{problem}; move it there")

    @contextmanager
    def record(self, name: str, trained: Sequence[torch.Tensor] | None) -> Iterator[CudaSegment]:
        """Record a pass, and raise errors of the driver or of torch as an InputError.

        The end of a capture whose function raised raises another exception, which says less.
        """
        segment, errors = CudaSegment(), list[BaseException]()
        self.segments.append(segment)
        graph = torch.cuda.graph(segment.graph, pool=self._pool, capture_error_mode=ERROR_MODE)
        collects = gc.isenabled()
        gc.disable()  # destroying a graph during a capture would break the capture
        try:
            # Where its end raises, torch.cuda.graph stays on its own stream.
            with torch.cuda.stream(torch.cuda.current_stream()), graph:
                before = torch.cuda.memory_reserved()  # torch has emptied its cache to begin
                try:
                    yield segment
                except BaseException as error:
                    errors.append(error)
                    raise
        except Exception as last:
            first = errors[0] if errors else last
            if isinstance(first, RuntimeError):
                raise refused(name, first) from first
            raise first from None
        finally:
            if collects:
                gc.enable()
        segment.private_bytes = max(0, torch.cuda.memory_reserved() - before)

    def finish(self) -> None:
        """Wait for the device."""
        torch.cuda.synchronize()


def refused(name: str, error: RuntimeError) -> InputError:
    """Return an error with the driver's or torch's first line and the name of the pass."""
    remedy = "capture it on the CPU with the tape backend, which names the line"
    if isinstance(error, torch.cuda.OutOfMemoryError):
        remedy = "lower the capacity, the slots, or the CP sizes"
    first = str(error).strip().partition("\n")[0]
    return InputError(name, f"it cannot be captured: {first}; {remedy}")
