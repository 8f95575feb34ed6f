"""The backends on a GPU against a stand-in for the device, and which backend is used where."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from checks.graphs.captures import captures, equal, perceptron, results, tensor
from ringproof.errors import InputError
from ringproof.reference.graphs import transformer_engine
from ringproof.reference.graphs.backend import GraphMemory, Replays
from ringproof.reference.graphs.cuda import CudaBackend
from ringproof.reference.graphs.tape.backend import TapeBackend, choose_backend
from ringproof.reference.graphs.transformer_engine import TransformerEngineBackend


class Device:
    """Notes what happens to graphs and streams; computes nothing."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.graphs = 0
        self.current = "main"
        self.collects: list[bool] = []

    def graph(self) -> Any:
        number, self.graphs = self.graphs, self.graphs + 1
        return Graph(self, number)

    def recording(self, graph: Any, **options: Any) -> Any:
        return Recording(self, graph, **options)

    @contextmanager
    def stream(self, one: str) -> Iterator[None]:
        before, self.current = self.current, one
        if one != before:
            self.events.append(f"on {one}")
        try:
            yield
        finally:
            self.current = before


class Recording:
    """As ``torch.cuda.graph``: where the end of a capture raises, it stays on its stream."""

    def __init__(
        self, device: Device, graph: Any, *, pool: Any = None, capture_error_mode: str = ""
    ) -> None:
        self.device, self.number, self.options = device, graph.number, (pool, capture_error_mode)
        self.capture_stream, self.before = Stream("capture"), device.current

    def __enter__(self) -> None:
        pool, mode = self.options
        self.device.events.append(f"record {self.number} {pool} {mode}")
        self.device.collects.append(gc.isenabled())
        self.before, self.device.current = self.device.current, "capture"

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        if isinstance(error, RuntimeError | KeyError):
            raise RuntimeError("operation failed due to a previous error")
        self.device.current = self.before


class Graph:
    def __init__(self, device: Device, number: int) -> None:
        self.device, self.number = device, number

    def replay(self) -> None:
        self.device.events.append(f"replay {self.number}")

    def reset(self) -> None:
        self.device.events.append(f"reset {self.number}")


class Stream(str):
    """Its name."""

    __slots__ = ()

    def wait_stream(self, _: Any) -> None:
        """Nothing to wait for."""


@contextmanager
def nowhere(_: Any) -> Iterator[None]:
    yield


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    made = Device()
    stand_ins = {
        "CUDAGraph": made.graph,
        "current_device": lambda: 0,
        "current_stream": lambda: Stream(made.current),
        "default_generators": (torch.default_generator,),
        "device": nowhere,
        "empty_cache": lambda: made.events.append("empty cache"),
        "graph": made.recording,
        "graph_pool_handle": lambda: "pool",
        "memory_reserved": lambda: 100 * len(made.events),
        "stream": made.stream,
        "synchronize": lambda: None,
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(torch.Tensor, "get_device", lambda _: 0)
    return made


def frozen() -> torch.nn.Module:
    return perceptron().requires_grad_(False)


BACKEND = CudaBackend(torch.device("cuda", 0))


def test_capture_and_replay(device: Device) -> None:
    graphed = BACKEND.capture(captures(frozen(), frozen()))
    numbers = range(1, 5)  # 0 was asked for its stream only
    records = [f"record {number} pool thread_local" for number in numbers]
    assert device.events == ["on capture", *records]
    assert device.collects == [False] * 4
    assert gc.isenabled()
    device.events.clear()
    graphed[1](tensor(5, 4, grad=True)).sum().backward()
    assert device.events == ["replay 2", "replay 3"]
    graphed[1].reset()
    assert device.events[2:] == ["reset 2", "reset 3"]


class Breaks:
    """Works in the warm-up, and raises in the capture."""

    def __init__(self, error: Exception) -> None:
        self.error, self.runs = error, 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.runs += 1
        if self.runs > 1:
            raise self.error
        return x * 2


REFUSED = RuntimeError("operation not permitted when stream is capturing\nmore lines")
FULL = torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nmore lines")


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (REFUSED, InputError, "cannot be captured: operation not permitted when .*; capture it on"),
        (FULL, InputError, "cannot be captured: CUDA out of memory.*; lower the capacity"),
        (KeyError("of the function"), KeyError, "of the function"),
        (InputError("x", "bad; do not"), InputError, "^x: bad; do not$"),
    ],
)
def test_a_broken_capture_is_undone(
    error: Exception, kind: type[Exception], said: str, device: Device
) -> None:
    """What the function raised is reported, whatever the end of the capture raises after it."""
    with pytest.raises(kind, match=said):
        BACKEND.capture(captures(frozen(), Breaks(error)), warm_up=1)
    assert device.events[-2:] == ["reset 1", "reset 2"]
    assert device.current == "main"
    assert gc.isenabled()


def test_no_warm_up_is_refused(device: Device) -> None:
    with pytest.raises(InputError, match="graph_warmup: handles and communicators"):
        BACKEND.capture(captures(frozen()), warm_up=0)
    assert device.events == []


@pytest.mark.parametrize("index", [-1, 1])
def test_a_tensor_elsewhere_is_refused(
    index: int, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the host, or on another GPU."""
    monkeypatch.setattr(torch.Tensor, "get_device", lambda _: index)
    with pytest.raises(
        InputError, match="static input 0 of slot 0: it is on cpu, and not on the GPU of the"
    ):
        BACKEND.capture(captures(frozen()))


CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


def test_the_tape_on_a_cpu() -> None:
    assert choose_backend("auto", CPU) == choose_backend("tape", CPU) == TapeBackend()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("name", ["cuda", "transformer-engine"])
@pytest.mark.parametrize("device", [CPU, GPU])
def test_no_gpu(name: str, device: torch.device) -> None:
    with pytest.raises(InputError, match=f"--graph-backend: there is no GPU here for '{name}'; "):
        choose_backend(name, device)


@pytest.mark.parametrize(
    ("name", "device", "said"),
    [
        ("vulkan", CPU, "--graph-backend: 'vulkan' is unknown"),
        ("tape", GPU, "does not work on cuda"),
    ],
)
def test_what_is_refused_anywhere(name: str, device: torch.device, said: str) -> None:
    with pytest.raises(InputError, match=said):
        choose_backend(name, device)


ENGINE = TransformerEngineBackend(torch.device("cuda", 0))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the function was called with; it hands the modules back as they are."""
    found: dict[str, Any] = {}

    def make_graphed_callables(modules: Any, arguments: Any, **options: Any) -> Any:
        found.update(options, modules=modules, arguments=arguments, resets=0)
        for module in modules:
            module.reset = lambda: found.update(resets=found["resets"] + 1)
        return modules

    stand_in = SimpleNamespace(
        make_graphed_callables=make_graphed_callables,
        set_capture_end=lambda: found.update(ended=True),
    )
    found["package"] = stand_in
    monkeypatch.setattr(transformer_engine, "import_module", lambda _: stand_in)
    cuda: dict[str, Callable[..., Any]] = {
        "current_device": lambda: 0,
        "device": lambda _: nullcontext(),
        "current_stream": lambda: "main",
        "graph_pool_handle": lambda: "pool",
        "memory_reserved": lambda: 0,
        "set_stream": lambda one: found.update(stream=one),
    }
    for name, function in cuda.items():
        monkeypatch.setattr(torch.cuda, name, function)
    monkeypatch.setattr(torch.cuda, "default_generators", (torch.default_generator,))
    return found


def test_what_it_is_asked_for(asked: dict[str, Any]) -> None:
    module = perceptron()
    graphed = ENGINE.capture(captures(module, module), pool=None, warm_up=5)
    assert asked["_order"] == [1, 2, -2, -1]
    assert (asked["pool"], asked["num_warmup_iters"]) == ("pool", 5)
    assert [len(list(one.parameters())) for one in asked["modules"]] == [6, 6]
    given, parameters = [tensor(5, 4, seed=1, grad=True)], list(module.parameters())
    assert equal(results(graphed[0], given, parameters), results(module, given, parameters))
    assert [one.replays for one in graphed] == [Replays(1, 1), Replays(0, 0)]
    graphed[0].reset()
    graphed[0].reset()
    assert asked["resets"] == 1
    assert graphed[0].memory == GraphMemory(0, 0, 0)
    with pytest.raises(InputError, match="slot 0: the graph was reset"):
        graphed[0](tensor(5, 4))


class Two(nn.Module):
    """Two results."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(tensor(4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return Memory.apply(x * self.weight)


class Memory(torch.autograd.Function):
    """Hands out the same memory at each backward, as a graph does."""

    GRADIENT = torch.zeros(5, 4, dtype=torch.float64)

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        return x * 2, x * 3

    @staticmethod
    def backward(ctx: Any, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return Memory.GRADIENT.copy_(2 * left + 3 * right)


@pytest.mark.parametrize("which", [0, 1])
def test_one_of_two_results_may_go_unused(which: int, asked: dict[str, Any]) -> None:
    graphed = ENGINE.capture(captures(Two()))[0]
    outputs: Any = graphed(tensor(5, 4))
    assert graphed.in_flight
    outputs[which].sum().backward()
    assert (graphed.in_flight, graphed.replays) == (False, Replays(1, 1))


def test_gradients_are_copies(asked: dict[str, Any]) -> None:
    """Releases hand out their memory, which autograd makes the ``.grad`` of a leaf."""

    def passed_on(x: torch.Tensor) -> torch.Tensor:
        return Memory.apply(x)[0]

    (graphed,) = ENGINE.capture(captures(passed_on))
    leaf = tensor(5, 4, grad=True)
    output: Any = graphed(leaf)
    output.sum().backward()
    Memory.GRADIENT.fill_(torch.nan)
    assert leaf.grad is not None
    assert leaf.grad.isfinite().all()


def test_what_it_copies_itself_is_not_copied_twice(asked: dict[str, Any]) -> None:
    def later(modules: Any, arguments: Any, *, clone_param_grads_on_return: bool, **_: Any) -> Any:
        asked["clones"] = clone_param_grads_on_return
        return modules

    asked["package"].make_graphed_callables = later
    ENGINE.capture(captures(perceptron()))
    assert asked["clones"] is False


def test_a_broken_capture_is_put_right(asked: dict[str, Any]) -> None:
    """It takes gradients away, stops the garbage collection, and wraps calls of the module."""
    module, state = perceptron(), torch.get_rng_state()
    results(module, [tensor(5, 4)], list(module.parameters()))
    gradients = [parameter.grad for parameter in module.parameters()]

    def breaks(modules: Any, arguments: Any, **options: Any) -> Any:
        kind: Any = type(modules[0])
        kind.__call__ = lambda self: None
        gc.disable()
        torch.rand(1)
        for parameter in module.parameters():
            parameter.grad = None
        raise RuntimeError("operation not permitted\nmore lines")

    works = asked["package"].make_graphed_callables
    asked["package"].make_graphed_callables = breaks
    with pytest.raises(InputError, match="slot 0, slot 1: it cannot be captured: operation not p"):
        ENGINE.capture(captures(module, module))
    assert gc.isenabled()
    assert (asked["ended"], asked["stream"]) == (True, "main")
    assert torch.equal(torch.get_rng_state(), state)
    for parameter, gradient in zip(module.parameters(), gradients, strict=True):
        assert parameter.grad is gradient
    asked["package"].make_graphed_callables = works
    graphed = ENGINE.capture(captures(module, module))[0]
    assert equal([graphed(tensor(5, 4))], [module(tensor(5, 4))])


def test_what_is_refused(asked: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="graph_warmup: handles and communicators"):
        ENGINE.capture(captures(perceptron()), warm_up=0)
    with torch.autocast("cpu"), pytest.raises(InputError, match="autocast: its cache"):
        ENGINE.capture(captures(perceptron()))
    (graphed,) = ENGINE.capture(captures(perceptron()))
    with pytest.raises(InputError, match=r"slot 0: input 0 was captured as float64 \[5, 4\]"):
        graphed(tensor(4, 4))
    assert ENGINE.capture([]) == ()
