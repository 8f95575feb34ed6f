"""Verdicts from census, traffic and configuration: each with the change that must turn it."""

from __future__ import annotations

from math import prod
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
    judged,
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


def test_creation_is_accepted_and_named_as_such(tmp_path: Path) -> None:
    report = read(tmp_path, HIERARCHICAL, "hierarchical")
    assert report.as_expected is True
    assert any("created" in warning for warning in report.warnings)
    assert not read(tmp_path, HIERARCHICAL, "hierarchical", require_traffic=True).as_expected


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
    assert judged(read(tmp_path, census(groups, 4))) == ("flat", "groups-created")


def test_configuration_without_groups_is_a_warning(tmp_path: Path) -> None:
    told = [startup(4, 4, "[2, 2]"), argument("cp_comm_type", "['a2a+p2p']")]
    report = read(tmp_path, [*told, *census(layout(4, 4), 4)])
    assert report.decision.verdict.value == "flat"
    assert sum("configured" in warning for warning in report.warnings) == 2
    agreeing = read(tmp_path, [*told, *census(layout(4, 4, (2, 2)), 4)])
    assert not any("configured" in warning for warning in agreeing.warnings)
    assert agreeing.facts.configuration.hierarchical_context_parallel_sizes == (2, 2)
    assert agreeing.facts.configuration.world_size == 4


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


BOOKKEEPING = (("all_reduce", 9), ("broadcast", 2))
CREATED = census(layout(4, 4, (2, 2)), 4)
THIRD = "HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L2"
THREE = [
    *census(layout(8, 8, (2, 2, 2)), 8),
    *traffic(L0, 8, EXCHANGE, 9),
    *traffic(L1, 8, RING, 9),
]
ALL_RANKS = ("TENSOR_MODEL_PARALLEL_GROUP", (0, 1, 2, 3))
TOLD = startup(4, 4, "[2, 2]")


def everywhere(operations: tuple[tuple[str, int], ...], sent: int) -> list[str]:
    return [line for name in (FLAT, L0, L1) for line in traffic(name, 8, operations, sent)]


CASES = {
    "communication is switched off": ([*HIERARCHICAL, *everywhere((), 0)], "none", "traffic"),
    "a ring over the flat group": (
        [*HIERARCHICAL, *traffic(FLAT, 8, RING, 99), *traffic(L0, 8, (), 0)],
        *("flat", "traffic"),
    ),
    "created": (HIERARCHICAL, "hierarchical", "groups-created"),
    "bookkeeping": ([*HIERARCHICAL, *everywhere(BOOKKEEPING, 512)], "none", "traffic"),
    "levels [1, 4]": (census(layout(4, 4, (1, 4)), 4), "flat", "groups-created"),
    "levels [4, 1]": (census(layout(4, 4, (4, 1)), 4), "flat", "groups-created"),
    "one wide level moves": (
        [*census(layout(4, 4, (4, 1)), 4), *traffic(L0, 4, EXCHANGE, 64)],
        *("flat", "traffic"),
    ),
    "a silent third level": ([*THREE, *traffic(THIRD, 8, (), 0)], "none", "traffic"),
    "a third level": ([*THREE, *traffic(THIRD, 8, RING, 9)], "hierarchical", "traffic"),
    "CP 1": (census([*layout(4, 1), ALL_RANKS], 4), "none", "groups-created"),
    "CP 2": (census([*layout(4, 2), ALL_RANKS], 4), "flat", "groups-created"),
    "nothing": (["iteration 1 | lm loss: 2.0"], "unknown", "none"),
    "words alone": (MENTIONS, "unknown", "none"),
    "words and flat groups": ([*MENTIONS, *census(layout(4, 4), 4)], "flat", "groups-created"),
    "words and groups": ([*MENTIONS, *HIERARCHICAL], "hierarchical", "groups-created"),
    "groups left unused": (
        [TOLD, argument("cp_comm_type", "['p2p']"), *CREATED],
        *("flat", "groups-created"),
    ),
    "groups configured": (
        [TOLD, argument("cp_comm_type", "['a2a+p2p']"), *CREATED],
        *("hierarchical", "groups-created"),
    ),
    "traffic overrules the engine": (
        [engine("a2a+p2p"), *HIERARCHICAL, *traffic(L0, 8, (), 0)],
        *("none", "traffic"),
    ),
    **{f"engine {n}": (*case, "communicators") for n, case in enumerate(ENGINE_CASES)},
}


@pytest.mark.parametrize("name", CASES)
def test_verdicts(tmp_path: Path, name: str) -> None:
    lines, *expected = CASES[name]
    assert judged(read(tmp_path, lines)) == tuple(expected)


def test_transformer_engine_without_the_groups_is_told(tmp_path: Path) -> None:
    lines = [engine("a2a+p2p", parallel=False), *census(layout(4, 4, (2, 2)), 4)]
    report = read(tmp_path, lines)
    assert any("its own part" in warning for warning in report.warnings)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.sampled_from((1, 2, 3, 4)), min_size=1, max_size=3), st.integers(1, 2), st.data()
)
def test_any_layout_and_any_order_of_lines(
    tmp_path: Path, sizes: list[int], copies: int, data: st.DataObject
) -> None:
    cp = prod(sizes)
    world = cp * copies
    lines = data.draw(st.permutations(census(layout(world, cp, tuple(sizes)), world)))
    wide = sum(size > 1 for size in sizes)
    expected = "hierarchical" if wide >= 2 else "flat" if wide else "none"
    report = read(tmp_path, list(lines))
    assert report.decision.verdict.value == expected
    assert report.decision.level_sizes == tuple(sizes)
    assert report.findings == ()
