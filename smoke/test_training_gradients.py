"""What is summed after the microbatches: gradients and norm of one process, to 1e-12."""

from __future__ import annotations

import pytest

from ringproof.harness.cluster import Cluster
from ringproof.reference.topology.layout import RankLayout
from smoke.training_proof import Record, compare, must_differ, prove
from smoke.training_steps import Run

pytestmark = pytest.mark.slow  # `make test` has no time for them

LAYOUTS = [
    pytest.param(RankLayout(dp=2), id="dp2"),
    pytest.param(RankLayout(cp=2), id="cp2"),
    pytest.param(RankLayout(tp=2), id="tp2"),
    pytest.param(RankLayout(tp=4, dp=2), id="tp4-dp2", marks=pytest.mark.slow),
    pytest.param(RankLayout(tp=2, pp=2, dp=2), id="tp2-pp2-dp2"),
]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sums_are_exact(cluster: Cluster, layout: RankLayout, record_property: Record) -> None:
    prove(cluster, Run(layout=layout), record_property)


def test_without_sequence_parallelism(cluster: Cluster, record_property: Record) -> None:
    run = Run(layout=RankLayout(tp=2, pp=2), sequence_parallel=False)
    prove(cluster, run, record_property)


def test_shared_embedding_of_mtp(cluster: Cluster, record_property: Record) -> None:
    """The head is its own matrix, and the last stage embeds what MTP looks ahead to."""
    run = Run(layout=RankLayout(pp=2, tp=2), preset="moonlight-tiny", mtp=2)
    prove(cluster, run, record_property)


FAULTS = [
    # What goes wrong, where, and what must show it.
    ("summed-twice", RankLayout(dp=2), "gradients"),
    ("mean-over-domain", RankLayout(dp=2), "gradients"),
    ("mean-of-microbatches", RankLayout(dp=2), "gradients"),
    ("partial-forgotten", RankLayout(tp=2), "gradients"),
    ("embedding-forgotten", RankLayout(pp=2), "gradients"),
    ("embedding-forgotten", RankLayout(pp=2), "norms"),
    ("replicated-counted-again", RankLayout(tp=2), "norms"),
]


@pytest.mark.parametrize(("fault", "layout", "what"), FAULTS)
def test_the_proof_notices(cluster: Cluster, fault: str, layout: RankLayout, what: str) -> None:
    """Negative control; see ``training_steps`` for what each fault does."""
    must_differ(cluster, Run(layout=layout, fault=fault, steps=1, clip=0), what)


def test_a_wrong_norm_changes_no_gradient(cluster: Cluster) -> None:
    """Negative control of the controls: each fault shows in what it breaks, and only there."""
    fault = "replicated-counted-again"
    worst = compare(cluster, Run(layout=RankLayout(tp=2), fault=fault, steps=1, clip=0))
    assert worst["gradients"] < 1e-12 < worst["norms"]
