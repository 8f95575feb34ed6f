"""Transformer Engine's function behind the same contract; a stand-in says what it was asked for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from checks.graphs.captures import equal, perceptron, results, tensor
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

    stand_in = SimpleNamespace(make_graphed_callables=make_graphed_callables)
    monkeypatch.setattr(transformer_engine, "import_module", lambda _: stand_in)
    cuda: dict[str, Callable[..., Any]] = {
        "current_device": lambda: 0,
        "device": lambda _: nullcontext(),
        "graph_pool_handle": lambda: "pool",
        "memory_reserved": lambda: 0,
    }
    for name, function in cuda.items():
        monkeypatch.setattr(torch.cuda, name, function)
    monkeypatch.setattr(torch.cuda, "default_generators", (torch.default_generator,))
    return found


def captures(module: nn.Module) -> list[Capture]:
    return [
        Capture(
            name=f"slot {slot}",
            function=module,
            inputs=(tensor(5, 4, grad=True),),
            parameters=dict(module.named_parameters()),
        )
        for slot in range(2)
    ]


def test_what_it_is_asked_for(asked: dict[str, Any]) -> None:
    module = perceptron()
    graphed = BACKEND.capture(captures(module), pool=None, warm_up=5)
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


def test_in_flight(asked: dict[str, Any]) -> None:
    graphed = BACKEND.capture(captures(perceptron()))[0]
    output = graphed(tensor(5, 4))
    assert graphed.in_flight
    assert isinstance(output, torch.Tensor)
    output.sum().backward()
    assert not graphed.in_flight


def test_generators_are_its_own(asked: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="generators: Transformer Engine registers those"):
        BACKEND.capture(captures(perceptron()), generators=[torch.Generator()])
