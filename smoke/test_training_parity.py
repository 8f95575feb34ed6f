"""Thirty optimiser steps of each kind of training against one rank: a choice of the matrix.

Those that take longest are marked slow; the others cover every model and every kind of parallelism.
The whole matrix (every preset, with and without MTP, in every layout) is recorded by
`benchmarks/training/matrix.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ringproof.cluster import Cluster
from smoke import trials
from smoke.training_matrix import (
    ONE_RANK,
    PRESETS,
    SPREADS,
    STEPS,
    TOLERANCE,
    Series,
    Spread,
    largest_difference,
    options_of,
    series,
)

LIMIT_SECONDS = 110.0
"""Of a run; a busy machine needs most of it for thirty steps on eight ranks."""
GLOBAL_BATCH = 4
"""Sequences of a step: few, since each microbatch costs the same messages however short it is."""
LEARNT = 0.97
"""Of the first loss, at most, in the end: a model that learns nothing proves nothing."""

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
    ("nemotron-h-tiny", 0, "dynamic on 4, all_gather"),
    ("nemotron-h-tiny", 0, "dynamic on 4"),
    ("nemotron-h-tiny", 0, "PP 2"),
)


class References:
    """One rank's runs, each made once."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._kept: dict[tuple[str, int], Series] = {}

    def of(self, preset: str, mtp: int) -> Series:
        """Loss and gradient norm of each step."""
        if (preset, mtp) not in self._kept:
            options = options_of(preset, ONE_RANK, mtp=mtp, global_batch=GLOBAL_BATCH)
            found = self._cluster.run(series, world_size=1, options=options).values[0]
            self._kept[preset, mtp] = found
        return self._kept[preset, mtp]


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
    }
)
VARIANTS = [
    pytest.param(
        preset,
        mtp,
        name,
        id=f"{preset}+{mtp}-{name}",
        marks=pytest.mark.slow if name in SLOW else (),
    )
    for preset, mtp, name in CHOSEN
]


@pytest.mark.parametrize(("preset", "mtp", "name"), VARIANTS)
def test_a_training_is_that_of_one_rank(
    cluster: Cluster,
    references: References,
    record_property: Callable[[str, object], None],
    preset: str,
    mtp: int,
    name: str,
) -> None:
    wanted = references.of(preset, mtp)
    assert len(wanted) == STEPS
    assert wanted[-1][0] < LEARNT * wanted[0][0]
    spread = SPREADS[name]
    options = options_of(preset, spread, mtp=mtp, global_batch=GLOBAL_BATCH)
    values = cluster.run(
        series, world_size=spread.ranks, timeout_seconds=LIMIT_SECONDS, options=options
    ).values
    assert all(value == values[0] for value in values), "every rank knows the same numbers"
    difference = largest_difference(values[0], wanted)
    record_property("max_relative_difference", difference)
    assert difference <= TOLERANCE


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


@pytest.mark.slow
def test_a_wrong_normaliser_still_learns_and_is_seen(
    cluster: Cluster, references: References
) -> None:
    """Negative control: a mean over microbatches."""
    turns = Spread({"cp": 2}, batch={"forced_sizes": (2, 1)})
    options = options_of("qwen3-tiny", turns, global_batch=GLOBAL_BATCH)
    fault = "mean-of-microbatches"
    run = cluster.run(trials.train, world_size=2, options=options, fault=fault).values[0].steps
    assert run[-1][0] < LEARNT * run[0][0]
    assert largest_difference(run, references.of("qwen3-tiny", 0)) > 1e-4
