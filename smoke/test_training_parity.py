"""Trainings against one rank: a choice of the matrix for thirty steps, every layout for a few.

Dynamic CP, two levels and a broken training are quick; the others are marked slow.
The whole matrix (every preset, with and without MTP, in every layout) is recorded by
`benchmarks/training/matrix.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from unittest import mock

import pytest
import torch.distributed as dist

from ringproof.cluster import Cluster, RankContext
from ringproof.reference.training import pipeline
from ringproof.reference.training.assembly import assembly
from ringproof.reference.training.options import KeepingOptions, TrainOptions
from ringproof.reference.training.trainer import train_step
from smoke import trials
from smoke.training_matrix import (
    ONE_RANK,
    PRESETS,
    SPREADS,
    STEPS,
    TOLERANCE,
    Spread,
    Trace,
    largest_difference,
    options_of,
    relative,
)

slow = pytest.mark.slow  # left to `make test-slow`

LIMIT_SECONDS = 110.0
"""Of a run; a busy machine needs most of it for thirty steps on eight ranks."""
CURVE_STEPS = 12
"""In which the loss falls to 0.81 of the first."""
FEW_STEPS = 4
GLOBAL_BATCH = {STEPS: 4, CURVE_STEPS: 4, FEW_STEPS: 8}
"""Sequences of a step, by the number of steps: each microbatch costs the same messages however
short it is."""
LEARNT = 0.97
"""Of the first loss, at most, in the end: a model that learns nothing proves nothing."""
Record = Callable[[str, object], None]

# Preset, MTP depths, layout.
CHOSEN = (
    ("qwen3-tiny", 0, "dynamic on 8, sizes 1, 2, 4, 8"),
    ("qwen3-tiny", 0, "PP 2 x VPP 2"),
    ("qwen3-tiny", 0, "CP 2, padded"),
    ("qwen3-tiny", 1, "TP 2 x PP 2 x dynamic on 2"),
    ("qwen3-tiny", 1, "dynamic on 4, a2a+p2p"),
    ("moonlight-tiny", 1, "TP 2"),
    ("moonlight-tiny", 1, "dynamic on 4, a2a"),
    ("moonlight-tiny", 1, "FSDP2, PP 2, dynamic on 2"),
    ("qwen3-tiny", 0, "dynamic on 4, all_gather"),
    ("moonlight-tiny", 0, "dynamic on 4"),
    ("qwen3-tiny", 0, "PP 2"),
)


class References:
    """One rank's runs, each made once."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._kept: dict[tuple[str, int, int], Trace] = {}

    def of(self, preset: str, mtp: int, steps: int = STEPS) -> Trace:
        """What one rank measures."""
        key = (preset, mtp, steps)
        if key not in self._kept:
            run = {"world_size": 1, "options": run_of(preset, mtp, ONE_RANK, steps)}
            self._kept[key] = self._cluster.run(trials.train, **run).values[0]
        return self._kept[key]

    def check_equal(
        self, preset: str, mtp: int, spread: Spread, record: Record, *, steps: int
    ) -> None:
        """Assert that every rank of a training measures what one rank does."""
        wanted = self.of(preset, mtp, steps)
        assert len(wanted.steps) == steps
        options = run_of(preset, mtp, spread, steps)
        values = self._cluster.run(
            trials.train, world_size=spread.ranks, timeout_seconds=LIMIT_SECONDS, options=options
        ).values
        assert all(value == values[0] for value in values), "every rank knows the same numbers"
        difference = largest_difference(values[0].steps, wanted.steps)
        record("max_relative_difference", difference)
        assert difference <= TOLERANCE
        for found, expected in zip(values[0].evaluations, wanted.evaluations, strict=True):
            assert relative(found, expected) <= TOLERANCE


def run_of(preset: str, mtp: int, spread: Spread, steps: int) -> TrainOptions:
    """A run that evaluates once, at its end."""
    batch = GLOBAL_BATCH[steps]
    options = options_of(preset, spread, mtp=mtp, steps=steps, global_batch=batch)
    return replace(options, keeping=KeepingOptions(evaluate_every=steps, evaluate_batches=1))


@pytest.fixture(scope="module")
def references(cluster: Cluster) -> References:
    return References(cluster)


SLOW = frozenset(
    {
        "dynamic on 8, sizes 1, 2, 4, 8",
        "TP 2",
        "dynamic on 4, a2a",
        "dynamic on 4, a2a+p2p",
        "dynamic on 4, all_gather",
        "TP 2 x PP 2 x dynamic on 2",
        "FSDP2, PP 2, dynamic on 2",
        "CP 2, padded",
        "PP 2",
        "PP 2 x VPP 2",
    }
)
VARIANTS = [
    pytest.param(
        preset,
        mtp,
        name,
        id=f"{preset}+{mtp}-{name}",
        marks=slow if name in SLOW else (),
    )
    for preset, mtp, name in CHOSEN
]


@pytest.mark.parametrize(("preset", "mtp", "name"), VARIANTS)
def test_a_training_is_that_of_one_rank(
    references: References, record_property: Record, preset: str, mtp: int, name: str
) -> None:
    wanted = references.of(preset, mtp).steps
    assert wanted[-1][0] < LEARNT * wanted[0][0]
    references.check_equal(preset, mtp, SPREADS[name], record_property, steps=STEPS)


LEVELS = {"comm_type": "a2a+p2p", "ranks_per_node": 2}
# The steps of PP 4 have 3, 4, 4 and 5 microbatches: each number has a schedule of its own.
LAYOUTS = {"PP 4": Spread({"pp": 4}, batch={"schedule": "packed"}), **SPREADS}
IN_TURN = zip(LAYOUTS, itertools.cycle(itertools.product(PRESETS, (0, 1))), strict=False)


@pytest.mark.parametrize(
    ("name", "model"),
    [pytest.param(n, m, id=n, marks=() if n == "PP 4" else slow) for n, m in IN_TURN],
)
def test_a_few_steps_are_those_of_one_rank_in_every_layout(
    references: References, record_property: Record, name: str, model: tuple[str, int]
) -> None:
    references.check_equal(*model, LAYOUTS[name], record_property, steps=FEW_STEPS)


def test_the_chosen_ones_cover_every_kind() -> None:
    spreads = [SPREADS[name] for _, _, name in CHOSEN]
    parallel = [spread.parallel for spread in spreads]
    assert {preset for preset, _, _ in CHOSEN} == set(PRESETS)
    assert {mtp for _, mtp, _ in CHOSEN} == {0, 1}
    assert {one.get("comm_type", "p2p") for one in parallel} == {
        "p2p",
        "all_gather",
        "a2a",
        "a2a+p2p",
    }
    assert any(one.get("fully_sharded") for one in parallel)
    assert any(one.get("vpp", 1) > 1 for one in parallel)
    forced = {size for spread in spreads for size in spread.batch.get("forced_sizes", ())}
    assert forced == {1, 2, 4, 8}
    for axis in ("tp", "pp", "cp", "dp"):
        assert any(spread.layout.get(axis, 1) > 1 for spread in spreads), axis
    everything = [s for s in spreads if {"tp", "pp", "cp"} <= s.layout.keys() and s.ranks == 8]
    assert everything


def test_two_levels_follow_the_loss_curve_of_one_rank(
    references: References, record_property: Record
) -> None:
    """CP 4 as [2, 2]."""
    wanted = references.of("qwen3-tiny", 0, CURVE_STEPS).steps
    record_property("first_loss", wanted[0][0])
    record_property("last_loss", wanted[-1][0])
    assert wanted[-1][0] < LEARNT * wanted[0][0]
    spread = Spread({"cp": 4}, LEVELS, batch={"schedule": "packed"})
    references.check_equal("qwen3-tiny", 0, spread, record_property, steps=CURVE_STEPS)


@pytest.mark.parametrize(
    ("fault", "spread"),
    [
        ("attention-left-alone", Spread({"cp": 4}, LEVELS, batch={"forced_sizes": (4, 1)})),
        pytest.param(
            "mean-of-microbatches", Spread({"cp": 2}, batch={"forced_sizes": (2, 1)}), marks=slow
        ),
    ],
)
def test_a_broken_training_still_learns_and_is_seen(
    cluster: Cluster, references: References, fault: str, spread: Spread
) -> None:
    """Negative control."""
    options = run_of("qwen3-tiny", 0, spread, CURVE_STEPS)
    run = {"world_size": spread.ranks, "options": options, "fault": fault}
    found = cluster.run(trials.train, **run).values[0].steps
    assert found[-1][0] < LEARNT * found[0][0]
    assert largest_difference(found, references.of("qwen3-tiny", 0, CURVE_STEPS).steps) > 1e-4


def test_uneven_rounds_are_refused_by_the_pipeline(cluster: Cluster) -> None:
    """A plan whose number of microbatches interleaved 1F1B cannot run."""
    spread = Spread({"pp": 2}, {"vpp": 2}, {"forced_sizes": (1,)})
    options = options_of("qwen3-tiny", spread, steps=4)
    fault = "microbatches-not-in-rounds"
    for value in cluster.run(trials.train, world_size=2, options=options, fault=fault).values:
        assert "plan a multiple of 2" in value.refused[1]


def count_reductions(rank: RankContext, *, options: TrainOptions, deferred: bool) -> float:
    """Reduce-scatters over the domain in one step; divided by its microbatches if not deferred."""
    names = ("reduce_scatter_single", "reduce_scatter_tensor")  # torch 2.13 renamed it
    name = next(name for name in names if hasattr(dist, name))
    defer = pipeline.StageCall.before_backward if deferred else lambda call, last: None
    with (
        mock.patch.object(dist, name, side_effect=getattr(dist, name)) as counted,
        mock.patch.object(pipeline.StageCall, "before_backward", defer),
        assembly(options, rank.device) as parts,
    ):
        microbatches = len(train_step(parts, 0).microbatches)
        return counted.call_count / (1 if deferred else microbatches)


@slow
@pytest.mark.parametrize("deferred", [True, False])
@pytest.mark.parametrize("vpp", [1, 2])
def test_gradients_are_reduced_once(cluster: Cluster, vpp: int, deferred: bool) -> None:
    """Once a step for each FSDP module; with every microbatch where nothing defers it."""
    parallel = {"vpp": vpp, "fully_sharded": True}
    options = options_of("qwen3-tiny", Spread({"pp": 2, "dp": 2}, parallel))
    run = {"world_size": 4, "options": options, "deferred": deferred}
    # Two layers and what is outside of layers: the embedding, which is the head, too. A chunk
    # without either leaves nothing over.
    assert cluster.run(count_reductions, **run).values == (3,) * 4
