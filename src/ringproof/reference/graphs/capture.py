"""Warm-up, forward and backward of a capture, and the conditions that it requires.

This is the same for the CUDA backend and for the tape, which differ in how a pass is recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from itertools import pairwise

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ringproof.errors import InputError
from ringproof.reference.graphs.backend import Capture
from ringproof.reference.graphs.replay import Graphed, Outputs, Segment, StaticMemory


class Session:
    """How and where a backend records the passes of one call of ``capture``.

    Args:
        generators: The random generators whose state the capture must leave unchanged.
    """

    checked = True
    """Whether callables refuse silent errors; see :class:`Graphed`."""

    def __init__(self, generators: Sequence[torch.Generator]) -> None:
        self.generators, self.segments = tuple(generators), list[Segment]()

    def warming_up(self) -> AbstractContextManager[object]:
        """Return a context for the warm-up of all captures."""
        return nullcontext()

    def refer(self, tensor: torch.Tensor, label: str) -> None:
        """Name a tensor that the graph may read and write where it is."""

    def record(
        self, name: str, trained: Sequence[torch.Tensor] | None
    ) -> AbstractContextManager[Segment]:
        """Record a pass. Of a forward, ``trained`` are the leaves that may require a gradient."""
        raise NotImplementedError

    def finish(self) -> None:
        """End the capture, once nothing of the autograd graphs is left."""

    def abort(self) -> None:
        """Free whatever was recorded."""
        for segment in self.segments:
            segment.reset()
        self.segments.clear()


def capture_all(session: Session, captures: Sequence[Capture], warm_up: int) -> tuple[Graphed, ...]:
    """Warm up, record all forwards and then all backwards in reverse; undo everything on errors.

    Raises:
        InputError: See ``CaptureBackend.capture``.
    """
    check_captures(captures)
    drafts = [_Draft(capture) for capture in captures]
    try:
        with unchanged_state(session.generators):
            _record(session, drafts, warm_up)
    except BaseException:
        session.abort()
        drafts.clear()  # the traceback would keep them, and the memory of their autograd graphs
        raise
    return tuple(draft.graphed(checked=session.checked) for draft in drafts)


def _record(session: Session, drafts: Sequence[_Draft], warm_up: int) -> None:
    with session.warming_up():
        for draft in drafts:
            draft.warm_up(warm_up)
    for draft in drafts:
        draft.introduce(session)
    for draft in drafts:
        draft.forward(session)
    for draft in reversed(drafts):
        draft.backward(session)
    session.finish()


@contextmanager
def unchanged_state(generators: Sequence[torch.Generator]) -> Iterator[None]:
    """Restore the state of random generators on exit."""
    states = [(generator, generator.get_state()) for generator in generators]
    try:
        yield
    except BaseException:
        with suppress(RuntimeError):  # of a failed device; the first exception says more
            _set_states(states)
        raise
    _set_states(states)


def _set_states(states: Sequence[tuple[torch.Generator, torch.Tensor]]) -> None:
    for generator, state in states:
        generator.set_state(state)


class _Draft:
    """A capture that is being made."""

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
        """Run it without a graph, so that everything made on first use exists."""
        for _ in range(times):
            self._run(nullcontext())
            self.output_gradients = self._zero_gradients()
            self._differentiate(nullcontext())
        self.outputs = self.output_gradients = self.gradients = ()

    def introduce(self, session: Session) -> None:
        name = self.capture.name
        for index, tensor in enumerate(self.capture.inputs):
            session.refer(tensor, f"static input {index} of {name}")
        for parameter, tensor in self.capture.parameters.items():
            session.refer(tensor, f"parameter {parameter}")

    def forward(self, session: Session) -> None:
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
        found = iter(self.gradients)
        wanted = {id(tensor) for tensor in self.wanted} if self.gradients else set()
        tensors = (*self.capture.inputs, *self.trained)
        memory = StaticMemory(
            parameters=self.trained,
            outputs=self.outputs,
            output_gradients=self.output_gradients,
            gradients=tuple(next(found) if id(t) in wanted else None for t in tensors),
            single=self.single,
        )
        name, inputs = self.capture.name, self.capture.inputs
        return Graphed(name, inputs, memory, tuple(self.segments), checked=checked)

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


def check_warm_up(times: int) -> None:
    """Refuse a capture on a GPU without warm-up.

    Objects that are made on first use cannot be made during a capture: handles of cuBLAS,
    communicators of NCCL and their connections between ranks.

    Raises:
        InputError: There is no warm-up.
    """
    if times < 1:
        problem = "handles and communicators are made on first use, and no capture can make them"
        raise InputError("graph_warmup", f"{problem}; give 1 or more")


def check_captures(captures: Sequence[Capture]) -> None:
    """Refuse modes of torch that a graph would contain, and memory that cannot be static.

    Raises:
        InputError: Autocast has its cache on; inference mode or anomaly detection is active; an
            input is not a plain leaf, has a hook, or shares memory with another.
    """
    for kind in ("cuda", "cpu"):
        if torch.is_autocast_enabled(kind) and torch.is_autocast_cache_enabled():
            problem = f"its cache on {kind} would hand weights of the capture to every replay"
            remedy = "capture under torch.autocast(..., cache_enabled=False)"
            raise InputError("autocast", f"{problem}; {remedy}")
    if torch.is_inference_mode_enabled():
        problem = "what it makes can be neither overwritten nor differentiated later"
        remedy = "capture outside of it, or under torch.no_grad()"
        raise InputError("inference_mode", f"{problem}; {remedy}")
    if torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled():
        problem = "it reads every gradient, which synchronises the device during capture"
        raise InputError("detect_anomaly", f"{problem}; switch it off, or pass check_nan=False")
    for capture in captures:
        _check_inputs(capture)


def _check_inputs(capture: Capture) -> None:
    inputs = {f"input {index}": tensor for index, tensor in enumerate(capture.inputs)}
    everything = {**inputs, **capture.parameters}
    for name, tensor in everything.items():
        if is_traceable_wrapper_subclass(tensor):
            problem = f"{name} is a {type(tensor).__name__}, whose parts have no fixed address"
            remedy = "pass its local tensor, and wrap it inside of the function"
            raise InputError(capture.name, f"{problem}; {remedy}")
        if tensor._backward_hooks:
            problem = f"{name} has a hook on its gradient, which would run in the graph and again"
            raise InputError(capture.name, f"{problem} after it; register it after the capture")
    if len({id(tensor) for tensor in everything.values()}) < len(inputs) + len(capture.parameters):
        problem = "a tensor is there twice"
        raise InputError(capture.name, f"{problem}; name each input and parameter once")
    for name, tensor in inputs.items():
        plain = tensor.layout == torch.strided and tensor.is_leaf and tensor.is_contiguous()
        if not plain or tensor.is_inference():
            problem = f"{name} {tuple(tensor.shape)} is a view or a result"
            raise InputError(capture.name, f"{problem}; make a copy")
    _check_apart(capture.name, inputs)


def _check_apart(capture: str, inputs: Mapping[str, torch.Tensor]) -> None:
    """Refuse inputs that overlap: copying one argument in would overwrite another."""
    spans = sorted(
        (tensor.data_ptr(), tensor.data_ptr() + tensor.numel() * tensor.element_size(), name)
        for name, tensor in inputs.items()
        if tensor.numel()
    )
    for (_, end, name), (start, _, other) in pairwise(spans):
        if start < end:
            raise InputError(capture, f"{name} and {other} share memory; make copies")


def checked_outputs(name: str, outputs: Outputs) -> tuple[torch.Tensor | None, ...]:
    """Return the outputs of a function as a tuple.

    Raises:
        InputError: They are neither a plain tensor nor a tuple of plain tensors and ``None``.
    """
    found = (outputs,) if isinstance(outputs, torch.Tensor) else outputs
    plain = isinstance(found, tuple) and all(
        o is None or (isinstance(o, torch.Tensor) and not is_traceable_wrapper_subclass(o))
        for o in found
    )
    if not plain:
        kinds = [type(o).__name__ for o in found] if isinstance(found, tuple) else type(found)
        problem = f"a graph returns plain tensors only, not {kinds}"
        raise InputError(name, f"{problem}; return a tensor or a tuple of them")
    return found
