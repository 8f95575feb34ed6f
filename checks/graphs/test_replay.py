"""A replay on the tape is the eager computation, bit by bit, for values that it never saw."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import dropout
from torch.utils.checkpoint import checkpoint

from checks.graphs.captures import equal, graph, perceptron, results, tensor
from checks.model.whole_model import whole
from ringproof.errors import InputError
from ringproof.reference.graphs.tape.backend import TapeBackend
from ringproof.reference.model.config import preset
from ringproof.reference.topology.dynamic import ContextParallelGroup
from smoke.model_batches import random_sequences, rank_batch


class InPlace(nn.Module):
    """Writes into parts of fresh memory, reads views of it, and returns two results and a gap."""

    def forward(self, x: torch.Tensor, rows: torch.Tensor) -> tuple[Any, ...]:
        out = torch.zeros(6, 4, dtype=x.dtype, device=x.device)
        out[rows] = x * 2
        out[1:3] += x[:2].exp()
        left, right = out.chunk(2, dim=1)
        total = torch.stack([left, right]).sum(0)
        total.mul_(torch.where(total.detach() > 0, 2.0, 0.5))
        return total, None, rows + 1


def recomputed(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(module, x, use_reentrant=False, preserve_rng_state=False)


@pytest.mark.parametrize("recompute", [False, True])
def test_perceptron(recompute: bool) -> None:
    module = perceptron()
    function = partial(recomputed, module) if recompute else module
    parameters = dict(module.named_parameters())
    graphed = graph(function, tensor(5, 4, grad=True), parameters=parameters)
    for seed in range(1, 4):
        given = [tensor(5, 4, seed=seed, grad=True)]
        expected = results(module, given, list(parameters.values()))
        assert equal(results(graphed, given, list(parameters.values())), expected)
        with torch.no_grad():  # an optimizer's step needs no new capture
            for parameter in parameters.values():
                parameter.add_(0.1 * parameter.grad)
    assert (graphed.replays.forward, graphed.replays.backward) == (3, 3)


def test_writes_in_place_and_several_outputs() -> None:
    module = InPlace()
    graphed = graph(module, tensor(4, 4, grad=True), torch.tensor([0, 1, 2, 3]))
    for rows in ([0, 1, 2, 3], [5, 0, 3, 2]):
        given = [tensor(4, 4, seed=rows[0] + 1, grad=True), torch.tensor(rows)]
        assert equal(results(graphed, given), results(module, given))
    outputs = graphed(*given)
    assert outputs[1] is None
    assert not outputs[2].requires_grad


def test_an_output_that_is_not_used_adds_nothing_to_gradients() -> None:
    graphed = graph(lambda x: (2 * x, 3 * x), tensor(4, grad=True))
    for used, factor in ((2, 5.0), (1, 2.0)):
        x = tensor(4, seed=1, grad=True)
        torch.stack(graphed(x)[:used]).sum().backward()
        assert x.grad is not None and equal([x.grad], [torch.full_like(x, factor)])


def test_the_gradient_of_a_parameter_is_not_the_graphs_memory() -> None:
    """Two backwards of one callable add up: autograd must not keep the static gradient."""
    module = perceptron()
    graphed = graph(module, tensor(5, 4, grad=True))
    for seed in (1, 2):
        graphed(tensor(5, 4, seed=seed)).sum().backward()
    found = [parameter.grad.clone() for parameter in module.parameters()]
    module.zero_grad()
    for seed in (1, 2):
        module(tensor(5, 4, seed=seed)).sum().backward()
    assert equal(found, [parameter.grad for parameter in module.parameters()])


@pytest.mark.parametrize("through", [lambda x: x, lambda x: x.view(5, 4), lambda x: x * 1])
def test_the_gradient_of_an_input_is_not_the_graphs_memory(through: Callable[..., Any]) -> None:
    graphed = graph(perceptron(), tensor(5, 4, grad=True))
    leaf = tensor(5, 4, grad=True)
    graphed(through(leaf)).sum().backward()
    kept = leaf.grad.clone()
    graphed(tensor(5, 4, seed=8, grad=True)).sum().backward()
    assert equal([leaf.grad], [kept])


def test_graphs_in_a_row() -> None:
    """The gradient goes from one graph's memory to the next one's without a copy between."""
    square = nn.Linear(4, 4).double()
    parameters = list(square.parameters())
    first, second = (graph(square, tensor(5, 4, grad=True)) for _ in range(2))
    for seed in (1, 2):
        given = [tensor(5, 4, seed=seed, grad=True)]
        expected = results(lambda x: square(square(x)), given, parameters)
        assert equal(results(lambda x: second(first(x)), given, parameters), expected)


@pytest.mark.parametrize("way", ["retained", "hooked"])
def test_a_gradient_between_graphs_that_is_looked_at_is_a_copy(way: str) -> None:
    square = nn.Linear(4, 4).double()
    first, second = (graph(square, tensor(5, 4, grad=True)) for _ in range(2))
    seen = []
    for seed in (1, 2):
        between = first(tensor(5, 4, seed=seed))
        if way == "retained":
            between.retain_grad()
        else:
            between.register_hook(seen.append)
        second(between).square().sum().backward()
        seen += [between.grad] if way == "retained" else []
        seen.append(seen[-1].clone())
    assert equal(seen[::2], seen[1::2])
    assert not equal(seen[:1], seen[2:3])


def test_values_that_an_operation_cannot_use() -> None:
    graphed = graph(InPlace(), tensor(4, 4), torch.tensor([0, 1, 2, 3]))
    with pytest.raises(
        InputError, match=r"part, forward: aten::index_put.* at graphs/test_replay.py:\d+ fails"
    ):
        graphed(tensor(4, 4), torch.tensor([0, 1, 2, 6]))


def test_the_dispatch_of_a_mixture_of_experts_is_refused(alone: ContextParallelGroup) -> None:
    """It reads counts on the host."""
    experts = whole(preset("moonlight-tiny")).layers["1"].moe
    batch = rank_batch(random_sequences(), alone)
    parameters = dict(experts.named_parameters())
    static = tensor(batch.rows, preset("moonlight-tiny").hidden, grad=True)
    with pytest.raises(InputError, match=r"part, forward: torch.bincount at model/moe.py:\d+: "):
        graph(lambda x: experts(x, batch), static, parameters=parameters)


# Random numbers: registered generators go on from replay to replay, others repeat themselves.


def dropped(x: torch.Tensor) -> torch.Tensor:
    return dropout(x * 2, 0.5)


def several(function: Callable[[torch.Tensor], torch.Tensor], times: int = 3) -> list[torch.Tensor]:
    return [part for _ in range(times) for part in results(function, [tensor(64, grad=True)])]


def test_replays_draw_what_eager_would_have_drawn() -> None:
    torch.manual_seed(5)
    expected = several(dropped)
    torch.manual_seed(5)
    graphed = graph(dropped, tensor(64, grad=True))  # leaves the generator where it was
    assert equal(several(graphed), expected)
    assert not equal(expected[:2], expected[2:4])


def test_a_repeated_draw_leaves_the_generator_as_it_was() -> None:
    generator = torch.Generator().manual_seed(3)

    def function(x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(x.shape, generator=generator, dtype=x.dtype, device=x.device)

    graphed = graph(function, tensor(64), backend=TapeBackend(repeat_unregistered=True))
    before = generator.manual_seed(4).get_state()
    graphed(tensor(64))
    assert torch.equal(generator.get_state(), before)


def test_recompute_that_sets_the_state_is_refused() -> None:
    """Activation checkpointing replays its random numbers by setting the state: no graph does."""
    with pytest.raises(InputError, match="part, backward: the state of a random generator"):
        graph(lambda x: checkpoint(dropped, x, use_reentrant=False), tensor(64, grad=True))
