"""What the scheduler of megatron-core 0.16.1 decides, and where it goes wrong.

`BalancedCPScheduler` is the same code on Megatron-LM main. A planned group is held against the
groups that exist, which `test_dynamic_groups.py` takes from upstream itself.
"""

from __future__ import annotations

import ast
import inspect
import textwrap

import pytest
from megatron.core.pipeline_parallel import hybrid_cp_schedule
from megatron.core.pipeline_parallel.hybrid_cp_schedule import BalancedCPScheduler

from checks.skills import dynamic_batches
from checks.skills.shared import Group

BUDGET = 1024
MISALIGNED = dynamic_batches.MISALIGNED.lengths


def plan(lengths, ranks, budget=BUDGET):
    """Microbatches; each is the list of sample ids of every rank."""
    scheduler = BalancedCPScheduler(budget, Group(ranks))
    return scheduler.get_groups_and_subsamples(list(enumerate(lengths)), None)[1]


def ranks_of(microbatch):
    """Sample id -> the ranks that share it."""
    found = {}
    for rank, ids in enumerate(microbatch):
        for sample in ids:
            found.setdefault(sample, []).append(rank)
    return found


def group_exists(ranks, domain):
    """Whether upstream builds a group of exactly these ranks (one rank needs none)."""
    size, first = len(ranks), ranks[0]
    if size == domain:
        return True
    is_run = ranks == list(range(first, first + size))
    power = size & (size - 1) == 0 and size < 1 << (domain.bit_length() - 1)
    return is_run and power and first % size == 0


def unusable(lengths, domain):
    """The (sample, ranks) that no process group serves."""
    return [
        (sample, ranks)
        for microbatch in plan(lengths, domain)
        for sample, ranks in ranks_of(microbatch).items()
        if not group_exists(ranks, domain)
    ]


@pytest.mark.parametrize(
    ("length", "size"), [(1, 1), (1024, 1), (1025, 2), (2048, 2), (2049, 4), (4096, 4), (4097, 8)]
)
def test_size_is_the_next_power_of_two(length, size):
    assert BalancedCPScheduler(BUDGET, Group(8)).gpus_needed(length) == size


def test_idle_ranks_widen_the_groups():
    microbatch = plan([2000, 2000], 8)[0]
    assert ranks_of(microbatch) == {0: [0, 1, 2, 3], 1: [4, 5, 6, 7]}, "2 would have been enough"
    assert ranks_of(plan([2000] * 4, 8)[0])[0] == [0, 1], "no idle rank, no widening"


def test_a_group_at_an_offset_that_does_not_exist():
    assert unusable(MISALIGNED, 8) == [(5, [2, 3, 4, 5])]


def test_other_batches_on_eight_ranks_are_aligned():
    assert unusable(sorted(MISALIGNED, reverse=True)[:4], 8) == []
    assert unusable((8000, 100, 100), 8) == []


@pytest.mark.parametrize(("domain", "lengths"), [(6, (1500, 4000)), (12, (167, 3231))])
def test_domains_that_are_no_power_of_two_get_sizes_without_a_group(domain, lengths):
    assert unusable(lengths, domain)
    assert unusable(lengths, 8 if domain == 6 else 16) == [], "the next power of two is fine"


def test_ten_ranks_end_in_an_index_error_behind_the_check():
    """Upstream's own check for too few idle ranks lets two pass where four are needed."""
    with pytest.raises(IndexError):
        plan((4000, 4000), 10)
    assert len(plan((4000, 4000), 8)) == 1


def test_too_long_sequence_gets_half_a_message():
    with pytest.raises(AssertionError) as caught:
        plan((8 * BUDGET + 1,), 8)
    assert "at least one group existing" in str(caught.value)
    assert "max-seqlen" not in str(caught.value), "the advice is an expression of its own"
    assert plan((8 * BUDGET,), 8) == [[[0]] * 8]


def test_no_budget_is_a_type_error():
    with pytest.raises(TypeError):
        plan((100,), 8, budget=None)


def test_widened_ranks_share_one_list():
    first, second, *_ = plan((2000, 2000), 8)[0]
    first.append("seen on the other rank")
    assert second[-1] == "seen on the other rank"
    apart = plan([100] * 8, 8)[0]
    apart[0].append("not seen")
    assert "not seen" not in apart[1]


def next_group():
    source = textwrap.dedent(inspect.getsource(BalancedCPScheduler.next_hdp_group))
    return ast.parse(source)


def test_the_emptiness_check_is_inverted():
    """Where "all are empty" was meant it asks whether "not all have work"."""
    (check,) = (
        ast.unparse(node.test)
        for node in ast.walk(next_group())
        if isinstance(node, ast.Assert) and "Empty GPUs" in ast.unparse(node)
    )
    assert check.startswith("not all(")


def test_the_strategy_parameter_is_dead(monkeypatch):
    given = []
    next_hdp_group = BalancedCPScheduler.next_hdp_group

    def watched(*arguments, **named):
        given.append((len(arguments), named))
        return next_hdp_group(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(BalancedCPScheduler, "next_hdp_group", watched)
        plan([2000] * 4, 8)
    assert given == [(4, {})], "the scheduler itself, sequences, costs and ranks, nothing else"
    calls = [
        node
        for node in ast.walk(ast.parse(inspect.getsource(hybrid_cp_schedule)))
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "next_hdp_group"
    ]
    assert len(calls) == 1
    assert len(calls[0].args) == 3
    assert calls[0].keywords == [], "neither strategy nor delta nor eps_bucket is ever passed"
    used = {node.id for node in ast.walk(next_group()) if isinstance(node, ast.Name)}
    assert {"strategy", "delta"} <= used
    assert "eps_bucket" not in used


def constants(function):
    source = textwrap.dedent(inspect.getsource(function))
    return [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)]


def test_the_overfill_factor_is_hard_coded():
    assert constants(BalancedCPScheduler.make_buckets_equal).count(1.1) == 1
    assert "1.1" not in str(inspect.signature(BalancedCPScheduler.make_buckets_equal))


@pytest.mark.parametrize(
    ("lengths", "sizes", "buckets"),
    [((819,), 1, 1), ((7469, 5200), 1, 2), ((6251, 3484, 1283, 477), 4, 3)],
)
def test_buckets_are_more_or_fewer_than_the_sizes(lengths, sizes, buckets):
    scheduler = BalancedCPScheduler(BUDGET, Group(8))
    samples = list(enumerate(lengths))
    assert len({scheduler.gpus_needed(length) for length in lengths}) == sizes
    found = scheduler.make_buckets_equal(samples, scheduler.get_total_workload)
    assert len(found) == buckets
