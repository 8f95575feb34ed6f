"""Messages of fixed capacity, and how many microbatches wait for their backwards.

torch's own schedules run in one process, one rank after the other, on stages that only count how
many of their microbatches have gone forward and not yet backward.
"""

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
from ringproof.reference.training.options import microbatches_in_flight
from ringproof.reference.training.pipeline import (
    LoopRunner,
    Message,
    PipelinedStage,
    PipelineRunner,
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


PIPELINES = [(pp, vpp) for pp in (2, 3, 4) for vpp in (1, 2, 3)]
MOST_MICROBATCHES = 12


def _nothing(*_: Any, **__: Any) -> list[Any]:
    return []


class CountingStage:
    """What a schedule calls of a stage. Nothing is computed or sent.

    Args:
        chunk: Its number in the model.
        chunks: Number of chunks that the model has.
        ranks: Number of ranks that the pipeline has.
    """

    has_backward = True
    submod = None

    def __init__(self, chunk: int, chunks: int, ranks: int) -> None:
        self.stage_index, self.num_stages = chunk, chunks
        self.group_size, self.group_rank = ranks, chunk % ranks
        self.is_first, self.is_last = chunk == 0, chunk == chunks - 1
        self.waiting: set[int] = set()
        self.most = 0
        self.done: list[int] = []

    def forward_one_chunk(self, microbatch: int, *_: Any, **__: Any) -> None:
        self.waiting.add(microbatch)
        self.most = max(self.most, len(self.waiting))

    def backward_one_chunk(self, microbatch: int, *_: Any, **__: Any) -> None:
        self.waiting.remove(microbatch)
        self.done.append(microbatch)

    get_fwd_recv_ops = get_fwd_send_ops = get_bwd_recv_ops = get_bwd_send_ops = _nothing
    scale_grads = perform_reduce_grad = _nothing


class CountingPipeline(PipelineRunner):
    """The schedules that a rank of a pipeline makes, on stages that count."""

    def __init__(self, rank: int, pp: int, vpp: int) -> None:
        self._group: Any = SimpleNamespace(size=lambda: pp, rank=lambda: rank)
        self._calls: Any = (None,) * vpp
        self._chunks = pp * vpp
        self.made: list[CountingStage] = []

    def _make_stage(self, chunk: int, call: Any) -> Any:
        self.made.append(CountingStage(chunk, self._chunks, int(self._group.size())))
        return self.made[-1]

    def run(self, microbatches: int) -> list[CountingStage]:
        """One step; the stages of this rank after it."""
        schedule = self._make_schedule(microbatches)
        for name in ("_initialize_stage", "_initialize_stages", "_update_losses"):
            setattr(schedule, name, _nothing)
        schedule._maybe_compute_loss = schedule._maybe_get_loss = _nothing
        schedule._step_microbatches([()] * microbatches, [{}] * microbatches)
        return self.made


def most_in_flight(microbatches: int, pp: int, vpp: int) -> int:
    """In any chunk of any rank."""
    stages = [
        stage for rank in range(pp) for stage in CountingPipeline(rank, pp, vpp).run(microbatches)
    ]
    assert sorted(stage.stage_index for stage in stages) == list(range(pp * vpp))
    assert all(sorted(stage.done) == list(range(microbatches)) for stage in stages)
    return max(stage.most for stage in stages)


def planned(pp: int, vpp: int) -> list[int]:
    """Numbers of microbatches that plans have: interleaved, the ranks divide them."""
    return list(range(pp if vpp > 1 else 1, MOST_MICROBATCHES + 1, pp if vpp > 1 else 1))


@pytest.mark.parametrize(("pp", "vpp"), PIPELINES)
def test_there_are_as_many_slots_as_a_schedule_needs(pp: int, vpp: int) -> None:
    """Never fewer, and never more."""
    counts = planned(pp, vpp)
    found = [most_in_flight(count, pp, vpp) for count in counts]
    assert found == [microbatches_in_flight(count, pp=pp, vpp=vpp) for count in counts]
    assert found[-1] > found[0]  # it moves with the microbatches


def test_rounds_that_are_longer_than_the_pipeline_would_need_more() -> None:
    """Negative control: why a plan's microbatches are a multiple of the ranks.

    Eight over three ranks make two rounds of four, and all eight wait.
    """
    assert most_in_flight(8, 3, 2) == 8 > microbatches_in_flight(8, pp=3, vpp=2)
    with pytest.raises(InputError, match="do not make 2 equal rounds"):
        most_in_flight(7, 3, 2)
