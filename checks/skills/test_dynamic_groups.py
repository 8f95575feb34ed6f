"""The groups and the loader that Megatron-core really builds for dynamic ("hybrid") CP.

Megatron-core 0.16.1 never skips: a missing one is a failure. 0.17 runs where a checkout is given;
from 0.18 on schedules cannot be imported without triton.
"""

from __future__ import annotations

import pytest

from checks.skills.shared import measure
from ringproof.reference.topology.layout import RankLayout

FULL = "DATA_PARALLEL_GROUP_WITH_CP"


@pytest.fixture(scope="module", params=["megatron-core", "megatron-lm-r0.17"])
def world(request):
    release = request.param == "megatron-core"
    upstream = None if release else request.getfixturevalue("upstream_of")(request.param)
    return measure("checks.skills.dynamic_world", upstream)


def aligned_groups(domain, rank):
    """Size -> (description, ranks) of a domain whose size is a power of two."""
    place, found = domain.index(rank), {}
    size = 2
    while size < len(domain):
        start = place // size * size
        found[str(size)] = (f"HYBRID_DP_CP_GROUP_{size}", list(domain[start : start + size]))
        size *= 2
    found[str(len(domain))] = (FULL, list(domain))
    return found


def as_pairs(found):
    return {size: (entry["desc"], entry["ranks"]) for size, entry in found.items()}


def test_groups_are_aligned_powers_of_two(world):
    domain = RankLayout(dp=8).group(("dp", "cp"), 0)
    for rank, found in enumerate(world["eight"]):
        assert as_pairs(found) == aligned_groups(domain, rank)
    wrong = aligned_groups((1, 0, *domain[2:]), 2)
    assert as_pairs(world["eight"][0]) != wrong, "another domain is told apart"


def test_groups_do_not_depend_on_the_static_size(world):
    assert world["eight_static_four"] == world["eight"][5]


def test_groups_of_a_tensor_parallel_rank_are_strided(world):
    domain = RankLayout(tp=2, dp=4).group(("dp", "cp"), 5)
    assert domain == (1, 3, 5, 7)
    assert as_pairs(world["eight_tensor_two"]) == aligned_groups(domain, 5)


def test_no_group_of_one_rank_and_no_name_for_the_whole_domain(world):
    for found in world["eight"]:
        assert "1" not in found, "KeyError: callers have to pass None"
        assert found["8"]["desc"] == FULL
    assert "HYBRID_DP_CP_GROUP_4" in world["destroyed"]["listed"]
    assert "HYBRID_DP_CP_GROUP_8" not in world["destroyed"]["listed"]


def test_without_the_switch_only_the_whole_domain_is_found(world):
    assert as_pairs(world["switched_off"]) == {"8": (FULL, list(range(8)))}


def test_descriptions_are_in_the_registry_that_a_census_reads(world):
    dynamic = {name for name in world["destroyed"]["listed"] if name.startswith("HYBRID_")}
    assert dynamic == {"HYBRID_DP_CP_GROUP_2", "HYBRID_DP_CP_GROUP_4"}


def test_odd_domains_are_refused(world):
    refused = world["refused"]
    for size in ("1", "5"):
        assert "requires an even number of ranks" in refused[size]
    assert refused["8"] == ""


def test_six_ranks_have_no_group_of_four(world):
    assert set(world["six"]) == {"2", "6"}, "the scheduler asks for 4: KeyError"


def test_ten_ranks_keep_two_ranks_under_the_size_of_four(world):
    assert world["ten"]["4"]["ranks"] == [8, 9]
    whole = {size: len(entry["ranks"]) for size, entry in world["eight"][7].items()}
    assert whole == {"2": 2, "4": 4, "8": 8}, "a power of two has what it says"


def test_twelve_ranks_have_no_group_of_eight(world):
    assert set(world["twelve"]) == {"2", "4", "12"}


def test_destroyed_groups_stay_behind(world):
    assert world["destroyed"]["before"] == [2, 4]
    assert world["destroyed"]["after"] == [2, 4]


def test_loader_yields_bare_samples_of_one_dimension(world):
    loaded = world["loaded"]
    assert loaded["keys"] == ["labels", "tokens"], "no cu_seqlens, max_seqlen or local_cp_size"
    assert loaded["dimensions"] == [1]
    assert loaded["tokens"] == [list(range(8)), list(range(8, 24))], "cut at the boundaries"
    assert loaded["sample_ids"] == [[[1, 0]]], "one microbatch, one rank, longest first"


def test_samples_without_boundaries_are_a_key_error(world):
    assert world["loaded"]["missing"] == "cu_seqlens"


def test_an_iterator_that_nobody_wrapped_fails_in_the_schedule(world):
    """Evaluation takes the same schedule, and only the training iterator is wrapped."""
    assert world["loaded"]["unwrapped"].startswith("IndexError"), "it asks for a pair"


def test_the_wrapper_is_no_rerun_iterator(world):
    said = world["loaded"]["rerun"]
    assert said == {
        "validate_results, hybrid": "data iterator is not wrapped with RerunDataIterator",
        "validate_results, own": "",
        "disabled, hybrid": "",
        "disabled, own": "",
    }
