"""Combinations that cannot work are refused by name, on every rank, before anything moves."""

from __future__ import annotations

from typing import Any

import pytest

from ringproof.cluster import Cluster
from ringproof.errors import InputError
from smoke import cases

SHAPE = {"rows": 8, "heads": 8, "kv_heads": 4}


def attend(cluster: Cluster, world: int = 4, **arguments: Any) -> list[dict[str, int]]:
    outcome = cluster.run(cases.attend, world_size=world, **{**SHAPE, **arguments})
    return list(outcome.values)


def test_ulysses_needs_divisible_heads(cluster: Cluster) -> None:
    with pytest.raises(
        InputError, match=r"^heads: 6 heads cannot be divided by an all-to-all over 4 ranks"
    ):
        attend(cluster, comm_type="a2a", heads=6, kv_heads=2)
    with pytest.raises(
        InputError, match=r"^kv_heads: 2 heads cannot be divided by an all-to-all over 4"
    ):
        attend(cluster, comm_type="a2a", kv_heads=2)
    assert attend(cluster, comm_type="a2a")


def test_replicated_kv_heads_lift_the_limit(cluster: Cluster) -> None:
    sent = attend(cluster, comm_type="a2a", kv_heads=2, kv_replication=2)[0]
    assert sent["CONTEXT_PARALLEL_GROUP"] > 0
    with pytest.raises(InputError, match="kv_heads"):
        attend(cluster, comm_type="a2a", kv_heads=2, kv_replication=3)


def test_hierarchical_needs_only_level_zero_heads(cluster: Cluster) -> None:
    """Two kv heads on four ranks: too few for a2a, enough for a2a+p2p with a first level of 2."""
    assert attend(cluster, comm_type="a2a+p2p", kv_heads=2, sizes=(2, 2))
    with pytest.raises(InputError, match="kv_heads"):
        attend(cluster, comm_type="a2a+p2p", kv_heads=2, sizes=(4, 1))


def test_zigzag_needs_divisible_sequence(cluster: Cluster) -> None:
    with pytest.raises(InputError, match=r"seq_len: .* zigzag over 4 CP ranks; .* multiple of 8"):
        attend(cluster, comm_type="p2p", rows=7)
    assert attend(cluster, comm_type="p2p", rows=7, partition="contiguous")


@pytest.mark.parametrize("comm_type", ["p2p", "all_gather", "a2a", "a2a+p2p"])
def test_a_missing_group_is_refused(cluster: Cluster, comm_type: str) -> None:
    """Upstream turns it into attention within the chunk, silently."""
    with pytest.raises(InputError, match="group"):
        attend(cluster, comm_type=comm_type, group="missing")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"comm_type": "banana"}, "comm_type: 'banana' is unknown"),
        ({"comm_type": "p2p", "kernel": "cudnn"}, "kernel: 'cudnn' is unknown"),
        ({"comm_type": "p2p", "partition": "stripes"}, "partition: 'stripes' is unknown"),
        ({"comm_type": "p2p", "heads": 8, "kv_heads": 3}, "kv_heads: 3 does not divide 8"),
        ({"comm_type": "p2p", "kv_replication": 0}, "kv_replication: 0 is less than 1"),
        ({"comm_type": "p2p", "kv_replication": 2}, "kv_replication: .*there is no all-to-all"),
        ({"comm_type": "p2p", "rows": 0}, "q, k, v: .* not all \\[batch, sequence"),
        ({"comm_type": "p2p", "dtypes": ("bfloat16", "float32")}, "not of one floating type"),
        ({"comm_type": "p2p", "dtypes": ("int64", "int64")}, "not of one floating type"),
        ({"comm_type": "a2a+p2p", "group": "one"}, "group: a2a\\+p2p takes two levels"),
        ({"comm_type": "a2a+p2p", "group": "three"}, "group: a2a\\+p2p takes two levels"),
        (
            {"comm_type": "a2a+p2p", "group": "same"},
            "group: the levels .* share 4 ranks instead of one",
        ),
    ],
)
def test_unknown_names_shapes_and_groups_are_refused(
    cluster: Cluster, arguments: dict[str, Any], named: str
) -> None:
    with pytest.raises(InputError, match=named):
        attend(cluster, **arguments)
