"""Warm-up, forward, backward: how captures are made, whatever records them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Protocol

import torch

from ringproof.reference.graphs.backend import Capture
from ringproof.reference.graphs.conditions import check_inputs, check_modes, checked_outputs
from ringproof.reference.graphs.order import Pass, checked_order
from ringproof.reference.graphs.replaying import Graphed, Segment, Surface


class Session(Protocol):
    """What a backend adds: how one pass is recorded, and where."""

    @property
    def generators(self) -> Sequence[torch.Generator]:
        """Those whose state the capture must leave as it was."""
        ...

    @property
    def checked(self) -> bool:
        """Whether callables refuse what would go wrong in silence; see :class:`Graphed`."""
        ...

    def warming_up(self) -> AbstractContextManager[object]:
        """Around the warm-up of all captures."""
        ...

    def refer(self, tensor: torch.Tensor, label: str) -> None:
        """Name a tensor that the graph may read and write where it is."""
        ...

    def record(
        self, name: str, trained: Sequence[torch.Tensor] | None
    ) -> AbstractContextManager[Segment]:
        """Record what runs inside.

        Args:
            name: Of the pass.
            trained: Of a forward, what the backward will differentiate by: a leaf that requires a
                gradient and is not among these would get none.
        """
        ...

    def finish(self) -> None:
        """All passes are recorded, and nothing of their autograd graphs is left."""
        ...

    def abort(self) -> None:
        """Give up: free whatever was recorded."""
        ...


def capture_in_order(
    session: Session, captures: Sequence[Capture], order: Sequence[Pass] | None, warm_up: int
) -> tuple[Graphed, ...]:
    """Warm up, record every pass, and undo everything if that fails.

    Raises:
        InputError: See ``CaptureBackend.capture``.
    """
    passes = checked_order(order, len(captures))
    check_modes()
    for capture in captures:
        check_inputs(capture)
    drafts = [_Draft(capture) for capture in captures]
    try:
        with unchanged_state(session.generators):
            _capture(session, drafts, passes, warm_up)
    except BaseException:
        session.abort()
        drafts.clear()  # the traceback would keep them, and the memory of their autograd graphs
        raise
    return tuple(draft.graphed(checked=session.checked) for draft in drafts)


def _capture(
    session: Session, drafts: Sequence[_Draft], passes: Sequence[Pass], warm_up: int
) -> None:
    with session.warming_up():
        for draft in drafts:
            draft.warm_up(warm_up)
    for draft in drafts:
        draft.introduce(session)
    for capture, direction in passes:
        if direction == "forward":
            drafts[capture].forward(session)
        else:
            drafts[capture].backward(session)
    session.finish()


@contextmanager
def unchanged_state(generators: Sequence[torch.Generator]) -> Iterator[None]:
    """Give random generators back the state that they came with."""
    states = [(generator, generator.get_state()) for generator in generators]
    try:
        yield
    except BaseException:
        with suppress(RuntimeError):  # of a device that broke off; what was raised first says more
            _set_states(states)
        raise
    _set_states(states)


def _set_states(states: Sequence[tuple[torch.Generator, torch.Tensor]]) -> None:
    for generator, state in states:
        generator.set_state(state)


class _Draft:
    """A capture in the making."""

    def __init__(self, capture: Capture) -> None:
        self.capture = capture
        trained = [p for p in capture.parameters.values() if p.requires_grad]
        self.trained = tuple(trained)
        self.wanted = tuple(t for t in (*capture.inputs, *trained) if t.requires_grad)
        self.outputs: tuple[torch.Tensor | None, ...] = ()
        self.segments: list[Segment] = []
        self.output_gradients: tuple[torch.Tensor | None, ...] = ()
        self.gradients: tuple[torch.Tensor | None, ...] = ()
        self.single = False

    def warm_up(self, times: int) -> None:
        """Run it as it is, so that whatever is made on first use is made before the capture."""
        for _ in range(times):
            self._run(nullcontext())
            self.output_gradients = self._zero_gradients()
            self._differentiate(nullcontext())
        self.outputs = self.output_gradients = self.gradients = ()

    def introduce(self, session: Session) -> None:
        """Tell the session whose memory it will meet."""
        name = self.capture.name
        for index, tensor in enumerate(self.capture.inputs):
            session.refer(tensor, f"static input {index} of {name}")
        for parameter, tensor in self.capture.parameters.items():
            session.refer(tensor, f"parameter {parameter}")

    def forward(self, session: Session) -> None:
        """Record the forward."""
        self._run(session.record(f"{self.capture.name}, forward", self.wanted))

    def backward(self, session: Session) -> None:
        """Record the backward, if there is one; the autograd graph is gone afterwards."""
        self.output_gradients = self._zero_gradients()
        for gradient in self.output_gradients:
            if gradient is not None:
                session.refer(gradient, f"gradient of an output of {self.capture.name}")
        if any(gradient is not None for gradient in self.output_gradients):
            self._differentiate(session.record(f"{self.capture.name}, backward", None))
        self.outputs = tuple(None if o is None else o.detach() for o in self.outputs)

    def graphed(self, *, checked: bool) -> Graphed:
        """The finished callable."""
        found = iter(self.gradients)
        wanted = {id(tensor) for tensor in self.wanted} if self.gradients else set()
        tensors = (*self.capture.inputs, *self.trained)
        surface = Surface(
            inputs=self.capture.inputs,
            parameters=self.trained,
            outputs=self.outputs,
            output_gradients=self.output_gradients,
            gradients=tuple(next(found) if id(t) in wanted else None for t in tensors),
            single=self.single,
        )
        return Graphed(self.capture.name, surface, tuple(self.segments), checked=checked)

    def _run(self, recording: AbstractContextManager[Segment | None]) -> None:
        with torch.enable_grad(), recording as segment:
            outputs = self.capture.function(*self.capture.inputs)
        self.single = isinstance(outputs, torch.Tensor)
        self.outputs = checked_outputs(self.capture.name, outputs)
        if segment is not None:
            self.segments.append(segment)

    def _zero_gradients(self) -> tuple[torch.Tensor | None, ...]:
        return tuple(
            torch.zeros_like(o) if o is not None and o.requires_grad and self.wanted else None
            for o in self.outputs
        )

    def _differentiate(self, recording: AbstractContextManager[Segment | None]) -> None:
        pairs = zip(self.outputs, self.output_gradients, strict=True)
        roots = [(output, gradient) for output, gradient in pairs if gradient is not None]
        if not roots:
            return
        outputs, output_gradients = zip(*roots, strict=True)
        with recording as segment:
            self.gradients = torch.autograd.grad(
                outputs, self.wanted, grad_outputs=output_gradients, allow_unused=True
            )
        if segment is not None:
            self.segments.append(segment)
