"""The backends on a GPU against a stand-in for the device, and which backend is used where."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from checks.graphs.captures import captures, perceptron, tensor
from ringproof.errors import InputError
from ringproof.reference.graphs.cuda import CudaBackend
from ringproof.reference.graphs.tape.backend import TapeBackend, choose_backend


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
@pytest.mark.parametrize("device", [CPU, GPU])
def test_no_gpu(device: torch.device) -> None:
    with pytest.raises(InputError, match="--graph-backend: there is no GPU here for 'cuda'; "):
        choose_backend("cuda", device)


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
