"""Who is in a slot, and for how long; and what becomes of the module that a bank was put into."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from checks.graphs.captures import equal, tensor
from checks.graphs.layer_slots import CAPACITY, PACKS, microbatch
from checks.graphs.test_bank import options
from ringproof.errors import InputError
from ringproof.reference.graphs.bank import GraphBank, capture_bank
from ringproof.reference.graphs.scopes import Part
from ringproof.reference.graphs.tape.backend import TapeBackend
from ringproof.reference.model.batch import PackedBatch
from ringproof.reference.topology.dynamic import ContextParallelGroup

Step = Callable[[torch.Tensor, PackedBatch], torch.Tensor]


class Scaled(nn.Module):
    """Reads the microbatch in forward and backward: nothing of it may be another one's."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(tensor(4, seed=1))
        self.scale = nn.Parameter(tensor(4, seed=2), requires_grad=False)

    def forward(self, x: torch.Tensor, batch: PackedBatch) -> torch.Tensor:
        return (x * batch.positions.unsqueeze(1) * self.weight * self.scale).tanh()


def bank_of(
    module: nn.Module,
    group: ContextParallelGroup,
    *,
    slots: int = 1,
    samples: Sequence[PackedBatch] = (),
    **changed: Any,
) -> GraphBank:
    samples = samples or [microbatch(PACKS[0], group)]
    asked = options(slots=slots, shape=(CAPACITY.rows, 4), **changed)
    return capture_bank([Part("scaled", module)], samples, asked)


def rows(seed: int) -> torch.Tensor:
    return tensor(CAPACITY.rows, 4, seed=seed)


def test_the_largest_cp_size_is_captured_first(
    alone: ContextParallelGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CP sizes of one slot share memory, which an allocator reuses only if it is large enough."""
    ranks: Any = SimpleNamespace(size=lambda: 2, rank=lambda: 0)
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda group: [*range(group.size())])
    of_two = replace(CAPACITY, rows=2 * CAPACITY.rows)
    samples = [
        microbatch(PACKS[0], alone),
        microbatch(PACKS[0], ContextParallelGroup(ranks), of_two),
    ]
    bank = bank_of(Scaled(), alone, samples=samples)
    assert [key.cp_size for key in bank.replays] == [2, 1]


def test_a_microbatch_that_has_not_been_replayed_is_in_its_slot(
    alone: ContextParallelGroup,
) -> None:
    """Two that enter before the first forward: one tensor cannot hold the positions of both."""
    module, first, second = Scaled(), microbatch(PACKS[0], alone), microbatch(PACKS[1], alone)
    expected = [module(rows(1), batch) for batch in (first, second)]
    bank = bank_of(module, alone, slots=2)
    entered = [bank.enter(batch) for batch in (first, second)]
    with pytest.raises(InputError, match=r"graph_slots: . microbatches wait"):
        bank.enter(first)
    assert equal([module(rows(1), batch) for batch in entered], expected)


def test_a_microbatch_that_has_left_is_refused(alone: ContextParallelGroup) -> None:
    module, batch = Scaled(), microbatch(PACKS[0], alone)
    bank = bank_of(module, alone)
    left = bank.enter(batch)
    module(rows(1), left).sum().backward()
    module(rows(1), left).sum().backward()  # still there
    entered = bank.enter(microbatch(PACKS[1], alone))
    with pytest.raises(InputError, match="microbatch: it has left its slot"):
        module(rows(1), left)
    module(rows(1), entered)


class Schedule:
    """Runs a banked module and an eager one side by side; keeps what waits for a backward."""

    def __init__(self, group: ContextParallelGroup) -> None:
        self.module, self.eager, self.group = Scaled(), Scaled(), group
        self.bank = bank_of(self.module, group, slots=2)
        self.waiting: list[tuple[torch.Tensor, torch.Tensor]] = []

    def forward(self, lengths: tuple[int, ...], x: torch.Tensor, *, train: bool) -> bool:
        """Whether there was a slot."""
        batch = microbatch(lengths, self.group)
        try:
            entered = self.bank.enter(batch)
        except InputError:
            assert len(self.waiting) == 2
            return False
        with torch.set_grad_enabled(train):
            found, wanted = self.module(x, entered), self.eager(x, batch)
        assert equal([found], [wanted])
        if train:
            self.waiting.append((found.sum(), wanted.sum()))
        return True

    def leave(self, index: int, *, backward: bool) -> None:
        """Take one that waits, and forget it, with or without its backward."""
        for loss in self.waiting.pop(index):
            if backward:
                loss.backward()


@pytest.mark.parametrize("seed", range(8))
def test_random_schedules(seed: int, alone: ContextParallelGroup) -> None:
    """Forwards, backwards, evaluations and failures in any order: right, or refused."""
    draw, schedule = random.Random(seed), Schedule(alone)
    counts = dict.fromkeys(("forward", "backward", "dropped", "evaluated", "refused"), 0)
    for number in range(50):
        what = draw.choice(("forward", "forward", "backward", "dropped", "evaluated"))
        if what in ("forward", "evaluated"):
            ran = schedule.forward(draw.choice(PACKS), rows(number), train=what == "forward")
            counts[what if ran else "refused"] += 1
        elif schedule.waiting:
            counts[what] += 1
            index = draw.randrange(len(schedule.waiting))
            schedule.leave(index, backward=what == "backward")
    assert min(counts.values()) > 0
    gradients = schedule.module.weight.grad, schedule.eager.weight.grad
    assert equal([gradients[0]], [gradients[1]])


def test_hooks_of_the_module_run_once(alone: ContextParallelGroup) -> None:
    """Around the replay, where Python runs; a capture of the module with its hooks has them too."""
    module, batch = Scaled(), microbatch(PACKS[0], alone)
    module.register_forward_hook(lambda module, given, out: out * 2)
    expected = module(rows(1), batch)
    bank = bank_of(module, alone)
    assert equal([module(rows(1), bank.enter(batch))], [expected])


def doubled(x: torch.Tensor, batch: PackedBatch) -> torch.Tensor:
    return x * batch.positions.unsqueeze(1) * 2


class Broken(TapeBackend):
    """Cannot capture."""

    def new_pool(self) -> Any:
        raise MemoryError("no more")


@pytest.mark.parametrize("aborted", [False, True])
def test_a_forward_that_was_replaced_before_is_put_back(
    aborted: bool, alone: ContextParallelGroup
) -> None:
    module, batch = Scaled(), microbatch(PACKS[0], alone)
    given: Any = module
    given.forward = doubled
    if aborted:
        with pytest.raises(MemoryError):
            bank_of(module, alone, backend=Broken())
    else:
        bank = bank_of(module, alone)
        assert equal([module(rows(1), bank.enter(batch))], [doubled(rows(1), batch)])
        bank.reset()
    assert module.__dict__["forward"] is doubled


def test_a_forward_that_was_wrapped_since_stays(alone: ContextParallelGroup) -> None:
    module, batch = Scaled(), microbatch(PACKS[0], alone)
    expected = module(rows(1), batch)
    bank = bank_of(module, alone)
    entered, inner, given = bank.enter(batch), module.forward, module.__dict__
    given["forward"] = wrapper = lambda x, batch: inner(x, batch) * 2
    bank.reset()
    assert given["forward"] is wrapper
    assert equal([module(rows(1), batch)], [expected * 2])
    assert equal([module(rows(1), entered)], [expected * 2])


def test_a_second_bank_is_refused(alone: ContextParallelGroup) -> None:
    module, batch = Scaled(), microbatch(PACKS[0], alone)
    bank = bank_of(module, alone)
    with pytest.raises(InputError, match="parts: scaled has graphs already"):
        bank_of(module, alone)
    assert equal([module(rows(1), bank.enter(batch))], [module(rows(1), batch)])
    bank.reset()
    bank_of(module, alone)


def test_reset_frees_what_the_slots_hold(alone: ContextParallelGroup) -> None:
    module, batch = Scaled(), microbatch(PACKS[0], alone)
    bank = bank_of(module, alone, slots=2)
    module(rows(1), bank.enter(batch)).sum().backward()
    waiting = module(rows(1), bank.enter(batch))
    (key, graph), *_ = bank._slots[0].graphs.items()
    held: list[Any] = [*bank._slots[0].rows.values(), *graph.inputs]
    kept = [StorageWeakRef(one.untyped_storage()) for one in held]
    del held
    bank.reset()
    assert (bank.memory, graph.memory.private) == ({}, 0)
    assert bank.enter(batch) is batch
    assert "forward" not in module.__dict__
    del graph
    with pytest.raises(InputError, match=f"{key}: the graph was reset"):
        waiting.sum().backward()
    del waiting
    gc.collect()
    assert len(kept) > 10
    assert all(one.expired() for one in kept)


def replaced(module: Scaled) -> None:
    module.weight = nn.Parameter(module.weight.detach() * 3)


def moved(module: Scaled) -> None:
    module.weight.data = module.weight.data * 3


def unfrozen(module: Scaled) -> None:
    module.scale.requires_grad_()


def extended(module: Scaled) -> None:
    module.adapter = nn.Parameter(tensor(4))


@pytest.mark.parametrize(
    ("change", "name"),
    [(extended, "adapter"), (replaced, "weight"), (moved, "weight"), (unfrozen, "scale")],
)
def test_parameters_are_those_of_the_capture(
    change: Callable[[Scaled], None], name: str, alone: ContextParallelGroup
) -> None:
    module = Scaled()
    bank = bank_of(module, alone)
    with torch.no_grad():
        module.weight.mul_(2)  # as an optimizer does
    bank.begin()
    change(module)
    with pytest.raises(InputError, match=rf"scaled\.{name}: it is not what it was at the capture"):
        bank.begin()
