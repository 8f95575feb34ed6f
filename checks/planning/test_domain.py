"""Group sizes and the selections of them that can be laid side by side."""

from __future__ import annotations

import itertools

import pytest

from ringproof.errors import InputError
from ringproof.reference.planning.domain import Domain, choose_cp_sizes, divisors, nested


@pytest.mark.parametrize(
    ("spec", "ranks", "minimum", "sizes"),
    [
        ("pow2", 8, 1, (1, 2, 4, 8)),
        ("pow2", 8, 2, (2, 4, 8)),
        ("pow2", 12, 1, (1, 2, 4, 12)),
        ("pow2", 7, 1, (1, 7)),
        ("pow2", 1, 1, (1,)),
        ("divisors", 12, 1, (1, 2, 3, 4, 6, 12)),
        ("divisors", 12, 3, (3, 4, 6, 12)),
        ("4,1,2", 8, 1, (1, 2, 4)),
        ("3, 1", 6, 2, (3,)),
    ],
)
def test_sizes(spec: str, ranks: int, minimum: int, sizes: tuple[int, ...]) -> None:
    assert choose_cp_sizes(spec, ranks, minimum) == sizes


@pytest.mark.parametrize("spec", ["", "powers", "1,,2", "0", "3", "-1", "1e3", "9" * 40])
def test_bad_sizes(spec: str) -> None:
    with pytest.raises(InputError, match="cp-sizes"):
        choose_cp_sizes(spec, 8)
    with pytest.raises(InputError, match="leaves no group size"):
        choose_cp_sizes("pow2", 8, 9)


@pytest.mark.parametrize("ranks", range(1, 65))
def test_nested_sizes_hold_every_size_and_only_divisors(ranks: int) -> None:
    found = nested(divisors(ranks))
    assert {size for sizes in found for size in sizes} == set(divisors(ranks))
    for sizes in found:
        assert all(larger % smaller == 0 for smaller, larger in itertools.pairwise(sizes))
    assert len(set(found)) == len(found)


def test_groups_of_nested_sizes_always_fit_side_by_side() -> None:
    """Largest first, every group starts at a multiple of its size; 4, 4, 3, 1 would not."""
    for sizes in nested(divisors(24)):
        for counts in itertools.product(range(4), repeat=len(sizes)):
            groups = [size for size, n in zip(sizes, counts, strict=True) for _ in range(n)]
            if sum(groups) != 24:
                continue
            start = 0
            for size in sorted(groups, reverse=True):
                assert start % size == 0
                start += size


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"ranks": 0}, "ranks"),
        ({"ranks": 1 << 21}, "ranks"),
        ({"max_tokens_per_rank": 0}, "max_tokens_per_rank"),
        ({"max_tokens_per_rank": 1}, "max_tokens_per_rank"),
        ({"cp_sizes": ()}, "cp_sizes"),
        ({"cp_sizes": (3,)}, "cp_sizes"),
        ({"cp_sizes": (2, 1)}, "cp_sizes"),
        ({"max_sequences": 0}, "max_sequences"),
        ({"microbatch_multiple": 0}, "microbatch_multiple"),
    ],
)
def test_bad_domains(change: dict, field: str) -> None:
    good = {"ranks": 8, "max_tokens_per_rank": 1024, "cp_sizes": (1, 2, 4, 8)}
    Domain(**good)
    with pytest.raises(InputError, match=field):
        Domain(**{**good, **change})


def test_the_longest_sequence_fills_the_largest_group() -> None:
    limits = Domain(ranks=6, max_tokens_per_rank=101, cp_sizes=(1, 3), rank_multiple=4)
    assert limits.longest == 3 * 100
