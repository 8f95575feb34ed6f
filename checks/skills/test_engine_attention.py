"""What Transformer Engine's own context parallel attention computes, refuses and gets wrong.

Its Python code runs unchanged on gloo ranks; only the compiled kernels below it are replaced. The
release of the cards, 2.20.2, runs always; the other releases run from the cache of wheels, and main
where a checkout is given.
"""

from __future__ import annotations

import re

import pytest
from packaging.version import Version

from checks.conftest import ENGINES

ATTENTION = "transformer_engine/pytorch/attention/dot_product_attention"
CALL = "checks.skills.engine_cases:attend"
EXACT = 1e-12  # float64
WRONG = 0.1
NO_BACKEND = "ValueError: No dot product attention backend is available"
TWO_GROUPS = (
    "AssertionError: CP implementation a2a+p2p requires cp_group = [a2a_cp_group, p2p_cp_group]!"
)
LEVELS = {"comm": "a2a+p2p", "groups": "levels"}
ALONE = {"packed": True, "lengths": [24, 40, 8]}
PADDED = {"packed": True, "lengths": [21, 33, 5], "padded": [24, 40, 8]}
UNSAID = {**PADDED, "says_padded": False}
AT_THE_END = {"packed": True, "lengths": [24, 40, 5], "padded": [24, 40, 8]}
LEFT_TO_IT = {**AT_THE_END, "says_padded": None}
PACKS = (", packed", ", padded")
COMMS = ("p2p", "a2a", "all_gather", "a2a+p2p")


def of_type(comm, **options):
    return {**options, **(LEVELS if comm == "a2a+p2p" else {"comm": comm})}


FOUR = {
    **{comm: of_type(comm) for comm in COMMS},
    **{f"{comm}, packed": of_type(comm, **ALONE) for comm in COMMS},
    **{f"{comm}, padded": of_type(comm, **PADDED) for comm in COMMS},
    **{f"{comm}, unsaid": of_type(comm, **UNSAID) for comm in COMMS},
    **{f"{comm}, end": of_type(comm, **AT_THE_END) for comm in ("p2p", "a2a")},
    **{f"{comm}, end, not said": of_type(comm, **LEFT_TO_IT) for comm in ("p2p", "a2a")},
    "p2p, padded, not said": of_type("p2p", **{**PADDED, "says_padded": None}),
    **{f"{comm}, window": of_type(comm, window=8) for comm in COMMS},
    **{f"{comm}, window, direct": of_type(comm, window=8, direct=True) for comm in COMMS},
    **{f"{comm}, 8/1 heads, direct": of_type(comm, kv_heads=1, direct=True) for comm in COMMS},
    **{f"{comm}, contiguous": of_type(comm, cut="contiguous") for comm in COMMS},
    **{
        f"{comm}, contiguous, full": of_type(comm, cut="contiguous", causal=False)
        for comm in ("p2p", "a2a+p2p")
    },
    **{
        f"{comm}, {heads}/{kv_heads} heads": of_type(comm, heads=heads, kv_heads=kv_heads)
        for comm in ("p2p", "a2a", "a2a+p2p")
        for heads, kv_heads in ((6, 6), (8, 2), (8, 1), (5, 5))
    },
    **{
        name: {"comm": "a2a+p2p", "groups": name}
        for name in (
            "flat",
            "list of one",
            "three levels",
            "levels of one",
            "swapped levels",
            "swapped everywhere",
        )
    },
    **{f"{comm}, levels": {"comm": comm, "groups": "levels"} for comm in COMMS[:3]},
}
EIGHT = {
    "p2p": {"comm": "p2p"},
    "[4, 2], 12/8 heads": {**LEVELS, "inner": 4, "heads": 24, "kv_heads": 12},
    "[4, 2], 12/6 heads": {**LEVELS, "inner": 4, "heads": 12, "kv_heads": 6},
    "[2, 4], 12/6 heads": {**LEVELS, "inner": 2, "heads": 12, "kv_heads": 6},
    "a2a, 12/6 heads": {"comm": "a2a", "heads": 12, "kv_heads": 6},
}


def attended(stage, cases, ranks, *, upstream=None, dtype="float64"):
    given = [{**case, "dtype": dtype} for case in cases.values()]
    found = stage.call(CALL, ranks, given, upstream=upstream, dtype=dtype)
    assert [[{**one, "live": 0} for one in rank] for rank in found[1:]] == [
        [{**one, "live": 0} for one in found[0]]
    ] * (ranks - 1), "all ranks report the same"
    return dict(zip(cases, found[0], strict=True))


@pytest.fixture(scope="module")
def four(stage):
    return attended(stage, FOUR, 4)


@pytest.fixture(scope="module")
def eight(stage):
    return attended(stage, EIGHT, 8)


def exact(found):
    return found["raised"] == "" and found["error"] < EXACT


def silently_wrong(found):
    return found["raised"] == "" and found["error"] > WRONG


@pytest.mark.parametrize("comm", COMMS)
@pytest.mark.parametrize("batch", ["", ", packed", ", padded"])
def test_every_type_is_exact(four, comm, batch):
    """Output and gradients against dense attention."""
    assert exact(four[comm + batch])


def closed_forms(ranks, heads, kv_heads, inner):
    """Bytes that references/choosing-comm-type.md states, for 64 tokens in float64 and width 8."""
    row = 64 // ranks * 8 * 8
    exchanged, kv = 2 * (heads + kv_heads) * row, 2 * kv_heads * row
    ring, exchange = (ranks - 1) * kv, (ranks - 1) * exchanged // ranks
    level_zero, level_one = (inner - 1) * exchanged // inner, (ranks // inner - 1) * kv
    return {
        "p2p": {"forward": ring, "backward": 2 * ring},
        "all_gather": {"forward": ring, "backward": 2 * ring},
        "a2a": {"forward": exchange, "backward": exchange},
        "a2a+p2p": {
            "forward": level_zero + level_one,
            "backward": level_zero + 2 * level_one,
        },
    }


@pytest.mark.parametrize("comm", COMMS)
def test_bytes_sent_are_those_of_the_closed_forms(four, comm):
    assert four[comm]["sent"] == closed_forms(4, 8, 4, 2)[comm]


def test_bytes_sent_follow_the_sizes_of_the_levels(eight):
    found = eight["[4, 2], 12/8 heads"]["sent"]
    assert found == closed_forms(8, 24, 12, 4)["a2a+p2p"]
    assert found != closed_forms(8, 24, 12, 2)["a2a+p2p"]


@pytest.mark.parametrize("groups", ["flat", "list of one", "three levels"])
def test_two_levels_are_demanded(four, groups):
    assert four[groups]["raised"] == TWO_GROUPS
    assert exact(four["a2a+p2p"])


@pytest.mark.parametrize("comm", COMMS[:3])
def test_other_types_refuse_a_list(four, comm):
    assert "cp_group must be" in four[f"{comm}, levels"]["raised"]
    assert exact(four[comm])


def test_a_level_of_one_rank_becomes_a_ring_without_a_message(four):
    assert exact(four["levels of one"])
    assert four["levels of one"]["live"] == four["p2p"]["live"], "three ring steps over four ranks"
    assert len(four["a2a+p2p"]["live"]) == 1, "one ring step over two"


def test_swapped_levels_are_silently_wrong(four):
    assert silently_wrong(four["swapped levels"])
    assert exact(four["swapped everywhere"]), "with ranks and data in the same order"


def test_swapped_levels_with_ranks_in_their_order_are_refused_by_some_ranks(stage):
    """By torch, on the ranks whose neighbour is not in the group; the others wait for them."""
    case = {"comm": "a2a+p2p", "groups": "swapped alone"}
    found = stage.call("checks.skills.engine_cases:attend_unequally", 4, case)
    refused = [one for one in found if "is not part of group" in one["raised"]]
    assert refused
    assert {one["place"] for one in refused} == {"flash_attn_p2p_communicate"}
    assert not any(exact(one) for one in found)


def test_pure_a2a_needs_heads_that_the_size_divides(four, eight):
    for heads in ("6/6", "8/2", "8/1", "5/5"):
        found = four[f"a2a, {heads} heads"]
        refused = "requires num_heads % cp_size == 0" in found["raised"]
        assert refused or found["raised"].startswith(NO_BACKEND), heads
    assert "Found num_heads_q = 8, num_heads_kv = 2" in four["a2a, 8/2 heads"]["raised"]
    assert "requires num_heads % cp_size == 0" in eight["a2a, 12/6 heads"]["raised"]
    assert exact(four["a2a"])


def test_two_levels_need_heads_that_the_first_size_divides(four, eight):
    assert exact(four["a2a+p2p, 6/6 heads"]), "CP 4 does not divide 6, level 0 does"
    assert exact(four["a2a+p2p, 8/2 heads"])
    assert exact(eight["[2, 4], 12/6 heads"])
    assert exact(eight["[4, 2], 12/8 heads"])
    found = eight["[4, 2], 12/6 heads"]
    assert found["place"] == "flash_attn_a2a_communicate"
    assert found["raised"].startswith("RuntimeError: shape")
    assert "is invalid for input of size" in found["raised"]


@pytest.mark.parametrize("heads", ["8/1", "5/5"])
def test_two_levels_with_odd_heads_have_no_backend(four, heads):
    assert four[f"a2a+p2p, {heads} heads"]["raised"].startswith(NO_BACKEND)
    assert exact(four[f"p2p, {heads} heads"])


def test_without_the_choice_of_a_backend_the_exchange_fails(four):
    found = four["a2a+p2p, 8/1 heads, direct"]
    assert found["place"] == "flash_attn_a2a_communicate"
    assert "is invalid for input of size" in found["raised"]
    assert exact(four["p2p, 8/1 heads, direct"])


@pytest.mark.parametrize("comm", ["p2p", "a2a+p2p"])
def test_a_ring_has_no_sliding_window(four, comm):
    assert four[f"{comm}, window"]["raised"].startswith(NO_BACKEND)
    said = "AssertionError: Context parallelism does not support sliding window attention with"
    assert four[f"{comm}, window, direct"]["raised"].startswith(said)


@pytest.mark.parametrize("comm", ["a2a", "all_gather"])
def test_other_types_have_a_sliding_window(four, comm):
    assert exact(four[f"{comm}, window"])


@pytest.mark.parametrize("comm", COMMS)
def test_contiguous_slices_are_silently_wrong_when_causal(four, comm):
    assert silently_wrong(four[f"{comm}, contiguous"])


@pytest.mark.parametrize("comm", ["p2p", "a2a+p2p"])
def test_contiguous_slices_are_right_without_a_mask(four, comm):
    assert exact(four[f"{comm}, contiguous, full"])


@pytest.mark.parametrize("comm", ["p2p", "a2a+p2p"])
def test_padding_that_is_not_declared_makes_a_ring_silently_wrong(four, comm):
    assert silently_wrong(four[f"{comm}, unsaid"])
    assert exact(four[f"{comm}, padded"])


@pytest.mark.parametrize("comm", ["a2a", "all_gather"])
def test_padding_that_is_not_declared_is_read_from_the_boundaries_elsewhere(four, comm):
    """With fused attention, which takes both lists of boundaries."""
    assert exact(four[f"{comm}, unsaid"])


def test_the_ring_reuses_its_buffers(eight, record_property):
    """Alive when an exchange starts, the buffer that it fills included."""
    record_property("live_buffers", str(eight["p2p"]["live"]))
    assert eight["p2p"]["live"] == [2, 3, 4, 4, 4, 4, 4]


NARROW = {"dtype": "float32"}  # 2.9 and 2.10 know no float64


PACKED_FROM = {"p2p": "2.9", "a2a": "2.10", "all_gather": "2.18", "a2a+p2p": "2.19"}


@pytest.fixture
def released(te_wheel, stage):
    """Cases on a released Transformer Engine."""

    def run(cases, ranks=4):
        upstream = stage.upstream(engine=te_wheel.spec)
        return attended(stage, cases, ranks, upstream=upstream, **NARROW)

    return run


@pytest.mark.slow
def test_packed_input_by_version(te_wheel, released):
    found = released({name: case for name, case in FOUR.items() if name.endswith(PACKS)})
    for comm in COMMS:
        for batch in PACKS:
            one = found[comm + batch]
            if te_wheel.version >= Version(PACKED_FROM[comm]):
                assert one["raised"] == ""
                assert one["error"] < 1e-5
            else:
                assert one["raised"].startswith(("AssertionError", NO_BACKEND)), comm


@pytest.mark.slow
def test_rings_by_version(te_wheel, released):
    """Up to 2.19 every buffer is kept."""
    reused = te_wheel.version >= Version("2.20")
    live = released({"p2p": EIGHT["p2p"]}, 8)["p2p"]["live"]
    assert live == ([2, 3, 4, 4, 4, 4, 4] if reused else [2, 3, 4, 5, 6, 7, 8])


def test_the_ring_of_main_keeps_every_buffer(stage):
    upstream = stage.upstream(engine="NVIDIA/TransformerEngine@d0067d0da6")
    found = attended(stage, {"p2p": EIGHT["p2p"]}, 8, upstream=upstream, **NARROW)
    assert found["p2p"]["live"] == [2, 3, 4, 5, 6, 7, 8]


@pytest.mark.slow
def test_every_version_refuses_and_mistakes_the_same(released):
    names = ("flat", "swapped levels", "swapped everywhere", "p2p, contiguous", "p2p, unsaid")
    names += ("a2a+p2p, window, direct", "a2a+p2p, 8/1 heads, direct", "a2a+p2p, 6/6 heads")
    found = released({name: FOUR[name] for name in names})
    assert found["flat"]["raised"] == TWO_GROUPS
    assert all(silently_wrong(found[name]) for name in ("swapped levels", *names[3:5]))
    assert found["swapped everywhere"]["error"] < 1e-5
    assert found["a2a+p2p, 6/6 heads"]["error"] < 1e-5
    assert "does not support sliding window" in found["a2a+p2p, window, direct"]["raised"]
    assert found["a2a+p2p, 8/1 heads, direct"]["place"] == "flash_attn_a2a_communicate"


SEES_THE_LAST = Version("2.18")


@pytest.mark.slow
@pytest.mark.parametrize(
    "te_wheel",
    [one for one in ENGINES if one.version in ("2.13.0", "2.17.1", "2.18.0")],
    indirect=True,
    ids=lambda one: one.version,
)
def test_padding_after_the_last_sequence_is_not_seen_before_2_18(te_wheel, released):
    """Where the caller does not say whether there is padding, as Bridge does not."""
    names = ("p2p, end", "p2p, end, not said", "p2p, padded, not said", "a2a, end, not said")
    found = released({name: FOUR[name] for name in names})
    assert found["p2p, end"]["error"] < 1e-5
    assert found["a2a, end, not said"]["error"] < 1e-5
    assert found["p2p, padded, not said"]["error"] < 1e-5, "after another sequence it is seen"
    if te_wheel.version < SEES_THE_LAST:
        assert silently_wrong(found["p2p, end, not said"])
    else:
        assert found["p2p, end, not said"]["error"] < 1e-5


@pytest.mark.parametrize("comm", ["p2p", "a2a"])
def test_padding_after_the_last_sequence_is_seen(four, comm):
    assert exact(four[f"{comm}, end, not said"])
    assert exact(four[f"{comm}, end"])


LOGGED_FROM = {"cp_size": "2.15", "cuda_graph": "2.10"}


@pytest.mark.parametrize("key", LOGGED_FROM)
def test_the_log_of_attention_has_a_key_from_its_version_on(te_wheel, key):
    """The line is the dump of this dataclass."""
    utils = te_wheel.tree.read(f"{ATTENTION}/utils.py").decode()
    (params,) = re.findall(r"class AttentionParams:.*?(?=\nclass |\n@|\Z)", utils, re.DOTALL)
    assert bool(re.search(rf"^    {key}: ", params, re.MULTILINE)) == (
        te_wheel.version >= Version(LOGGED_FROM[key])
    )


def test_a_capture_clears_rows_past_the_end_by_a_mask_from_2_18_on(te_wheel):
    """Before, by a slice whose start is a number of the device."""
    ring = te_wheel.tree.read(f"{ATTENTION}/context_parallel.py").decode()
    (backward,) = re.findall(
        r"class AttnFuncWithCPAndKVP2P.*?    def backward(.*?)\nclass |\Z", ring, re.DOTALL
    )[:1]
    assert "dq[cu_seqlens_q_padded[-1] :]" in backward
    assert ("q_pad_mask" in backward) == (te_wheel.version >= Version("2.18"))
