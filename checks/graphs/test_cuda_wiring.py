"""The CUDA backend against a stand-in for the device: what it asks for, and in which order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from checks.graphs.captures import perceptron, tensor
from ringproof.errors import InputError
from ringproof.reference.graphs.backend import Capture
from ringproof.reference.graphs.cuda import CudaBackend
from ringproof.reference.graphs.order import one_after_another


class Device:
    """Notes what happens to graphs and streams; computes nothing."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.graphs = 0

    def graph(self) -> Any:
        number, self.graphs = self.graphs, self.graphs + 1
        return Graph(self, number)

    @contextmanager
    def recording(self, graph: Any, *, pool: Any, capture_error_mode: str) -> Iterator[None]:
        self.events.append(f"record {graph.number} {pool} {capture_error_mode}")
        try:
            yield
        except RuntimeError:  # as the end of a broken capture does
            raise RuntimeError("operation failed due to a previous error") from None

    @contextmanager
    def stream(self, _: Any) -> Iterator[None]:
        self.events.append("side stream")
        yield
        self.events.append("own stream")


class Graph:
    def __init__(self, device: Device, number: int) -> None:
        self.device, self.number = device, number

    def replay(self) -> None:
        self.device.events.append(f"replay {self.number}")

    def reset(self) -> None:
        self.device.events.append(f"reset {self.number}")

    def register_generator_state(self, _: torch.Generator) -> None:
        self.device.events.append(f"register {self.number}")


class Stream:
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
        "Stream": Stream,
        "current_device": lambda: 0,
        "current_stream": Stream,
        "default_generators": (torch.default_generator,),
        "device": nowhere,
        "empty_cache": lambda: None,
        "graph": made.recording,
        "graph_pool_handle": lambda: "pool",
        "memory_reserved": lambda: 100 * len(made.events),
        "stream": made.stream,
        "synchronize": lambda: None,
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    return made


def captures(*functions: Any) -> list[Capture]:
    return [
        Capture(name=f"slot {slot}", function=function, inputs=(tensor(5, 4, grad=True),))
        for slot, function in enumerate(functions)
    ]


def frozen() -> torch.nn.Module:
    return perceptron().requires_grad_(False)


BACKEND = CudaBackend(torch.device("cuda", 0))


def test_capture_and_replay(device: Device) -> None:
    graphed = BACKEND.capture(
        captures(frozen(), frozen()), order=one_after_another(2), generators=[torch.Generator()]
    )
    records = [f"record {number} pool thread_local" for number in range(4)]
    registered = [f"register {number}" for number in range(4)]
    pairs = [event for pair in zip(registered, records, strict=True) for event in pair]
    assert device.events == ["side stream", "own stream", *pairs]
    device.events.clear()
    graphed[1](tensor(5, 4, grad=True)).sum().backward()
    assert device.events == ["replay 2", "replay 3"]
    graphed[1].reset()
    assert device.events[2:] == ["reset 2", "reset 3"]


def test_a_pool_is_shared_when_given(device: Device) -> None:
    BACKEND.capture(captures(frozen()), pool="mine", warm_up=0)
    assert device.events[2:] == ["record 0 mine thread_local", "record 1 mine thread_local"]


def test_a_broken_capture_is_undone(device: Device) -> None:
    def breaks(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("operation not permitted when stream is capturing\nmore lines")

    with pytest.raises(
        InputError,
        match=r"slot 1, forward: cannot be captured: operation not permitted .*; capture",
    ):
        BACKEND.capture(captures(frozen(), breaks), warm_up=0)
    assert device.events[-2:] == ["reset 0", "reset 1"]


def test_a_tensor_on_the_host_is_refused(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "is_cuda", False)
    with pytest.raises(InputError, match="static input 0 of slot 0: not on the GPU"):
        BACKEND.capture(captures(frozen()))
