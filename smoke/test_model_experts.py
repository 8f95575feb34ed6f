"""Experts and latent attention under TP, CP and Dynamic CP against one rank, in float64 to 1e-10.

Outputs, auxiliary loss and every gradient; microbatches follow each other on groups of other
sizes. A balance loss that is counted over other ranks than its microbatch's own raises no error
and trains something else: each such fault is injected, and must show in the right places.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from ringproof.harness.cluster import Cluster
from smoke import expert_cases
from smoke.expert_cases import PartCase

pytestmark = pytest.mark.slow  # `make test` has no time for them

slow = pytest.mark.slow  # left out of the quick form of `make prove`
LAYOUTS = {
    "one rank": PartCase(part=""),
    "tp": PartCase(part="", tp=2),
    "tp with sp": PartCase(part="", tp=2, sequence_parallel=True),
    "cp 2": PartCase(part="", domain=2, sizes=(2,)),
    "cp 4": PartCase(part="", domain=4, sizes=(4,)),
    "cp 2 of 4": PartCase(part="", domain=4, sizes=(2,)),
    "dynamic": PartCase(part="", domain=4, sizes=(1, 4, 2)),
    "tp, dynamic": PartCase(part="", tp=2, domain=2, sizes=(2, 1)),
    "tp with sp, dynamic": PartCase(part="", tp=2, sequence_parallel=True, domain=2, sizes=(2, 1)),
    "tp with sp, dynamic of 4": PartCase(
        part="", tp=2, sequence_parallel=True, domain=4, sizes=(2, 4, 1)
    ),
}
BY_LAYOUT = [
    pytest.param(case, id=name, marks=slow if case.tp * case.domain > 4 else ())
    for name, case in LAYOUTS.items()
]
ROUTER = {"auxiliary", "x", "router.weight"}
"""What the balance loss is, and what it reaches."""


def measure(cluster: Cluster, *cases: PartCase) -> list[dict[str, float]]:
    world = cases[0].tp * cases[0].domain
    outcome = cluster.run(expert_cases.compare, world_size=world, cases=list(cases))
    assert all(value == outcome.values[0] for value in outcome.values)
    found: list[dict[str, float]] = outcome.values[0]
    assert len(found) == len(cases)
    return found


@pytest.mark.parametrize("case", BY_LAYOUT)
def test_experts(cluster: Cluster, case: PartCase) -> None:
    (errors,) = measure(cluster, replace(case, part="experts"))
    assert len(errors) == 8
    assert max(errors.values()) <= 1e-10, errors


@pytest.mark.parametrize("case", BY_LAYOUT)
def test_latent_attention(cluster: Cluster, case: PartCase) -> None:
    types = ("p2p", "all_gather", "a2a", "a2a+p2p")
    for errors in measure(
        cluster, *(replace(case, part="latent", comm_type=comm_type) for comm_type in types)
    ):
        assert len(errors) == 8
        assert max(errors.values()) <= 1e-10, errors


@pytest.mark.parametrize(
    ("layout", "part", "fault", "red"),
    [
        ("cp 4", "experts", "counted alone", ROUTER),
        ("cp 2 of 4", "experts", "counted over the domain", ROUTER),
        ("dynamic", "experts", "counted over the domain", ROUTER),
        ("cp 2", "experts", "padding counted", ROUTER),
        ("tp with sp", "experts", "counted without TP", ROUTER),
        ("tp with sp, dynamic", "experts", "counted without TP", ROUTER),
        ("tp with sp", "experts", "part for the whole", {"router.weight"}),
        ("tp with sp", "latent", "part for the whole", {"latent.weight", "norm.weight"}),
    ],
)
def test_a_fault_is_red(
    cluster: Cluster, layout: str, part: str, fault: str, red: set[str]
) -> None:
    """Negative control: exactly what the fault concerns is wrong."""
    (errors,) = measure(cluster, replace(LAYOUTS[layout], part=part, fault=fault))
    assert {name for name, error in errors.items() if error > 1e-10} == red, errors
    assert min(errors[name] for name in red) > 1e-6, errors


def test_a_group_as_large_as_the_domain_is_the_domain(cluster: Cluster) -> None:
    """Where both are the same ranks the fault is none: what is red above is the group."""
    case = replace(LAYOUTS["cp 4"], part="experts", fault="counted over the domain")
    (errors,) = measure(cluster, case)
    assert max(errors.values()) <= 1e-10, errors
