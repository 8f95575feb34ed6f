"""When memory dies and moves: what autograd lets go, and what a capture leaves behind."""

from __future__ import annotations

import gc
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from checks.graphs.captures import captures, equal, graph, tensor
from ringproof.errors import InputError
from ringproof.reference.graphs.tape import memory
from ringproof.reference.graphs.tape.backend import TapeBackend
from ringproof.reference.graphs.tape.memory import TapePool, address_of, fill_with_poison


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
            self.table = torch.arange(4, dtype=x.dtype).exp()
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
