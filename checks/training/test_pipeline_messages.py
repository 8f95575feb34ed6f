"""Messages of fixed capacity, and what a stage makes of one, on one rank."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.pipelining import schedules

from ringproof.errors import InputError
from ringproof.reference.training.pipeline import (
    LoopRunner,
    Message,
    PipelinedStage,
    StageCall,
    StepState,
    check_backend,
)

MESSAGE = Message(8, 3, torch.float64, torch.device("cpu"))


@dataclass(frozen=True)
class Batch:
    """What a stage's surroundings look at."""

    rows: int
    tokens: torch.Tensor | None = None


class Toy(nn.Module):
    """A linear layer; the last stage sums its squares."""

    def __init__(self, *, last: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(3, 3, dtype=torch.float64)
        self.last = last

    def forward(self, x: torch.Tensor, batch: Any) -> Any:
        y = self.linear(x)
        value = y.square().sum() if self.last else y
        return SimpleNamespace(value=value, losses={"lm": value.detach()} if self.last else {})


def middle(last: bool = False) -> tuple[PipelinedStage, StepState, Toy, list[bool]]:
    toy, step_state, announced = Toy(last=last), StepState(), []
    call: Any = StageCall(toy)
    call.before_backward = announced.append
    stage = PipelinedStage(call, step_state, MESSAGE, first=False, last=last)
    return stage, step_state, toy, announced


def received(rows: int) -> torch.Tensor:
    """A message whose other rows are not numbers."""
    torch.manual_seed(1)
    message = torch.randn(8, 3, dtype=torch.float64)
    message[rows:] = math.nan
    return message.requires_grad_()


@pytest.mark.parametrize("rows", [1, 5, 8])
def test_only_real_rows_are_computed(rows: int) -> None:
    stage, step_state, toy, _ = middle()
    step_state.begin([Batch(rows)])
    message = received(rows)
    sent = stage(message, microbatch=torch.tensor([0]))
    assert sent.shape == (8, 3)
    assert torch.equal(sent[:rows], toy.linear(message[:rows]))
    assert torch.equal(sent[rows:], torch.zeros(8 - rows, 3, dtype=torch.float64))

    gradient = torch.full((8, 3), math.nan, dtype=torch.float64)
    gradient[:rows] = 1
    sent.backward(gradient)
    assert message.grad is not None
    assert message.grad[:rows].isfinite().all()
    assert torch.equal(message.grad[rows:], torch.zeros(8 - rows, 3, dtype=torch.float64))
    assert all(p.grad is not None and p.grad.isfinite().all() for p in toy.parameters())


def test_the_last_microbatch_is_announced_before_its_backward() -> None:
    stage, step_state, _, announced = middle(last=True)
    step_state.begin([Batch(2), Batch(3)])
    losses = [stage(received(rows), microbatch=torch.tensor([i])) for i, rows in ((0, 2), (1, 3))]
    assert announced == []
    for loss in losses:
        loss.backward()
    assert announced == [False, True]


@pytest.mark.parametrize(
    ("rows", "shards", "match"), [(9, 1, "holds 8 rows"), (7, 2, "share 7 rows evenly")]
)
def test_rows_that_do_not_fit_are_refused(rows: int, shards: int, match: str) -> None:
    message = Message(8, 3, torch.float64, torch.device("cpu"), shards)
    with pytest.raises(InputError, match=match):
        message.rows(Batch(rows))


def test_loop_adds_losses_and_gradients_of_microbatches() -> None:
    toy = Toy(last=True)
    loop = LoopRunner([StageCall(toy)])
    xs = [torch.ones(rows, 3, dtype=torch.float64) * rows for rows in (1, 2, 4)]
    batches: Any = [Batch(len(x), x) for x in xs]
    losses = loop.train(batches)
    expected = torch.cat([toy.linear(x) for x in xs]).square().sum()
    assert torch.allclose(losses["lm"], expected, rtol=1e-14)
    (gradient,) = torch.autograd.grad(expected, [toy.linear.weight])
    assert toy.linear.weight.grad is not None
    assert torch.allclose(toy.linear.weight.grad, gradient, rtol=1e-13)
    toy.zero_grad()
    assert torch.equal(loop.evaluate(batches)["lm"], losses["lm"])
    assert toy.linear.weight.grad is None


def test_a_pipeline_that_would_hang_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for backend in ("gloo", "nccl"):
        check_backend(backend)  # the installed torch has the repair
    monkeypatch.delattr(schedules, "_wait_batch_p2p")
    check_backend("nccl")
    with pytest.raises(InputError, match="hang over gloo"):
        check_backend("gloo")
