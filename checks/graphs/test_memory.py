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
from ringproof.reference.graphs.tape import memory
from ringproof.reference.graphs.tape.backend import TapeBackend
from ringproof.reference.graphs.tape.memory import TapePool, address_of, fill_with_poison
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


class Keeps(torch.autograd.Function):
    """Keeps an activation on itself, so that it lives until the autograd graph is gone."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.kept = x.exp()
        return x * 1

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient * ctx.kept


@pytest.mark.parametrize("lost", [True, False])
def test_what_is_let_go_between_two_passes_may_be_overwritten_by_the_next(lost: bool) -> None:
    """One after another in one pool, the second overwrites the first; captured together, not."""
    both = captures(Keeps.apply, Keeps.apply, given=partial(tensor, 4, grad=True))
    backend = TapeBackend()
    pool = backend.new_pool()
    apart = [(one,) for one in both] if lost else [both]
    first, second = (graphed for part in apart for graphed in backend.capture(part, pool=pool))
    leaf = tensor(4, seed=3, grad=True)
    waiting = first(leaf)
    second(tensor(4, grad=True))
    waiting.sum().backward()
    assert leaf.grad is not None
    assert bool(leaf.grad.isnan().all()) == lost
    if not lost:
        assert equal([leaf.grad], [leaf.detach().exp()])


@pytest.mark.parametrize("grown", [False, True])
def test_a_storage_that_was_resized_is_dangling(grown: bool) -> None:
    """As offloading does: its bytes are elsewhere, and a graph knows only where they were."""
    table = tensor(3)
    graphed = graph(lambda x: x * table, tensor(3))
    kept, storage = table.clone(), table.untyped_storage()
    if grown:
        storage.resize_(1 << 20)
        table.copy_(kept)
    else:
        storage.resize_(0)
    with pytest.raises(InputError, match=r"dangling address: `table` float64 \[3\]"):
        graphed(tensor(3))


def test_a_capture_that_failed_keeps_nothing_alive() -> None:
    """Not even while the exception, which holds the frames of the capture, is looked at."""
    outputs: list[StorageWeakRef] = []

    def good(x: torch.Tensor) -> torch.Tensor:
        out = x * 2
        outputs.append(StorageWeakRef(out.untyped_storage()))
        return out

    def bad(x: torch.Tensor) -> torch.Tensor:
        return x * x.sum().item()

    with pytest.raises(InputError, match=r"slot 1, forward: \.item\(\)") as caught:
        TapeBackend().capture(captures(good, bad), warm_up=1)
    gc.collect()
    assert caught.tb is not None
    assert len(outputs) == 2
    assert all(one.expired() for one in outputs)


class Averages(nn.Module):
    """Counts its calls in a buffer, and makes a table when it is first called."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4).double()
        self.table: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.table is None:
            self.table = torch.arange(4, dtype=x.dtype, device=x.device).exp()
        return self.norm(x) * self.table


@pytest.mark.parametrize("broken", [False, True])
def test_a_capture_writes_nothing(broken: bool) -> None:
    """The warm-up does; a replay does it again."""
    module, eager = Averages(), Averages()
    for _ in range(2):
        eager(tensor(5, 4))

    def function(x: torch.Tensor) -> torch.Tensor:
        out = module(x)
        return out * (out.sum().item() if broken and len(runs) == 2 else runs.append(1) or 1)

    runs: list[int] = []
    parameters = dict(module.named_parameters())
    if broken:
        with pytest.raises(InputError, match="item"):
            graph(function, tensor(5, 4), parameters=parameters, warm_up=2)
    else:
        graphed = graph(function, tensor(5, 4), parameters=parameters, warm_up=2)
    assert equal(list(module.norm.buffers()), list(eager.norm.buffers()))
    if not broken:
        graphed(tensor(5, 4, seed=3))
        eager(tensor(5, 4, seed=3))
        assert equal(list(module.norm.buffers()), list(eager.norm.buffers()))


@pytest.mark.parametrize("warm_up", [0, 1])
def test_what_is_made_in_the_capture_is_there_after_a_replay(warm_up: int) -> None:
    """A cache that the capture fills lies in the graph's memory, where nothing is yet."""
    module = Averages()
    graphed = graph(module, tensor(5, 4), warm_up=warm_up)
    assert module.table is not None
    assert bool(module.table.isnan().all()) == (warm_up == 0)
    graphed(tensor(5, 4))
    assert equal([module.table], [torch.arange(4, dtype=torch.float64).exp()])


def test_poison_is_laid_again_only_where_somebody_may_have_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A replay that filled the whole pool each time would cost more than what it computes."""
    laid: list[int] = []

    def count(storage: torch.UntypedStorage, dtype: torch.dtype) -> None:
        laid.append(1)
        fill_with_poison(storage, dtype)

    monkeypatch.setattr(memory, "fill_with_poison", count)
    block = TapePool().add(torch.ones(3), "result", owned=True, born=1)
    block.died = 2

    def fills(*passes: int) -> int:
        laid.clear()
        for one in passes:
            block.make_way_for(one)
        return len(laid)

    assert fills(0, 3, 4) == 1, "of other captures: once"
    assert fills(1) == 0, "its own finds it so"
    assert fills(1) == 1, "and has written to it"
    assert fills(2) == 0, "it is alive"
    assert fills(3, 0) == 1, "and another of its life may have written, too"
    held = address_of(torch.empty(3), block).tensor(block.find())
    assert fills(3, 3) == 2, "whoever holds it may write at any time"
    assert held.isnan().all()
