"""FSDP2 over the domain: the numbers of one process, to 1e-12."""

from __future__ import annotations

import pytest

from ringproof.harness.cluster import Cluster
from ringproof.reference.topology.layout import RankLayout
from smoke import training_steps
from smoke.training_proof import Record, must_differ, prove
from smoke.training_steps import Run

pytestmark = pytest.mark.slow  # `make test` has no time for them

slow = pytest.mark.slow
LAYOUTS = [
    pytest.param(RankLayout(dp=2), 1, id="dp2"),
    pytest.param(RankLayout(cp=2), 1, id="cp2"),
    pytest.param(RankLayout(dp=2, tp=2), 1, id="dp2-tp2"),
    pytest.param(RankLayout(dp=2, pp=2), 1, id="dp2-pp2"),
    pytest.param(RankLayout(dp=2, pp=2), 2, id="dp2-pp2-vpp2"),
    pytest.param(RankLayout(cp=2, pp=2, tp=2), 2, id="cp2-pp2-vpp2-tp2", marks=slow),
]


@pytest.mark.parametrize(("layout", "vpp"), LAYOUTS)
def test_sharded_is_exact(
    cluster: Cluster, layout: RankLayout, vpp: int, record_property: Record
) -> None:
    prove(cluster, Run(layout=layout, vpp=vpp, sharded=True), record_property)


@pytest.mark.parametrize("preset", ["moonlight-tiny", "nemotron-h-tiny"])
def test_every_preset_is_exact(cluster: Cluster, preset: str, record_property: Record) -> None:
    run = Run(layout=RankLayout(cp=2, pp=2), vpp=2, sharded=True, preset=preset, mtp=1)
    prove(cluster, run, record_property)


@pytest.mark.parametrize(
    ("fault", "what"),
    [
        ("fsdp-mean", "gradients"),
        ("partial-forgotten", "gradients"),
        ("replicated-counted-again", "norms"),
    ],
)
def test_the_proof_notices(cluster: Cluster, fault: str, what: str) -> None:
    """Negative control: FSDP's own mean, and the faults of replicated parameters."""
    run = Run(layout=RankLayout(dp=2, tp=2), sharded=True, fault=fault, steps=1, clip=0)
    must_differ(cluster, run, what)


@pytest.mark.parametrize(("fault", "times"), [("none", 1), ("reduced-every-time", 4)])
@pytest.mark.parametrize("vpp", [1, 2])
def test_gradients_are_reduced_once(cluster: Cluster, vpp: int, fault: str, times: int) -> None:
    """Of each FSDP module once a step; with every microbatch where nothing defers it."""
    run = Run(layout=RankLayout(dp=2, pp=2), vpp=vpp, sharded=True, fault=fault)
    counts = cluster.run(training_steps.count_reductions, world_size=4, run=run).values
    # Two layers and what is outside of layers: the embedding, which is the head, too. Of a
    # chunk without either nothing is left over.
    assert counts == (3 * times,) * 4
