"""The integers of the dynamic CP skill: CP sizes, groups, padding, traffic, loss weights.

The tables of `references/choosing.md` are generated here and must stand there word for word.
"""

from __future__ import annotations

import pytest

from checks.skills.shared import REPOSITORY, Group
from ringproof.reference.packing.partition import check_divisible
from ringproof.reference.topology.layout import RankLayout

REFERENCE = "skills/dynamic-context-parallel/references/choosing.md"
BUDGET = 2048


def cp_size(length, budget, smallest=1):
    """Upstream's rule, with integers: the next power of two of length over budget."""
    needed = -(-length // budget)
    return max(smallest, 1 << (needed - 1).bit_length())


def rows_of_reference():
    return (REPOSITORY / REFERENCE).read_text(encoding="utf-8").splitlines()


def stands_once(row):
    assert rows_of_reference().count(row) == 1, row


@pytest.fixture
def scheduler():
    from megatron.core.pipeline_parallel.hybrid_cp_schedule import BalancedCPScheduler

    return BalancedCPScheduler(BUDGET, Group(8))


@pytest.mark.parametrize("length", [128, 2048, 2049, 4096, 4097, 8192])
def test_worked_sizes(length, scheduler):
    size = cp_size(length, BUDGET)
    assert scheduler.gpus_needed(length) == size, "the rule is upstream's"
    assert length <= size * BUDGET
    assert size == 1 or length > size // 2 * BUDGET, "half as many would not hold it"
    stands_once(f"| {length:,} | {size} | {-(-length // size):,} |")


def domain_groups(domain, size):
    return [domain[start : start + size] for start in range(0, len(domain), size)]


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("size", [2, 4, 8, 16])
def test_a_group_stays_in_a_node_when_its_span_divides_it(tp, size):
    node, layout = 8, RankLayout(tp=tp, cp=4, dp=8)
    crossing = [
        group
        for domain in layout.groups(("dp", "cp"))
        for group in domain_groups(domain, size)
        if len({rank // node for rank in group}) > 1
    ]
    assert (crossing == []) == (node % (tp * size) == 0)


def padding_multiple(dp, cp, sequence_parallel=1):
    return 2 * dp * cp * sequence_parallel


@pytest.mark.parametrize(("dp", "cp", "sp"), [(2, 4, 1), (2, 4, 2), (4, 4, 2), (16, 4, 4)])
def test_worked_padding(dp, cp, sp):
    multiple = padding_multiple(dp, cp, sp)
    mean = (multiple - 1) / 2
    stands_once(f"| {dp} | {cp} | {sp} | {multiple} | {mean:g} | {mean / 10.24:.0f} % |")


@pytest.mark.parametrize(("dp", "cp"), [(2, 4), (4, 2), (8, 1), (1, 8)])
def test_padding_to_the_domain_serves_every_size(dp, cp):
    multiple = padding_multiple(dp, cp)
    for size in (1, 2, 4, 8):
        check_divisible(3 * multiple, size, "zigzag")


WORKED_BATCH = (8192, *[1024] * 8)


def ring_tokens(length, size):
    """KV tokens sent by all ranks of a ring, one layer, forward: each share passes size-1 ranks."""
    share = length // size
    return sum((size - 1) * share for _ in range(size))


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_ring_traffic_grows_with_the_size(size):
    assert ring_tokens(8192, size) == (size - 1) * 8192


@pytest.mark.parametrize("static", [4, 8])
def test_worked_traffic(static):
    fixed = sum(ring_tokens(length, static) for length in WORKED_BATCH)
    dynamic = sum(ring_tokens(length, cp_size(length, BUDGET)) for length in WORKED_BATCH)
    assert dynamic < fixed
    stands_once(f"| CP {static} for all | {fixed:,} |")
    stands_once(f"| smallest CP that fits | {dynamic:,} |")


def default_budget(seq_length, domain):
    return -(-seq_length // domain)


def test_default_budget_gives_the_longest_sequence_every_rank():
    for domain in (2, 4, 8, 16, 64):
        budget = default_budget(8192, domain)
        assert domain * budget >= 8192
        assert cp_size(8192, budget) == domain
    assert cp_size(8192, BUDGET) == 4, "a budget set by hand need not"


def longest(domain, budget):
    return budget * (1 << (domain.bit_length() - 1))


@pytest.mark.parametrize(("domain", "usable"), [(8, 8), (6, 4), (12, 8), (24, 16)])
def test_longest_sequence_of_a_domain(domain, usable):
    assert longest(domain, BUDGET) == usable * BUDGET
    assert cp_size(longest(domain, BUDGET), BUDGET) <= domain
    assert cp_size(longest(domain, BUDGET) + 1, BUDGET) > domain
