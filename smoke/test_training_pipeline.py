"""Microbatches through torch's pipeline schedules: the numbers of one process, to 1e-12."""

from __future__ import annotations

import pytest

from ringproof.errors import InputError
from ringproof.harness.cluster import Cluster
from ringproof.reference.topology.layout import RankLayout
from smoke import training_steps
from smoke.training_proof import Record, must_differ, prove
from smoke.training_steps import Run

slow = pytest.mark.slow
PIPELINES = [
    pytest.param(RankLayout(pp=2), 1, id="pp2"),
    pytest.param(RankLayout(pp=4), 1, id="pp4"),
    pytest.param(RankLayout(pp=2), 2, id="pp2-vpp2"),
    pytest.param(RankLayout(pp=2, dp=2), 2, id="pp2-vpp2-dp2"),
    pytest.param(RankLayout(pp=2, tp=2, cp=2), 1, id="pp2-tp2-cp2"),
    pytest.param(RankLayout(pp=2, tp=2, cp=2), 2, id="pp2-vpp2-tp2-cp2", marks=slow),
]


@pytest.mark.parametrize(("layout", "vpp"), PIPELINES)
def test_pipeline_is_exact(
    cluster: Cluster, layout: RankLayout, vpp: int, record_property: Record
) -> None:
    prove(cluster, Run(layout=layout, vpp=vpp), record_property)


@pytest.mark.parametrize("preset", ["moonlight-tiny", "nemotron-h-tiny"])
def test_every_preset_is_exact(cluster: Cluster, preset: str, record_property: Record) -> None:
    run = Run(layout=RankLayout(pp=2, dp=2), vpp=2, preset=preset, mtp=1)
    prove(cluster, run, record_property)


def test_number_of_microbatches_may_change(cluster: Cluster, record_property: Record) -> None:
    """Fewer than stages, more, and fewer again: each has its own schedule."""
    run = Run(layout=RankLayout(pp=4), microbatches=(2, 6, 4, 1, 6), steps=5)
    prove(cluster, run, record_property)


def test_rows_beyond_the_real_ones_are_never_seen(
    cluster: Cluster, record_property: Record
) -> None:
    """What lies in a message behind a microbatch's rows is not a number."""
    run = Run(layout=RankLayout(pp=2), vpp=2, fault="poisoned-padding")
    prove(cluster, run, record_property)


def test_the_proof_notices_a_wrong_microbatch(cluster: Cluster) -> None:
    """Negative control: a stage takes the metadata of another microbatch of the same rows."""
    run = Run(layout=RankLayout(pp=2), fault="stale-batch", lengths="equal")
    must_differ(cluster, run, "losses")


def test_too_many_rows_are_refused(cluster: Cluster) -> None:
    with pytest.raises(InputError, match="a pipeline message holds 8 rows"):
        cluster.run(
            training_steps.train, world_size=2, run=Run(layout=RankLayout(pp=2), capacity=8)
        )


def test_uneven_rounds_are_refused(cluster: Cluster) -> None:
    with pytest.raises(InputError, match="plan a multiple of 2"):
        cluster.run(
            training_steps.train,
            world_size=2,
            run=Run(layout=RankLayout(pp=2), vpp=2, microbatches=(7, 7)),
        )
