"""The tape as a capture backend, and the choice of a backend for a device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from ringproof.errors import InputError, check_name, shown
from ringproof.reference.graphs.backend import Capture, CaptureBackend
from ringproof.reference.graphs.capture import Session, capture_all
from ringproof.reference.graphs.cuda import CudaBackend
from ringproof.reference.graphs.names import DEVICES, NAMES
from ringproof.reference.graphs.replay import Graphed
from ringproof.reference.graphs.tape.memory import TapePool
from ringproof.reference.graphs.tape.recorder import (
    HostCalls,
    RandomState,
    Recorder,
    refuse_while_recording,
)
from ringproof.reference.graphs.tape.segment import TapeSegment, UndefinedBehaviour


def choose_backend(name: str, device: torch.device) -> CaptureBackend:
    """Return a backend by name; ``auto`` is ``cuda`` on a GPU and ``tape`` on the CPU.

    Raises:
        InputError: The name is unknown, the backend does not work on the device, or there is no
            GPU.
    """
    if name == "auto":
        name = "cuda" if device.type == "cuda" else "tape"
    check_name("--graph-backend", name, NAMES)
    if DEVICES[name] == "cuda" and not torch.cuda.is_available():
        problem = f"there is no GPU here for {shown(name)}"
        raise InputError("--graph-backend", f"{problem}; use tape, or auto")
    if DEVICES[name] != device.type:
        other = "cuda" if device.type == "cuda" else "tape"
        problem = f"{shown(name)} does not work on {device.type}, where the model is"
        raise InputError("--graph-backend", f"{problem}; use {other}, or auto")
    return TapeBackend() if name == "tape" else CudaBackend(device)


@dataclass(frozen=True)
class TapeBackend:
    """Captures on the CPU; see ``CaptureBackend``.

    Args:
        undefined: Options of a replay where a device's behaviour is undefined.
        generators: Random generators that advance at each replay, beside the default one.
        repeat_unregistered: Accept functions that draw from other generators, and draw the same
            numbers at each replay, as kernels do whose seed is a number of the capture.
    """

    undefined: UndefinedBehaviour = field(default_factory=UndefinedBehaviour)
    generators: tuple[torch.Generator, ...] = ()
    repeat_unregistered: bool = False
    name: str = field(default="tape", init=False)

    def new_pool(self) -> TapePool:
        """See ``CaptureBackend``."""
        return TapePool()

    def capture(
        self, captures: Sequence[Capture], *, pool: TapePool | None = None, warm_up: int = 3
    ) -> tuple[Graphed, ...]:
        """See ``CaptureBackend``."""
        refuse_while_recording(", ".join(capture.name for capture in captures))
        session = _TapeSession(self, self.new_pool() if pool is None else pool)
        return capture_all(session, captures, warm_up)


class _TapeSession(Session):
    def __init__(self, backend: TapeBackend, pool: TapePool) -> None:
        super().__init__((torch.default_generator, *backend.generators))
        self.checked = not backend.undefined.faithful
        self._backend, self._pool = backend, pool
        self._recorded: list[tuple[TapeSegment, Recorder]] = []

    def refer(self, tensor: torch.Tensor, label: str) -> None:
        self._pool.add(tensor, label, owned=False)

    @contextmanager
    def record(self, name: str, trained: Sequence[torch.Tensor] | None) -> Iterator[TapeSegment]:
        random = RandomState(name, self.generators, repeat=self._backend.repeat_unregistered)
        segment = TapeSegment(name, self._pool, self._backend.undefined)
        recorder = Recorder(name, self._pool, segment.number, random, trained)
        self.segments.append(segment)
        self._recorded.append((segment, recorder))
        self._pool.bury(segment.number - 1)  # memory that was freed between two passes
        self._pool.passes += 1
        with HostCalls(name, recorder), recorder:
            yield segment
        random.check("the end")
        self._pool.bury(segment.number)

    def finish(self) -> None:
        for segment, recorder in self._recorded:
            segment.load(recorder.operations)
        self._undo()
        for segment, _ in self._recorded:
            segment.leave_nothing()

    def abort(self) -> None:
        self._undo()
        self._recorded.clear()
        super().abort()

    def _undo(self) -> None:
        for _, recorder in reversed(self._recorded):
            recorder.undo()
