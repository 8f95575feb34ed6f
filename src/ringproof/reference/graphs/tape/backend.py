"""The tape as a capture backend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

import torch

from ringproof.reference.graphs.backend import Capture
from ringproof.reference.graphs.capturing import capture_in_order
from ringproof.reference.graphs.order import Pass
from ringproof.reference.graphs.replaying import Graphed
from ringproof.reference.graphs.tape.calls import HostCalls
from ringproof.reference.graphs.tape.chance import Chance
from ringproof.reference.graphs.tape.memory import TapePool
from ringproof.reference.graphs.tape.recorder import Recorder, refuse_while_recording
from ringproof.reference.graphs.tape.segment import Realism, TapeSegment


@dataclass(frozen=True)
class TapeBackend:
    """See ``CaptureBackend``; tensors on the CPU only.

    Args:
        realism: What a replay does where a device's behaviour is undefined.
        repeat_unregistered: Let functions draw from generators that are not registered, and draw
            the same numbers at each replay, as kernels do whose seed is a number of the capture.
    """

    realism: Realism = field(default_factory=Realism)
    repeat_unregistered: bool = False
    name: str = field(default="tape", init=False)

    def new_pool(self) -> TapePool:
        """See ``CaptureBackend``."""
        return TapePool(reuses=True)

    def capture(
        self,
        captures: Sequence[Capture],
        *,
        order: Sequence[Pass] | None = None,
        pool: TapePool | None = None,
        warm_up: int = 3,
        generators: Sequence[torch.Generator] = (),
    ) -> tuple[Graphed, ...]:
        """See ``CaptureBackend``."""
        refuse_while_recording(", ".join(capture.name for capture in captures))
        registered = (torch.default_generator, *generators)
        memory = self.new_pool() if pool is None else pool
        session = _TapeSession(self, memory, registered)
        return capture_in_order(session, captures, order, warm_up)


class _TapeSession:
    """See ``capturing.Session``."""

    def __init__(
        self, backend: TapeBackend, pool: TapePool, generators: tuple[torch.Generator, ...]
    ) -> None:
        self.generators = generators
        self.checked = not backend.realism.faithful
        self._backend, self._pool = backend, pool
        self._recorded: list[tuple[TapeSegment, Recorder]] = []

    def warming_up(self) -> AbstractContextManager[None]:
        return nullcontext()

    def refer(self, tensor: torch.Tensor, label: str) -> None:
        self._pool.add(tensor, label, owned=False)

    @contextmanager
    def record(self, name: str, trained: Sequence[torch.Tensor] | None) -> Iterator[TapeSegment]:
        chance = Chance(name, self.generators, repeat=self._backend.repeat_unregistered)
        segment = TapeSegment(name, self._pool, self._backend.realism)
        recorder = Recorder(name, self._pool, segment.number, chance, trained)
        self._recorded.append((segment, recorder))
        self._pool.bury(segment.number - 1)  # what was let go between two passes
        self._pool.passes += 1
        with HostCalls(name, recorder), recorder:
            yield segment
        chance.check("the end")
        self._pool.bury(segment.number)

    def finish(self) -> None:
        for segment, recorder in self._recorded:
            segment.load(recorder.operations)
        self._undo()
        for segment, _ in self._recorded:
            segment.leave_nothing()

    def abort(self) -> None:
        self._undo()
        for segment, _ in self._recorded:
            segment.reset()
        self._recorded.clear()

    def _undo(self) -> None:
        for _, recorder in reversed(self._recorded):
            recorder.undo()
