"""Steps over stages, sharded or not, on many ranks: the numbers of one process, to 1e-12."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from ringproof.cluster import Cluster, RankContext
from ringproof.errors import InputError
from ringproof.reference.topology.layout import RankLayout
from ringproof.reference.training import pipeline
from ringproof.reference.training.assembly import assembly
from smoke import training_steps
from smoke.training_steps import Run

TOLERANCE = 1e-12
Record = Callable[[str, object], None]
slow = pytest.mark.slow  # left to `make test-slow`
PP2, TP2, DP2 = RankLayout(pp=2), RankLayout(tp=2), RankLayout(dp=2)
PP2_DP2, TP2_DP2 = RankLayout(pp=2, dp=2), RankLayout(tp=2, dp=2)
EIGHT = RankLayout(pp=2, tp=2, cp=2)
PRESETS = ("moonlight-tiny", "nemotron-h-tiny")
RUNS = {
    "pp2": Run(layout=PP2),
    "pp4": Run(layout=RankLayout(pp=4)),
    "pp2-vpp2": Run(layout=PP2, vpp=2),
    "pp2-vpp2-dp2": Run(layout=PP2_DP2, vpp=2),
    "pp2-tp2-cp2": Run(layout=EIGHT),
    # Fewer microbatches than stages, more, and fewer again: each number has its own schedule.
    "microbatches": Run(layout=RankLayout(pp=4), microbatches=(2, 6, 4, 1, 6), steps=5),
    "pp2-vpp2-dp2-moonlight-tiny": Run(layout=PP2_DP2, vpp=2, preset="moonlight-tiny", mtp=1),
}
SLOW_RUNS = {
    "pp2-vpp2-dp2-nemotron-h-tiny": Run(layout=PP2_DP2, vpp=2, preset="nemotron-h-tiny", mtp=1),
    "pp2-vpp2-tp2-cp2": Run(layout=EIGHT, vpp=2),
    "dp2": Run(layout=DP2),
    "cp2": Run(layout=RankLayout(cp=2)),
    "tp2": Run(layout=TP2),
    "tp4-dp2": Run(layout=RankLayout(tp=4, dp=2)),
    "tp2-pp2-dp2": Run(layout=RankLayout(tp=2, pp=2, dp=2)),
    "tp2-pp2-no-sp": Run(layout=RankLayout(tp=2, pp=2), sequence_parallel=False),
    # The head is its own matrix, and the last stage embeds what MTP looks ahead to.
    "pp2-tp2-mtp": Run(layout=RankLayout(pp=2, tp=2), preset="moonlight-tiny", mtp=2),
    "fsdp-dp2": Run(layout=DP2, sharded=True),
    "fsdp-cp2": Run(layout=RankLayout(cp=2), sharded=True),
    "fsdp-dp2-tp2": Run(layout=TP2_DP2, sharded=True),
    "fsdp-dp2-pp2": Run(layout=PP2_DP2, sharded=True),
    "fsdp-dp2-pp2-vpp2": Run(layout=PP2_DP2, vpp=2, sharded=True),
    "fsdp-cp2-pp2-vpp2-tp2": Run(layout=EIGHT, vpp=2, sharded=True),
    **{
        f"fsdp-cp2-pp2-vpp2-{name}": Run(
            layout=RankLayout(cp=2, pp=2), vpp=2, sharded=True, preset=name, mtp=1
        )
        for name in PRESETS
    },
}


def distance(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Largest difference, relative to the largest number of the tensor."""
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1e-300))


def compare(
    cluster: Cluster, run: Run, case: Callable[..., Any] = training_steps.train
) -> dict[str, float]:
    """Distances of gradients, parameters, losses with norms, and an evaluation from one rank."""
    reference = run.alone()
    values = cluster.run(case, world_size=run.layout.world_size, run=run).values
    alone = cluster.run(training_steps.train, world_size=1, run=reference).values
    worst: dict[str, float] = {}
    for what in ("gradients", "parameters"):
        ours = training_steps.assemble(run, values, what)
        theirs = training_steps.assemble(reference, alone, what)
        assert ours
        assert ours.keys() == theirs.keys()
        worst[what] = max(distance(ours[name], theirs[name]) for name in theirs)
    for what in ("losses", "norms", "evaluation"):
        ours_series = torch.tensor([value[what] for value in values], dtype=torch.float64)
        assert (ours_series == ours_series[0]).all(), f"ranks disagree about {what}"
        expected = torch.tensor(alone[0][what], dtype=torch.float64)
        assert expected.max() > 0
        worst[what] = distance(ours_series[0], expected)
    return worst


def check_exact(worst: dict[str, float], record: Record) -> None:
    # AdamW divides by the root of a gradient's square: rounding grows where gradients are tiny.
    moved = worst.pop("parameters")
    record("max_relative_difference", max(worst.values()))
    assert max(worst.values()) <= TOLERANCE, worst
    assert moved <= 100 * TOLERANCE, moved


@pytest.mark.parametrize("name", [*RUNS, *(pytest.param(name, marks=slow) for name in SLOW_RUNS)])
def test_a_run_is_exact(cluster: Cluster, name: str, record_property: Record) -> None:
    check_exact(compare(cluster, {**RUNS, **SLOW_RUNS}[name]), record_property)


def poisoned(rank: RankContext, *, run: Run) -> dict[str, Any]:
    """What lies in a message behind a microbatch's rows is NaN."""
    pad = torch.nn.functional.pad
    with mock.patch.object(
        pipeline.functional, "pad", lambda x, widths: pad(x, widths, value=math.nan)
    ):
        return training_steps.train(rank, run=run)


def test_rows_beyond_the_real_ones_are_never_seen(
    cluster: Cluster, record_property: Record
) -> None:
    check_exact(compare(cluster, Run(layout=PP2, vpp=2), poisoned), record_property)


# What goes wrong, in which run, and what must show it.
FAULTS = [
    ("stage-one-microbatch-behind", Run(layout=PP2, equal_lengths=True), {"losses"}),
    pytest.param("gradients-summed-twice", Run(layout=DP2), {"gradients"}, marks=slow),
    pytest.param("tied-embedding-not-summed", Run(layout=PP2), {"gradients", "norms"}, marks=slow),
    pytest.param("norm-counts-copies", Run(layout=TP2), {"norms"}, marks=slow),
    pytest.param("fsdp-averages", Run(layout=TP2_DP2, sharded=True), {"gradients"}, marks=slow),
]


@pytest.mark.parametrize(("fault", "run", "shown"), FAULTS)
def test_the_proof_notices(cluster: Cluster, fault: str, run: Run, shown: set[str]) -> None:
    """Negative control; a wrong norm shows in the norm alone."""
    worst = compare(cluster, replace(run, fault=fault, steps=1))
    assert min(worst[what] for what in shown) > 1e-6, worst
    if shown == {"norms"}:
        assert worst["gradients"] < 1e-12


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (Run(layout=PP2, capacity=8), "a pipeline message holds 8 rows"),
        (Run(layout=PP2, vpp=2, microbatches=(7, 7)), "plan a multiple of 2"),
    ],
    ids=["too many rows", "uneven rounds"],
)
def test_what_a_pipeline_cannot_run_is_refused(cluster: Cluster, run: Run, said: str) -> None:
    with pytest.raises(InputError, match=said):
        cluster.run(training_steps.train, world_size=2, run=run)


def count_reductions(rank: RankContext, *, run: Run, deferred: bool) -> int:
    """Reduce-scatters over the domain in one step."""
    names = ("reduce_scatter_single", "reduce_scatter_tensor")  # torch 2.13 renamed it
    name = next(name for name in names if hasattr(dist, name))
    defer = pipeline.StageCall.before_backward if deferred else lambda call, last: None
    with (
        mock.patch.object(dist, name, side_effect=getattr(dist, name)) as counted,
        mock.patch.object(pipeline.StageCall, "before_backward", defer),
        assembly(run.options, rank.device) as parts,
    ):
        training_steps.step(run, parts, 0)
        return counted.call_count


@slow
@pytest.mark.parametrize(("deferred", "times"), [(True, 1), (False, 4)])
@pytest.mark.parametrize("vpp", [1, 2])
def test_gradients_are_reduced_once(cluster: Cluster, vpp: int, deferred: bool, times: int) -> None:
    """Once a step for each FSDP module; with every microbatch where nothing defers it."""
    run = Run(layout=PP2_DP2, vpp=vpp, sharded=True)
    counts = cluster.run(count_reductions, world_size=4, run=run, deferred=deferred).values
    # Two layers and what is outside of layers: the embedding, which is the head, too. A chunk
    # without either leaves nothing over.
    assert counts == (3 * times,) * 4
