"""Verdicts from census, traffic and configuration: each with the change that must turn it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checks.logs.groups_run import (
    EXCHANGE,
    FLAT,
    L0,
    L1,
    RING,
    argument,
    census,
    engine,
    layout,
    read,
    startup,
    traffic,
)

HIERARCHICAL = census(layout(8, 4, (2, 2)), 8)
MOVING = [
    *HIERARCHICAL,
    *traffic(FLAT, 8, (("all_reduce", 3),), 24),
    *traffic(L0, 8, EXCHANGE, 4096),
    *traffic(L1, 8, RING, 2048),
]


def verdict(tmp_path: Path, lines: list[str]) -> tuple[str, str]:
    decision = read(tmp_path, lines).decision
    return decision.verdict.value, decision.proof.value


def test_traffic_on_both_levels_is_hierarchical(tmp_path: Path) -> None:
    report = read(tmp_path, MOVING, "hierarchical", hcp="2,2", require_traffic=True)
    assert report.decision.proof.value == "traffic"
    assert report.decision.level_sizes == (2, 2)
    assert (report.as_expected, report.findings, report.warnings) == (True, (), ())
    by_name = {group.ranks: group for group in report.facts.groups if group.name == L1}
    assert set(by_name) == {(0, 2), (1, 3), (4, 6), (5, 7)}
    assert by_name[0, 2].bytes_sent == 2 * 2048
    assert dict(by_name[0, 2].operations) == {"recv": 12, "send": 12}


@pytest.mark.parametrize("silent", [L0, L1])
def test_a_silent_level_is_not_hierarchical(tmp_path: Path, silent: str) -> None:
    lines = [line for line in MOVING if not ("traffic" in line and silent in line)]
    silenced = [*lines, *traffic(silent, 8, EXCHANGE if silent == L0 else RING, 0)]
    report = read(tmp_path, silenced, "hierarchical")
    assert report.decision.verdict.value == "none"
    assert report.as_expected is False
    assert any("part of the sequence" in warning for warning in report.warnings)


def test_switched_off_communication_is_none(tmp_path: Path) -> None:
    off = [*HIERARCHICAL, *(line for name in (FLAT, L0, L1) for line in traffic(name, 8, (), 0))]
    assert verdict(tmp_path, off) == ("none", "traffic")
    assert verdict(tmp_path, HIERARCHICAL) == ("hierarchical", "groups-created")


def test_bookkeeping_is_no_traffic(tmp_path: Path) -> None:
    lines = [*HIERARCHICAL]
    for name in (FLAT, L0, L1):
        lines += traffic(name, 8, (("all_reduce", 9), ("broadcast", 2)), 512)
    assert verdict(tmp_path, lines) == ("none", "traffic")


def test_ring_over_the_flat_group_is_flat(tmp_path: Path) -> None:
    lines = [*HIERARCHICAL, *traffic(FLAT, 8, RING, 99), *traffic(L0, 8, (), 0)]
    assert verdict(tmp_path, lines) == ("flat", "traffic")
    assert read(tmp_path, lines, "flat").as_expected is True
    assert read(tmp_path, lines, "hierarchical").as_expected is False


def test_creation_is_accepted_and_named_as_such(tmp_path: Path) -> None:
    report = read(tmp_path, HIERARCHICAL, "hierarchical")
    assert report.as_expected is True
    assert any("created" in warning for warning in report.warnings)
    strict = read(tmp_path, HIERARCHICAL, "hierarchical", require_traffic=True)
    assert strict.as_expected is False


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [((), "flat"), ((2, 2), "hierarchical"), ((1, 4), "flat"), ((4, 1), "flat")],
)
def test_levels_of_one_rank_are_flat(tmp_path: Path, sizes: tuple[int, ...], expected: str) -> None:
    lines = census(layout(4, 4, sizes), 4)
    assert verdict(tmp_path, lines) == (expected, "groups-created")
    assert read(tmp_path, lines, expected).as_expected is True


def test_one_wide_level_with_traffic_is_flat(tmp_path: Path) -> None:
    lines = [*census(layout(4, 4, (4, 1)), 4), *traffic(L0, 4, EXCHANGE, 64)]
    assert verdict(tmp_path, lines) == ("flat", "traffic")


def test_three_levels(tmp_path: Path) -> None:
    lines = census(layout(8, 8, (2, 2, 2)), 8)
    report = read(tmp_path, lines, hcp="2,2,2")
    assert report.as_expected is True
    assert read(tmp_path, lines, hcp="2,4").as_expected is False


def test_a_silent_third_level_is_not_hierarchical(tmp_path: Path) -> None:
    third = "HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L2"
    lines = [*census(layout(8, 8, (2, 2, 2)), 8), *traffic(L0, 8, EXCHANGE, 9)]
    lines += traffic(L1, 8, RING, 9)
    assert verdict(tmp_path, [*lines, *traffic(third, 8, (), 0)]) == ("none", "traffic")
    assert verdict(tmp_path, [*lines, *traffic(third, 8, RING, 9)]) == ("hierarchical", "traffic")


@pytest.mark.parametrize("cp", [1, 2])
def test_none_needs_groups_and_no_larger_cp_group(tmp_path: Path, cp: int) -> None:
    lines = census([*layout(4, cp), ("TENSOR_MODEL_PARALLEL_GROUP", (0, 1, 2, 3))], 4)
    assert verdict(tmp_path, lines) == ("none" if cp == 1 else "flat", "groups-created")


def test_unknown_without_groups(tmp_path: Path) -> None:
    report = read(tmp_path, ["iteration 1 | lm loss: 2.0"], "none")
    assert report.decision.verdict.value == "unknown"
    assert report.as_expected is False
    assert any("TORCH_CPP_LOG_LEVEL=INFO" in warning for warning in report.warnings)


MENTIONS = [
    "grep for HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L0, HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L1",
    "_HIERARCHICAL_CONTEXT_PARALLEL_GROUPS = [None, None]  # CONTEXT_PARALLEL_GROUP",
    "+ ringproof logs groups run.log --expect hierarchical --hcp 2,2",
    "+ python pretrain_gpt.py --cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 2 2",
    "UserWarning: HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L1 was not created",
    f'echo "{HIERARCHICAL[0]}" "{HIERARCHICAL[1]}" "{HIERARCHICAL[2]}"',
    *(f"a sound line is `{line}`" for line in MOVING),
    "look for [PG ID 4 PG GUID 12(HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L0) Rank 1] in the log",
    "[PG ID 4 PG GUID 12(HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L1) Rank 1] NCCL_DEBUG: N/A",
    "set NVTE_DEBUG=1 to see Running with config={... 'cp_comm_type': 'a2a+p2p' ...}",
    "cp_comm_type: a2a+p2p, context_parallel: True",
    startup(4, 4, "[2, 2]"),
    argument("cp_comm_type", "['a2a+p2p']"),
    argument("hierarchical_context_parallel_sizes", "[2, 2]"),
]


def test_words_alone_prove_nothing(tmp_path: Path) -> None:
    assert verdict(tmp_path, MENTIONS) == ("unknown", "none")
    flat = census(layout(4, 4), 4)
    assert verdict(tmp_path, [*MENTIONS, *flat]) == ("flat", "groups-created")
    assert verdict(tmp_path, [*MENTIONS, *HIERARCHICAL])[0] == "hierarchical"


@pytest.mark.parametrize(
    "name",
    [
        "HIERARCHICAL_EXPERT_DATA_PARALLEL_GROUP_L{}",
        "HIERARCHICAL_CONTEXT_PARALLEL_GROUP_GLOO_L{}",
        "HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L{}_GLOO",
        "MY_HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L{}",
    ],
)
def test_other_hierarchies_do_not_count(tmp_path: Path, name: str) -> None:
    groups = [
        (group.replace("HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L", name[: name.index("{")]), ranks)
        if not name.endswith("_GLOO")
        else (group if group == FLAT else f"{group}_GLOO", ranks)
        for group, ranks in layout(4, 4, (2, 2))
    ]
    assert len({group for group, _ in groups} - {L0, L1}) == 3
    assert verdict(tmp_path, census(groups, 4)) == ("flat", "groups-created")


def test_configuration_without_groups_is_a_warning(tmp_path: Path) -> None:
    told = [startup(4, 4, "[2, 2]"), argument("cp_comm_type", "['a2a+p2p']")]
    report = read(tmp_path, [*told, *census(layout(4, 4), 4)])
    assert report.decision.verdict.value == "flat"
    assert sum("configured" in warning for warning in report.warnings) == 2
    agreeing = read(tmp_path, [*told, *census(layout(4, 4, (2, 2)), 4)])
    assert not any("configured" in warning for warning in agreeing.warnings)
    assert agreeing.facts.configuration.hierarchical_sizes == (2, 2)
    assert agreeing.facts.configuration.world_size == 4


def test_groups_that_the_configuration_leaves_unused_are_flat(tmp_path: Path) -> None:
    lines = census(layout(4, 4, (2, 2)), 4)
    unused = [startup(4, 4, "[2, 2]"), argument("cp_comm_type", "['p2p']"), *lines]
    assert verdict(tmp_path, unused) == ("flat", "groups-created")
    used = [startup(4, 4, "[2, 2]"), argument("cp_comm_type", "['a2a+p2p']"), *lines]
    assert verdict(tmp_path, used) == ("hierarchical", "groups-created")


@pytest.mark.parametrize("configured", ["[4, 1]", "None"])
def test_configured_sizes_that_differ_are_a_warning(tmp_path: Path, configured: str) -> None:
    report = read(tmp_path, [startup(8, 8, configured), *HIERARCHICAL])
    assert any("context-parallel size 8, but the groups show 4" in w for w in report.warnings)
    assert report.facts.configuration.context_parallel_size == 8


ENGINE_CASES = [
    ([engine("a2a+p2p"), startup(4, 4, "[2, 2]")], "hierarchical"),
    ([engine("a2a+p2p"), startup(4, 4, "[1, 4]")], "flat"),
    ([engine("a2a+p2p"), *census(layout(4, 4, (1, 4)), 4)], "flat"),
    ([engine("a2a+p2p", size=5)], "flat"),
    ([engine("a2a+p2p", size=6)], "hierarchical"),
    ([engine("p2p"), *census(layout(4, 4, (2, 2)), 4)], "flat"),
    ([engine("p2p"), engine("a2a+p2p"), *census(layout(4, 4, (2, 2)), 4)], "hierarchical"),
    ([engine("a2a+p2p", parallel=False), *census(layout(4, 4, (2, 2)), 4)], "none"),
    ([engine("a2a+p2p", parallel=False)], "none"),
]


@pytest.mark.parametrize(("lines", "expected"), ENGINE_CASES)
def test_transformer_engine(tmp_path: Path, lines: list[str], expected: str) -> None:
    assert verdict(tmp_path, lines) == (expected, "communicators")


def test_transformer_engine_without_the_groups_is_told(tmp_path: Path) -> None:
    lines = [engine("a2a+p2p", parallel=False), *census(layout(4, 4, (2, 2)), 4)]
    report = read(tmp_path, lines)
    assert any("its own part" in warning for warning in report.warnings)


def test_traffic_overrules_what_transformer_engine_says(tmp_path: Path) -> None:
    lines = [engine("a2a+p2p"), *HIERARCHICAL, *traffic(L0, 8, (), 0)]
    assert verdict(tmp_path, lines) == ("none", "traffic")


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.sampled_from((1, 2, 3, 4)), min_size=1, max_size=3), st.integers(1, 2), st.data()
)
def test_any_layout_and_any_order_of_lines(
    tmp_path: Path, sizes: list[int], copies: int, data: st.DataObject
) -> None:
    cp = 1
    for size in sizes:
        cp *= size
    world = cp * copies
    lines = data.draw(st.permutations(census(layout(world, cp, tuple(sizes)), world)))
    wide = sum(size > 1 for size in sizes)
    expected = "hierarchical" if wide >= 2 else "flat" if wide else "none"
    report = read(tmp_path, list(lines))
    assert report.decision.verdict.value == expected
    assert report.decision.level_sizes == tuple(sizes)
    assert report.findings == ()
