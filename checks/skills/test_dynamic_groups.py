"""Groups, loader and single samples of Dynamic CP ("hybrid"), by Megatron-LM's own code.

Megatron-core 0.16.1 is the released wheel; other versions run where a checkout is given.
"""

from __future__ import annotations

import pytest

from ringproof.reference.topology.layout import RankLayout

FULL = "DATA_PARALLEL_GROUP_WITH_CP"
CASES = "checks.skills.dynamic_cases"
DEV, MAIN, RELEASE = "megatron-lm-dev", "megatron-lm-main", "megatron-lm-release"
CORE, LATER = "megatron-core", ("megatron-lm-r0.17", "megatron-lm-r0.18", "megatron-lm-r0.19")
HYBRID = {"hybrid_context_parallel": True}
LAYOUTS = {
    "hybrid": HYBRID,
    "static four": {**HYBRID, "context_parallel_size": 4},
    "tensor two": {**HYBRID, "tensor_model_parallel_size": 2},
    "switched off": {},
}
SIZES = (1, 5, 6, 8, 10, 12)

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module", params=[CORE, pytest.param(LATER[0], marks=pytest.mark.slow)])
def upstream(request):
    return request.getfixturevalue("upstream_of")(request.param)


@pytest.fixture(scope="module")
def worlds(stage, upstream, tmp_path_factory):
    """What each rank of a world can look up, by the number of ranks and the layout."""
    layouts = {ranks: LAYOUTS if ranks == 8 else {"hybrid": HYBRID} for ranks in SIZES}
    asked = {
        "line": "hybrid",
        "layouts": {ranks: list(some.values()) for ranks, some in layouts.items()},
        "folder": str(tmp_path_factory.mktemp("stores")),
    }
    answers = stage.call(f"{CASES}:worlds", max(SIZES), asked, upstream=upstream, imported=True)
    return {
        ranks: [dict(zip(some, one[str(ranks)], strict=True)) for one in answers[:ranks]]
        for ranks, some in layouts.items()
    }


@pytest.fixture(scope="module")
def eight(worlds):
    """What each of eight ranks sees of hybrid CP."""
    return [rank["hybrid"] for rank in worlds[8]]


@pytest.fixture(scope="module")
def loaded(stage, upstream):
    return stage.call(f"{CASES}:loaded", 1, upstream=upstream, imported=True)[0]


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
    return {size: (entry["desc"], entry["ranks"]) for size, entry in found["groups"].items()}


def test_groups_are_aligned_powers_of_two(eight):
    domain = RankLayout(dp=8).group(("dp", "cp"), 0)
    for rank, found in enumerate(eight):
        assert as_pairs(found) == aligned_groups(domain, rank)
    wrong = aligned_groups((1, 0, *domain[2:]), 2)
    assert as_pairs(eight[0]) != wrong, "another domain is told apart"


def test_groups_do_not_depend_on_the_static_size(worlds):
    for found in worlds[8]:
        assert found["static four"]["groups"] == found["hybrid"]["groups"]


def test_groups_of_a_tensor_parallel_rank_are_strided(worlds):
    domain = RankLayout(tp=2, dp=4).group(("dp", "cp"), 5)
    assert domain == (1, 3, 5, 7)
    assert as_pairs(worlds[8][5]["tensor two"]) == aligned_groups(domain, 5)


def test_no_group_of_one_rank_and_no_name_for_the_whole_domain(eight):
    for found in eight:
        assert "1" not in found["groups"], "KeyError: callers have to pass None"
        assert found["groups"]["8"]["desc"] == FULL
        assert "HYBRID_DP_CP_GROUP_4" in found["listed"]
        assert "HYBRID_DP_CP_GROUP_8" not in found["listed"]


def test_without_the_switch_only_the_whole_domain_is_found(worlds):
    assert as_pairs(worlds[8][5]["switched off"]) == {"8": (FULL, list(range(8)))}


def test_descriptions_are_in_the_registry_that_a_census_reads(eight):
    dynamic = {name for name in eight[5]["listed"] if name.startswith("HYBRID_")}
    assert dynamic == {"HYBRID_DP_CP_GROUP_2", "HYBRID_DP_CP_GROUP_4"}


def test_odd_domains_are_refused(worlds):
    for ranks in (1, 5):
        for found in worlds[ranks]:
            assert "requires an even number of ranks" in found["hybrid"]["refused"]
    assert worlds[8][0]["hybrid"]["refused"] == ""


def test_six_ranks_have_no_group_of_four(worlds):
    sizes = set(worlds[6][5]["hybrid"]["groups"])
    assert sizes == {"2", "6"}, "the scheduler asks for 4: KeyError"


def test_ten_ranks_keep_two_ranks_under_the_size_of_four(worlds, eight):
    assert worlds[10][9]["hybrid"]["groups"]["4"]["ranks"] == [8, 9]
    whole = {size: len(entry["ranks"]) for size, entry in eight[7]["groups"].items()}
    assert whole == {"2": 2, "4": 4, "8": 8}, "a power of two has what it says"


def test_twelve_ranks_have_no_group_of_eight(worlds):
    assert set(worlds[12][9]["hybrid"]["groups"]) == {"2", "4", "12"}


def test_destroyed_groups_stay_behind(eight):
    assert eight[5]["held"] == [2, 4]
    assert eight[5]["left"] == [2, 4]


def test_loader_yields_bare_samples_of_one_dimension(loaded):
    assert loaded["keys"] == ["labels", "tokens"], "no cu_seqlens, max_seqlen or local_cp_size"
    assert loaded["dimensions"] == [1]
    assert loaded["tokens"] == [list(range(8)), list(range(8, 24))], "cut at the boundaries"
    assert loaded["sample_ids"] == [[[1, 0]]], "one microbatch, one rank, longest first"


def test_samples_without_boundaries_are_a_key_error(loaded):
    assert loaded["missing"] == "KeyError: 'cu_seqlens'"


def test_an_iterator_that_nobody_wrapped_fails_in_the_schedule(loaded):
    """Evaluation takes the same schedule, and only the training iterator is wrapped."""
    assert loaded["unwrapped"].startswith("IndexError"), "it asks for a pair"


def test_the_wrapper_is_no_rerun_iterator(loaded):
    message = "AssertionError: data iterator is not wrapped with RerunDataIterator"
    assert loaded["rerun"] == {
        "validate_results, hybrid": message,
        "validate_results, own": "",
        "disabled, hybrid": "",
        "disabled, own": "",
    }


# --- single samples ---


@pytest.fixture(scope="module")
def ask(stage, upstream_of):
    def call(name, key, argument=None, ranks=1):
        call = (f"{CASES}:{name}", ranks, argument)
        return stage.call(*call, upstream=upstream_of(key), imported=True)

    return call


def test_dev_pads_to_the_domain(ask):
    cases = [(2, 4, 1), (2, 2, 2), (1, 8, 1)]
    (found,) = ask("padded_lengths", DEV, cases)
    for (cp, dp, sp), lengths in zip(cases, found, strict=True):
        multiple = 2 * cp * dp * sp
        assert lengths == [-(-length // multiple) * multiple for length in (5, 9)]


@pytest.mark.parametrize("key", [*LATER, MAIN, RELEASE])
def test_main_and_the_release_pad_to_the_static_size(ask, key):
    """Eight ranks cannot cut these rows in zigzag order, which takes multiples of 16."""
    ((found, alone),) = ask("padded_lengths", key, [(2, 4, 1), (1, 8, 1)])
    assert found == [8, 12]
    assert any(length % 16 for length in found)
    assert alone == [5, 9], "with a static size of 1 it does not pad"


def test_dev_shifts_inside_padded_sequences(ask):
    (found,) = ask("shifted", DEV)
    assert found == [2, 3, 4, 5, 6, 7, 8, 0, 10, 11, 12, 13, 14, 15, 16, 0]


@pytest.mark.parametrize("key", [CORE, *LATER])
def test_the_release_shifts_inside_unpadded_ones(ask, key):
    """The second sequence, in rows 8 to 15, is not shifted at all, and the first is cut."""
    (found,) = ask("shifted", key)
    assert found[:5] == [2, 3, 4, 5, 0]
    assert found[8:] == list(range(9, 17))


@pytest.mark.parametrize("key", [DEV, MAIN, CORE, *LATER])
def test_a_sequence_weighs_its_square_over_its_ranks(ask, key):
    cases = [[100, 1, 128], [200, 1, 256], [200, 2, 128], [400, 4, 128]]
    (found,) = ask("costs", key, cases)
    for (length, ranks, _), work in zip(cases, found, strict=True):
        assert work == [length**2 / ranks] * ranks


def test_dev_sends_counts_in_single_precision(ask):
    exact, rounded = 2**24, 2**24 + 1
    assert ask("counted", DEV, exact, 2) == [exact, exact]
    assert ask("counted", DEV, rounded, 2) == [rounded, exact], "rank 0 keeps its own"
