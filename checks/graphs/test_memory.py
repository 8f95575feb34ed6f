"""What becomes of memory between capture and replay: dangling, undefined, shared, freed."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from checks.graphs.captures import captures, equal, graph, perceptron, results, tensor
from ringproof.errors import InputError
from ringproof.reference.graphs.replay import Graphed
from ringproof.reference.graphs.tape.backend import TapeBackend
from ringproof.reference.graphs.tape.segment import UndefinedBehaviour

FAITHFUL = TapeBackend(UndefinedBehaviour(faithful=True))
CARELESS = TapeBackend(UndefinedBehaviour(poison=False))


class Rotary(nn.Module):
    """Holds a table that it was given, as upstream's latent attention held its RoPE tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.table: Any = tensor(4, 4)
        self.rows: Any = torch.arange(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.table + self.rows.unsqueeze(1)


def test_a_freed_tensor_is_a_dangling_address() -> None:
    rotary = Rotary()
    graphed = graph(rotary, tensor(4, 4, grad=True))
    graphed(tensor(4, 4, grad=True)).sum().backward()
    rotary.table = tensor(4, 4)  # an equal one, elsewhere
    with pytest.raises(
        InputError,
        match=r"part, forward: dangling address: `self.table` float64 \[4, 4\], first used at "
        r"graphs/test_memory.py:\d+, was freed",
    ):
        graphed(tensor(4, 4))
    assert graphed.replays.forward == 1


def test_faithful_reads_extreme_integers() -> None:
    rotary = Rotary()
    graphed = graph(rotary, tensor(4, 4), backend=FAITHFUL)
    rotary.rows = None
    assert (graphed(tensor(4, 4)) < -9e18).all()


def test_a_tensor_that_the_capture_itself_drops_is_refused_at_once() -> None:
    tables = [tensor(3)]
    with pytest.raises(InputError, match="dangling address"):
        graph(lambda x: x * tables.pop(), tensor(3), warm_up=0)


def test_a_parameter_that_moves_is_dangling() -> None:
    module = perceptron()
    graphed = graph(module, tensor(5, 4))
    module[0].weight.data = module[0].weight.data.clone()
    with pytest.raises(InputError, match=r"dangling address: parameter 0.weight"):
        graphed(tensor(5, 4))


def part_of_the_rows(x: torch.Tensor, written: torch.Tensor) -> torch.Tensor:
    """A kernel that writes the rows inside of the padded boundaries, and no others."""
    out = torch.empty_like(x)
    return out.index_copy_(0, written, x[:2])


def test_a_row_that_was_written_once_is_not_written_at_each_replay() -> None:
    """The tail that was covered in the capture, and is not in the replay: stale without poison."""
    function, rows = part_of_the_rows, torch.tensor([0, 1])
    for backend, is_seen in ((TapeBackend(), True), (CARELESS, False)):
        graphed = graph(function, tensor(4, 2), rows, backend=backend)
        graphed(tensor(4, 2), torch.tensor([2, 3]))
        later = graphed(tensor(4, 2), torch.tensor([0, 1]))
        assert bool(later[2:].isnan().all()) == is_seen


def slots(module: nn.Module, *, together: bool) -> tuple[Graphed, ...]:
    """Two slots of one pool, captured in one call or one after the other."""
    both = captures(module, module)
    backend = TapeBackend()
    pool = backend.new_pool()
    calls = [both] if together else [(one,) for one in both]
    return tuple(graphed for call in calls for graphed in backend.capture(call, pool=pool))


def in_flight_together(
    functions: Sequence[Callable[..., Any]], module: nn.Module, *, last_first: bool
) -> list[Any]:
    """Both forwards, then both backwards."""
    module.zero_grad()
    outputs = [function(tensor(5, 4, seed=seed)) for seed, function in enumerate(functions)]
    for output in reversed(outputs) if last_first else outputs:
        (output * tensor(5, 3, seed=9)).sum().backward()
    return [parameter.grad.clone() for parameter in module.parameters()]


def test_replays_in_the_order_of_the_captures() -> None:
    module = perceptron()
    expected = in_flight_together([module, module], module, last_first=True)
    graphed = slots(module, together=True)
    for _ in range(2):
        assert equal(in_flight_together(graphed, module, last_first=True), expected)
    assert not any(one.in_flight for one in graphed)


@pytest.mark.parametrize("together", [True, False])
def test_replays_in_another_order_lose_activations(together: bool) -> None:
    """One forward, one backward, as in a pipeline: slots need a pool each."""
    module = perceptron()
    found = in_flight_together(slots(module, together=together), module, last_first=False)
    assert any(gradient.isnan().any() for gradient in found)
    own = [graph(module, tensor(5, 4, grad=True)) for _ in range(2)]
    found = in_flight_together(own, module, last_first=False)
    assert equal(found, in_flight_together([module, module], module, last_first=False))


def test_captures_of_one_pool_made_at_different_times() -> None:
    """Bank entries of two CP sizes: never in flight together, so they may overlay each other."""
    module, backend = perceptron(), TapeBackend()
    pool = backend.new_pool()
    large, small = (
        graph(module, tensor(rows, 4, grad=True), backend=backend, pool=pool) for rows in (8, 2)
    )
    parameters = list(module.parameters())
    for function, rows in ((large, 8), (small, 2), (large, 8)):
        given = [tensor(rows, 4, seed=rows, grad=True)]
        expected = results(module, given, parameters)
        assert equal(results(function, given, parameters), expected)
    for kept, of_kept, other, of_other in ((large, 8, small, 2), (small, 2, large, 8)):
        waiting = kept(tensor(of_kept, 4))
        other(tensor(of_other, 4))
        module.zero_grad()
        waiting.sum().backward()
        assert any(parameter.grad.isnan().any() for parameter in parameters)


def test_layers_of_two_slots_and_two_sizes_with_a_pool_for_each_slot() -> None:
    """As a bank lays them out: sizes of a slot overlay each other, slots do not."""
    layers, backend = [nn.Linear(4, 4).double() for _ in range(2)], TapeBackend()
    bank = {}
    for slot in range(2):
        pool = backend.new_pool()
        for rows in (8, 2):
            parts = captures(*layers, given=partial(tensor, rows, 4, grad=True))
            bank[slot, rows] = backend.capture(parts, pool=pool)

    def pipelined(stack: Callable[[int, int], Sequence[Any]]) -> list[torch.Tensor]:
        """One forward, one backward, with two in flight, of sizes that change."""
        waiting, losses = [], []
        for number, rows in enumerate((8, 2, 2, 8, 8)):
            x = tensor(rows, 4, seed=number)
            for function in stack(number % 2, rows):
                x = function(x).tanh()
            waiting.append(x.square().sum())
            losses.append(waiting[-1].detach().clone())
            if len(waiting) == 2:
                waiting.pop(0).backward()
        waiting.pop().backward()
        gradients = [p.grad for layer in layers for p in layer.parameters()]
        for layer in layers:
            layer.zero_grad()
        return losses + gradients

    assert equal(pipelined(lambda slot, rows: bank[slot, rows]), pipelined(lambda *_: layers))


def test_a_second_backward_is_refused() -> None:
    output = graph(perceptron(), tensor(5, 4, grad=True))(tensor(5, 4)).sum()
    output.backward(retain_graph=True)
    with pytest.raises(InputError, match="its activations are gone"):
        output.backward()


def test_reset_frees_everything() -> None:
    module, inputs = perceptron(), tensor(5, 4, grad=True)
    graphed = graph(module, inputs)
    graphed(tensor(5, 4)).sum().backward()
    memory = graphed.memory
    assert memory.inputs == 5 * 4 * 8
    assert memory.gradients == 5 * 3 * 8
    assert memory.private > memory.gradients
    blocks = [block for block in graphed._segments[0]._pool if block.born is not None]
    static = StorageWeakRef(inputs.untyped_storage())
    del inputs
    assert len(blocks) > 10
    assert not any(block._weak.expired() for block in blocks)
    graphed.reset()
    module.zero_grad()
    gc.collect()
    assert all(block._weak.expired() for block in blocks)
    assert static.expired()
    assert graphed.memory.private == 0
    with pytest.raises(InputError, match="the graph was reset; capture it anew"):
        graphed(tensor(5, 4))
