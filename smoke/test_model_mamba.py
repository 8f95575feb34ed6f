"""The Mamba-2 mixer over TP and CP against one rank, in float64 to 1e-10.

Output, gradient of the input and of every parameter; rows of padding hold NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from ringproof.errors import InputError
from ringproof.harness.cluster import Cluster
from smoke import mamba_cases
from smoke.mamba_cases import FAULTS, MixerCase

TOLERANCE = 1e-10
Record = Callable[[str, object], None]
# Groups whole on a rank, a group over several ranks, ranks that take the heads of two groups.
CP = {
    1: [MixerCase()],
    2: [MixerCase(), MixerCase(heads=6, groups=3), MixerCase(heads=6, groups=1)],
    3: [MixerCase(heads=6, groups=2), MixerCase(heads=6, groups=3), MixerCase(heads=12, groups=4)],
    4: [MixerCase(), MixerCase(groups=8), MixerCase(heads=12, groups=3)],
    8: [MixerCase(), MixerCase(heads=24, groups=3)],
}


def differences(cluster: Cluster, world: int, cases: Sequence[MixerCase]) -> list[float]:
    """The largest over ranks, output and gradients, of each case."""
    values = cluster.run(mamba_cases.measure, world_size=world, cases=cases).values
    found = []
    for by_rank in zip(*values, strict=True):
        # y, x, two projections, two of the convolution, dt bias, A, skip and norm
        assert [len(errors) for errors in by_rank] == [10] * world
        found.append(max(value for errors in by_rank for value in errors.values()))
    assert len(found) == len(cases)
    return found


def both_partitions(cases: Sequence[MixerCase]) -> list[MixerCase]:
    return [
        MixerCase(heads=case.heads, groups=case.groups, partition=partition)
        for case in cases
        for partition in ("zigzag", "contiguous")
    ]


@pytest.mark.parametrize("world", [1, 2, 3, 4, pytest.param(8, marks=pytest.mark.slow)])
def test_context_parallel_is_exact(
    cpu_cluster: Cluster, world: int, record_property: Record
) -> None:
    found = differences(cpu_cluster, world, both_partitions(CP[world]))
    record_property("max_abs_error", max(found))
    assert max(found) <= TOLERANCE, found


@pytest.mark.parametrize("world", [2, 4, pytest.param(8, marks=pytest.mark.slow)])
def test_tensor_parallel_is_exact_with_it(
    cpu_cluster: Cluster, world: int, record_property: Record
) -> None:
    """TP 2 with CP 1, 2 and 4, with and without sequence parallelism."""
    cases = [
        MixerCase(groups=groups, tp=2, sequence_parallel=sequence_parallel)
        for sequence_parallel in (False, True)
        for groups in (2, 4)
    ]
    found = differences(cpu_cluster, world, cases)
    record_property("max_abs_error", max(found))
    assert max(found) <= TOLERANCE, found


def test_each_microbatch_brings_its_own_group(
    cpu_cluster: Cluster, record_property: Record
) -> None:
    """Dynamic CP: sizes change back and forth between forwards and backwards of one mixer."""
    sizes = (2, 8, 1, 4)
    values = cpu_cluster.run(mamba_cases.switch, case=MixerCase(), sizes=sizes).values
    assert all(len(errors) == 9 for errors in values)
    worst = max(value for errors in values for value in errors.values())
    record_property("max_abs_error", worst)
    assert worst <= TOLERANCE, values


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault])
def test_the_proof_notices_a_broken_mixer(cpu_cluster: Cluster, fault: str) -> None:
    """Negative control: one thing wrong, and the same measurement is red."""
    sound, broken = differences(cpu_cluster, 4, [MixerCase(), MixerCase(fault=fault)])
    assert sound <= TOLERANCE
    assert broken > 1e-2


def test_ranks_that_cannot_share_the_heads_are_refused(cpu_cluster: Cluster) -> None:
    with pytest.raises(InputError, match=r"mamba heads: a TP rank has 8, .*\(TP 1, CP 3\)"):
        cpu_cluster.run(mamba_cases.refuse, world_size=3, case=MixerCase())
