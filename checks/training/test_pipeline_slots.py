"""As many slots as microbatches wait for their backwards, by torch's own schedules.

The schedules run in one process, one rank after the other, on stages that only count: how many of
their microbatches have gone forward and not yet backward.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ringproof.errors import InputError
from ringproof.reference.training.options import microbatches_in_flight
from ringproof.reference.training.pipeline import PipelineRunner

PIPELINES = [(pp, vpp) for pp in (2, 3, 4) for vpp in (1, 2, 3)]
MOST_MICROBATCHES = 12


def _nothing(*_: Any, **__: Any) -> list[Any]:
    return []


class CountingStage:
    """What a schedule calls of a stage. Nothing is computed or sent.

    Args:
        chunk: Its number in the model.
        chunks: Of the model.
        ranks: Of the pipeline.
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
