"""CUDA graphs, as ``torch.cuda.make_graphed_callables`` makes them, in any order of passes.

Each pass is a graph of its own. All graphs of a pool share its private memory; ``order`` says what
that asks of replays. Communication is captured with the rest: NCCL's kernels become nodes of the
graph, and all ranks of a group have to replay it together.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from ringproof.errors import InputError
from ringproof.reference.graphs.backend import Capture
from ringproof.reference.graphs.capturing import capture_in_order
from ringproof.reference.graphs.order import Pass
from ringproof.reference.graphs.replaying import Graphed

# The thread that watches over NCCL queries events all the time, which "global" would forbid.
ERROR_MODE = "thread_local"


@dataclass(frozen=True)
class CudaBackend:
    """See ``CaptureBackend``.

    Args:
        device: A GPU.
        check_liveness: Let torch refuse replays that would read a freed tensor from outside, where
            it can (from 2.11 or so); it slows every replay.
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
        """See ``CaptureBackend``. The device's own generator is registered always."""
        with torch.cuda.device(self.device):
            own = torch.cuda.default_generators[torch.cuda.current_device()]
            memory = self.new_pool() if pool is None else pool
            session = _CudaSession(self, memory, (own, *generators))
            return capture_in_order(session, captures, order, warm_up)


class CudaSegment:
    """One pass as a graph."""

    def __init__(self, name: str) -> None:
        self.name = name
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
            raise _refused(self.name, error, "replayed") from error

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
        self._backend, self._pool = backend, pool
        self._segments: list[CudaSegment] = []

    @contextmanager
    def warming_up(self) -> Iterator[None]:
        """On a side stream, as captures are: what is made on first use is made for such a one."""
        torch.cuda.synchronize()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            yield
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()

    def refer(self, tensor: torch.Tensor, label: str) -> None:
        """A device knows no names; what is on another one cannot be captured."""
        if not tensor.is_cuda:
            raise InputError(label, tensor.device, "not on the GPU", "move it there")

    @contextmanager
    def record(self, name: str, trained: Sequence[torch.Tensor] | None) -> Iterator[CudaSegment]:
        segment = CudaSegment(name)
        self._segments.append(segment)
        for generator in self.generators[1:]:  # torch registers the device's own
            segment.graph.register_generator_state(generator)
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved()
        options = {"check_input_liveness": True} if self._liveness() else {}
        try:
            with torch.cuda.graph(
                segment.graph, pool=self._pool, capture_error_mode=ERROR_MODE, **options
            ):
                yield segment
        except InputError:
            raise
        except RuntimeError as error:
            raise _refused(name, error, "captured") from error
        segment.private_bytes = max(0, torch.cuda.memory_reserved() - before)

    def finish(self) -> None:
        torch.cuda.synchronize()

    def abort(self) -> None:
        for segment in self._segments:
            segment.reset()
        self._segments.clear()

    def _liveness(self) -> bool:
        known = inspect.signature(torch.cuda.graph.__init__).parameters
        return self._backend.check_liveness and "check_input_liveness" in known


def _refused(name: str, error: RuntimeError, done: str) -> InputError:
    """The driver's or torch's first line, with the pass that it speaks of.

    The end of a capture that has failed raises once more, and says less.
    """
    if isinstance(error.__context__, InputError):
        return error.__context__
    if isinstance(error.__context__, RuntimeError):
        error = error.__context__
    first = str(error).strip().partition("\n")[0]
    return InputError(
        name,
        None,
        f"cannot be {done}: {first}",
        "capture it on the CPU with the tape backend, which names the line",
    )
