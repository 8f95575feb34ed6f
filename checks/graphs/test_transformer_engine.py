"""Transformer Engine's function behind the same contract; a stand-in says what it was asked for."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from checks.graphs.captures import captures, equal, perceptron, results, tensor
from ringproof.errors import InputError
from ringproof.reference.graphs import transformer_engine
from ringproof.reference.graphs.backend import Capture, GraphMemory, Replays
from ringproof.reference.graphs.transformer_engine import TransformerEngineBackend

BACKEND = TransformerEngineBackend(torch.device("cuda", 0))


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
    graphed = BACKEND.capture(captures(module, module), pool=None, warm_up=5)
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
    graphed = BACKEND.capture(captures(Two()))[0]
    outputs: Any = graphed(tensor(5, 4))
    assert graphed.in_flight
    outputs[which].sum().backward()
    assert (graphed.in_flight, graphed.replays) == (False, Replays(1, 1))


def test_a_result_that_nobody_holds_is_not_in_flight(asked: dict[str, Any]) -> None:
    graphed = BACKEND.capture(captures(perceptron()))[0]
    output = graphed(tensor(5, 4))
    assert graphed.in_flight
    del output
    assert not graphed.in_flight


def test_gradients_are_copies(asked: dict[str, Any]) -> None:
    """Releases hand out their memory, which autograd makes the ``.grad`` of a leaf."""

    def passed_on(x: torch.Tensor) -> torch.Tensor:
        return Memory.apply(x)[0]

    (graphed,) = BACKEND.capture(captures(passed_on))
    leaf = tensor(5, 4, grad=True)
    output: Any = graphed(leaf)
    output.sum().backward()
    Memory.GRADIENT.fill_(torch.nan)
    assert leaf.grad is not None
    assert leaf.grad.isfinite().all()


def test_a_plain_tensor_is_a_parameter(asked: dict[str, Any]) -> None:
    weight = tensor(4, grad=True)
    capture = Capture(
        name="scaled",
        function=lambda x: x * weight,
        inputs=(tensor(5, 4),),
        parameters={"weight": weight},
    )
    BACKEND.capture([capture])
    assert [list(one.parameters()) for one in asked["modules"]] == [[weight]]


def test_what_it_copies_itself_is_not_copied_twice(asked: dict[str, Any]) -> None:
    def later(modules: Any, arguments: Any, *, clone_param_grads_on_return: bool, **_: Any) -> Any:
        asked["clones"] = clone_param_grads_on_return
        return modules

    asked["package"].make_graphed_callables = later
    BACKEND.capture(captures(perceptron()))
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
    with pytest.raises(InputError, match="slot 0, slot 1: cannot be captured: operation not perm"):
        BACKEND.capture(captures(module, module))
    assert gc.isenabled()
    assert (asked["ended"], asked["stream"]) == (True, "main")
    assert torch.equal(torch.get_rng_state(), state)
    for parameter, gradient in zip(module.parameters(), gradients, strict=True):
        assert parameter.grad is gradient
    asked["package"].make_graphed_callables = works
    graphed = BACKEND.capture(captures(module, module))[0]
    assert equal([graphed(tensor(5, 4))], [module(tensor(5, 4))])


def test_what_is_refused(asked: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="graph_warmup: handles and communicators"):
        BACKEND.capture(captures(perceptron()), warm_up=0)
    with torch.autocast("cpu"), pytest.raises(InputError, match="autocast: its cache"):
        BACKEND.capture(captures(perceptron()))
    (graphed,) = BACKEND.capture(captures(perceptron()))
    with pytest.raises(InputError, match=r"slot 0: input 0 was captured as float64 \[5, 4\]"):
        graphed(tensor(4, 4))
    assert BACKEND.capture([]) == ()
