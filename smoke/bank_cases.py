"""What the ranks of the graph bank's tests run: a training on packs of capacity, and its counts."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

from ringproof.harness.cluster import Cluster, RankContext
from ringproof.harness.tape.backend import choose_backend
from ringproof.reference.graphs import bank
from ringproof.reference.graphs.backend import CaptureBackend
from ringproof.reference.training.options import GraphOptions, TrainOptions
from ringproof.reference.training.records import Record, StepRecord
from ringproof.reference.training.trainer import train
from smoke.training_matrix import Series, Spread, options_of

STATIC = GraphOptions(graphs="static")


@dataclass
class Trained:
    """What a run came to."""

    series: Series = field(default_factory=list)
    replays: dict[int, int] = field(default_factory=dict)
    eager: int = 0


def bank_options(
    preset: str, spread: Spread, graphs: GraphOptions, *, steps: int = 2, **batch: Any
) -> TrainOptions:
    """The run of a variant, on packs of capacity."""
    return replace(options_of(preset, spread, steps=steps, **batch), graphs=graphs)


def trained(
    rank: RankContext,
    *,
    options: TrainOptions,
    fault: str = "none",
    backend: CaptureBackend | None = None,
) -> Trained:
    """Train and count; with the fault ``stale`` no replay gets the metadata of its microbatch."""
    found = Trained()

    def take(record: Record) -> None:
        if isinstance(record, StepRecord):
            found.series.append((record.loss, record.grad_norm))
            found.eager += record.graph_eager
            for size, count in record.graph_replays.items():
                found.replays[size] = found.replays.get(size, 0) + count

    stale = mock.patch.object(bank, "load", lambda static, batch: None)
    with stale if fault == "stale" else nullcontext():
        train(options, rank.device, take, backend=backend or choose_backend("auto", rank.device))
    return found


def run(
    cluster: Cluster, preset: str, spread: Spread, graphs: GraphOptions, *, fault: str = "none"
) -> Trained:
    """A training on ranks of a cluster; all of them come to the same."""
    options = bank_options(preset, spread, graphs)
    outcome = cluster.run(trained, world_size=spread.ranks, options=options, fault=fault)
    found: Trained = outcome.values[0]
    assert all(value.series == found.series for value in outcome.values)
    return found


def aborted(rank: RankContext, *, options: TrainOptions) -> Trained:
    """The same, but the capture of the last rank refuses: all ranks have to."""
    capture = bank._capture

    def refuse(*arguments: Any, **options: Any) -> Any:
        if rank.rank == rank.world_size - 1:
            raise bank.InputError("layers.3", None, "reads back", "do not capture it")
        return capture(*arguments, **options)

    with mock.patch.object(bank, "_capture", refuse):
        return trained(rank, options=options)
