"""A training by graphs as tests and the benchmark run it on ranks, also with a broken replay."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any
from unittest import mock

import torch

from ringproof.cluster import RankContext
from ringproof.reference.graphs import bank
from ringproof.reference.graphs.backend import CaptureBackend
from ringproof.reference.graphs.replay import Graphed
from ringproof.reference.graphs.tape.backend import choose_backend
from ringproof.reference.model.batch import PackedBatch
from ringproof.reference.model.static import batch_tensors, load
from ringproof.reference.training.options import TrainOptions
from ringproof.reference.training.records import GraphsRecord, Record, StepRecord
from ringproof.reference.training.trainer import train
from smoke.training_matrix import Series

EVERY = 10
"""Steps between two lines of progress."""


@dataclass
class Trained:
    """What a run came to on a rank.

    Args:
        loss, grad_norm: Of each step.
        replays: Passes of microbatches through stages by graphs, by CP size, over all ranks.
        eager: Passes without.
        graphs: What was captured, as in the log.
        step_seconds: Of all steps together.
    """

    loss: list[float] = field(default_factory=list)
    grad_norm: list[float] = field(default_factory=list)
    replays: dict[int, int] = field(default_factory=dict)
    eager: int = 0
    graphs: dict[str, Any] = field(default_factory=dict)
    step_seconds: float = 0.0

    @property
    def series(self) -> Series:
        """Loss and gradient norm of each step."""
        return list(zip(self.loss, self.grad_norm, strict=True))


def trained(
    rank: RankContext,
    *,
    options: TrainOptions,
    control: str = "",
    backend: CaptureBackend | None = None,
) -> Trained:
    """Train and count.

    Args:
        rank: This rank.
        options: Of the run.
        control: One of :data:`CONTROLS`, or nothing is broken.
        backend: Captures the graphs; that of the options by default.
    """
    found, steps = Trained(), options.optimiser.steps

    def take(record: Record) -> None:
        if isinstance(record, GraphsRecord):
            found.graphs = record.as_json()
        if not isinstance(record, StepRecord):
            return
        found.loss.append(record.loss)
        found.grad_norm.append(record.grad_norm)
        found.eager += record.graph_eager
        found.step_seconds += record.step_seconds
        for size, count in record.graph_replays.items():
            found.replays[size] = found.replays.get(size, 0) + count
        if record.step % EVERY == 0 and rank.rank == 0:
            print(record.progress_line(steps), flush=True)

    with CONTROLS[control](rank):
        chosen = backend or choose_backend(options.graphs.graph_backend, rank.device)
        train(options, rank.device, take, backend=chosen)
    return found


def _stale(rank: RankContext) -> AbstractContextManager[Any]:
    """No replay gets anything of its microbatch: each computes the empty one of the capture."""
    return mock.patch.object(bank, "load", lambda static, batch: None)


def _one_behind(rank: RankContext) -> AbstractContextManager[Any]:
    """A replay's attention has the boundaries of the microbatch before, of the same CP size."""
    tables: dict[PackedBatch, dict[str, torch.Tensor]] = {}

    def behind(static: PackedBatch, batch: PackedBatch) -> None:
        load(static, batch)
        into = {
            name: tensor
            for name, tensor in batch_tensors(static).items()
            if name.startswith("metadata.table")
        }
        own = {name: tensor.clone() for name, tensor in into.items()}
        for name, tensor in tables.get(static, own).items():
            into[name].copy_(tensor)
        tables[static] = own

    return mock.patch.object(bank, "load", behind)


def _one_bit(rank: RankContext) -> AbstractContextManager[Any]:
    """After its hundredth replay rank 0 turns over the last bit of one number of the result."""
    replay, calls = Graphed.replay_forward, itertools.count(1)

    def turned(graphed: Graphed, *arguments: Any, **options: Any) -> int:
        number = replay(graphed, *arguments, **options)
        if next(calls) == 100 and rank.rank == 0:
            first = graphed.static.outputs[0]
            assert first is not None, "a layer returns rows"
            first.view(torch.int64)[0, 0].bitwise_xor_(1)
        return number

    return mock.patch.object(Graphed, "replay_forward", turned)


def _nothing(rank: RankContext) -> AbstractContextManager[Any]:
    """The run as it is."""
    return nullcontext()


CONTROLS: Mapping[str, Callable[[RankContext], AbstractContextManager[Any]]] = MappingProxyType(
    {"": _nothing, "stale": _stale, "one-behind": _one_behind, "one-bit": _one_bit}
)
BROKEN = MappingProxyType(
    {
        "stale": "no replay gets anything of its microbatch",
        "one-behind": "attention has the boundaries of the microbatch before, of the same CP size",
        "one-bit": "the last bit of one number is turned over, once, after the hundredth replay",
    }
)
"""What each control does, for the table."""
