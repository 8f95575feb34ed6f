"""Our planner on the very batches that upstream's schedulers fail on: each gets a legal plan.

What upstream makes of them: `test_dynamic_scheduler.py` for 0.16.1, `test_dynamic_dev.py` for dev.
"""

from __future__ import annotations

import numpy as np
import pytest

from checks.skills import dynamic_batches as batches
from checks.skills.test_dynamic_scheduler import group_exists
from ringproof.errors import InputError
from ringproof.reference.planning import (
    AttentionOnly,
    Domain,
    choose_cp_sizes,
    make_plan,
    violations,
)

HARD = {
    "no tail microbatch to split": batches.TOO_FEW,
    "a loop for ever": batches.LOOPS,
    "a size rounded past the domain": batches.ROUNDED_PAST_THE_DOMAIN,
    "a group at an offset that does not exist": batches.MISALIGNED,
    "no group of four": batches.NO_SUCH_GROUP,
    "no group of eight": batches.NO_SUCH_GROUP_OF_TWELVE,
    "an index error behind the check": batches.INDEX_ERROR,
    "one sequence for four microbatches": batches.ONE_SAMPLE_FOR_FOUR,
}


def plan_of(batch, spec="pow2"):
    domain = Domain(
        ranks=batch.ranks,
        max_tokens_per_rank=batch.budget,
        cp_sizes=choose_cp_sizes(spec, batch.ranks),
        microbatch_multiple=batch.multiple,
    )
    return make_plan(np.array(batch.lengths), domain, AttentionOnly())


@pytest.mark.parametrize("spec", ["pow2", "divisors"])
@pytest.mark.parametrize("batch", HARD.values(), ids=HARD)
def test_what_upstream_fails_on_gets_a_legal_plan(batch, spec):
    plan = plan_of(batch, spec).as_json()
    assert violations(plan, multiple=batch.multiple) == []
    first = plan["microbatches"][0]["groups"][0]
    first["ranks"] = [rank + 1 for rank in first["ranks"]]  # and the judge is awake
    assert violations(plan, multiple=batch.multiple)


def test_every_group_of_a_plan_is_one_that_upstream_builds():
    """On a domain that is a power of two: the plan could be run on upstream's groups."""
    for microbatch in plan_of(batches.MISALIGNED).microbatches:
        for group in microbatch.groups:
            assert group_exists(list(group.ranks), batches.MISALIGNED.ranks)


def test_ranks_share_no_list():
    plan = plan_of(batches.SHARED_LISTS).as_json()
    lists = [
        group[name]
        for microbatch in plan["microbatches"]
        for group in microbatch["groups"]
        for name in ("sequences", "ranks")
    ]
    lists[0].append("seen elsewhere")
    assert sum("seen elsewhere" in items for items in lists) == 1


@pytest.mark.parametrize(
    ("settings", "field", "words"),
    [
        ({"cp_sizes": (3, 8)}, "cp_sizes", "does not divide the domain of 8 ranks"),
        ({"max_tokens_per_rank": 0}, "max_tokens_per_rank", "less than 1"),
    ],
)
def test_what_no_plan_can_be_made_for_is_refused_by_name(settings, field, words):
    with pytest.raises(InputError, match=words) as caught:
        Domain(**{"ranks": 8, "max_tokens_per_rank": 1024, "cp_sizes": (1, 8), **settings})
    assert caught.value.field == field


def test_a_sequence_too_long_is_refused_with_its_number_and_a_remedy():
    batch = batches.Batch((100, 8 * 1024 + 1), ranks=8)
    with pytest.raises(InputError) as caught:
        plan_of(batch)
    said = str(caught.value)
    assert "8,193" in said or "8193" in said
    assert "raise --max-tokens-per-rank" in said
    assert plan_of(batches.Batch((100, 8 * 1024), ranks=8)).microbatches


SHORT = batches.Batch((100, 700, 2000, 8000), ranks=8)


def test_rows_of_a_rank_can_come_in_multiples_of_thirty_two():
    """As MXFP8 wants them; padding to 2 * DP * CP leaves a rank of a large group two rows."""
    padded_for_zigzag = 2 * SHORT.ranks
    assert padded_for_zigzag // SHORT.ranks % 32 != 0
    domain = Domain(ranks=8, max_tokens_per_rank=1024, cp_sizes=(1, 2, 4, 8), rank_multiple=32)
    plan = make_plan(np.array(SHORT.lengths), domain, AttentionOnly())
    assert violations(plan.as_json(), rank_multiple=32) == []
    for length in SHORT.lengths:
        for size in domain.cp_sizes:
            assert domain.rank_rows(np.array([length]), size)[0] % 32 == 0
    full = batches.Batch((8 * 1024,), ranks=8)
    assert violations(plan_of(full).as_json(), rank_multiple=1024) == []
    assert violations(plan_of(full).as_json(), rank_multiple=1000), "and the judge counts rows"
