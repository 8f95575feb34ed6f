"""Groups from the log of PyTorch's NCCL backend."""

from __future__ import annotations

from pathlib import Path

import pytest

from checks.logs.groups_run import FLAT, L0, L1, census, layout, nccl, nccl_line, read, texts
from ringproof.harness.logs.parsing import NcclEvent, parse_nccl

GROUPS = layout(8, 8, (2, 4))
NEW_PREFIX = "ProcessGroupNCCL.cpp:1] [PG ID 4 PG GUID 12({}) Rank 5] "
BUILT = "ProcessGroupNCCL created ncclComm_ 0x55 on CUDA device: \x00"


@pytest.mark.parametrize("newer", [True, False])
def test_communicators_on_both_levels(tmp_path: Path, newer: bool) -> None:
    lines = nccl(GROUPS, built=(L0, L1), newer=newer)
    report = read(tmp_path, lines, hcp="2,4", require_traffic=True)
    assert report.decision.proof.value == "communicators"
    assert report.as_expected is True
    found = {(group.name, group.ranks) for group in report.facts.groups}
    assert (L0, (2, 3)) in found
    assert (L1, (1, 3, 5, 7)) in found


def test_groups_without_a_communicator_were_not_used(tmp_path: Path) -> None:
    flat = read(tmp_path, nccl(GROUPS, built=(FLAT,)), "flat")
    assert (flat.decision.verdict.value, flat.as_expected) == ("flat", True)
    with_census = read(tmp_path, [*census(GROUPS, 8), *nccl(GROUPS, built=(FLAT,))])
    assert with_census.decision.verdict.value == "flat"
    assert with_census.decision.proof.value == "communicators"
    assert read(tmp_path, census(GROUPS, 8)).decision.verdict.value == "hierarchical"


def test_eager_communicators_show_creation_only(tmp_path: Path) -> None:
    lines = nccl(GROUPS, built=(FLAT, L0, L1), eager=True)
    report = read(tmp_path, lines, "hierarchical")
    assert report.decision.proof.value == "groups-created"
    assert report.as_expected is True
    assert read(tmp_path, lines, "hierarchical", require_traffic=True).as_expected is False


def test_undescribed_groups_are_no_evidence(tmp_path: Path) -> None:
    report = read(tmp_path, nccl(GROUPS, built=()), "hierarchical")
    assert report.decision.verdict.value == "unknown"
    assert any("7 NCCL groups have no description" in text for text in report.warnings)


def test_one_ranks_log_gives_sizes_without_ranks(tmp_path: Path) -> None:
    lines = [line for line in nccl(GROUPS, built=(L0, L1)) if line.startswith("[rank3]")]
    report = read(tmp_path, lines, hcp="2,4")
    assert report.as_expected is True
    assert {group.ranks for group in report.facts.groups} == {None}


def test_census_and_communicators_of_one_group_are_one_group(tmp_path: Path) -> None:
    lines = [*census(GROUPS, 8), *nccl(GROUPS, built=(L0, L1))]
    report = read(tmp_path, lines, hcp="2,4", require_traffic=True)
    assert report.as_expected is True
    assert sum(group.name == L0 for group in report.facts.groups) == 4


def test_a_rank_without_communicator_is_a_finding(tmp_path: Path) -> None:
    lines = [
        line
        for line in nccl(GROUPS, built=(FLAT, L0, L1))
        if not (line.startswith("[rank4]") and L1 in line)
    ]
    report = read(tmp_path, lines, "hierarchical")
    assert texts(report) == (f"ranks 4 built no communicator of {L1}, other ranks did",)


def test_errors_prove_use_but_not_disuse(tmp_path: Path) -> None:
    groups = census(layout(4, 4, (2, 2)), 4)
    error = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=BROADCAST)"
    elsewhere = nccl_line(0, error, desc="default_pg").replace("[I1120", "[E1120")
    report = read(tmp_path, [*groups, elsewhere])
    assert report.decision.verdict.value == "hierarchical"
    assert report.decision.proof.value == "groups-created"
    here = [nccl_line(0, error, f"9{level}", level) for level in (L0, L1)]
    assert read(tmp_path, [*groups, *here]).decision.proof.value == "communicators"


UNREACHED = [*nccl(GROUPS, built=()), nccl_line(0, "NCCL_DEBUG: N/A", "99", "default_pg")]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (nccl(GROUPS, built=(L1,)), "none"),
        (nccl(layout(8, 8, (1, 8)), built=(L0, L1)), "flat"),
        (UNREACHED, "none"),
    ],
    ids=["one level alone", "a level of one rank", "attention was not reached"],
)
def test_what_is_not_hierarchical(tmp_path: Path, lines: list[str], expected: str) -> None:
    report = read(tmp_path, lines, expected)
    assert (report.decision.verdict.value, report.as_expected) == (expected, True)


@pytest.mark.parametrize(
    ("header", "guid"),
    [
        ("I0527 15:16:57.738664 58629 ProcessGroupNCCL.cpp:2183] [PG 12 ({}) Rank 5] ", "12"),
        ("[I ProcessGroupNCCL.cpp:787] [PG ID 4 PG GUID 3fa9c0({}) Rank 5] ", "3fa9c0"),
        (f"[rank7]:[I429 13:55:49.384372190 {NEW_PREFIX}", "12"),
        (f"0: [default1]:[rank7]:[I1127 13:55:49.384372190 {NEW_PREFIX}", "12"),
    ],
)
def test_prefixes_of_several_releases(header: str, guid: str) -> None:
    (line,) = parse_nccl(header.format(L0) + BUILT)
    assert (line.guid, line.description, line.group_rank) == (guid, L0, 5)
    assert line.event is NcclEvent.COMMUNICATOR
    assert line.global_rank == (7 if "rank7" in header else None)
    assert list(parse_nccl(header.format(L0)[header.index("[PG") :] + BUILT)) == []


def test_old_prefix_without_description() -> None:
    text = "[I ProcessGroupNCCL.cpp:787] [PG 12 Rank 1] ProcessGroupNCCL initialization options: "
    (line,) = parse_nccl(f"{text}NCCL version: 2.20.5, size: 4, global rank: 3, TIMEOUT(ms): 9")
    assert (line.description, line.size, line.global_rank) == (None, 4, 3)
    assert line.event is NcclEvent.OPTIONS


def test_an_absurd_size_costs_nothing(tmp_path: Path) -> None:
    options = "ProcessGroupNCCL initialization options: size: 999999999, global rank: 0,"
    report = read(tmp_path, [nccl_line(0, options), nccl_line(0, "NCCL_DEBUG: N/A", desc=FLAT)])
    (group,) = report.facts.groups
    assert (group.size, group.ranks) == (999999999, None)


def test_two_ranks_on_one_line() -> None:
    both = nccl_line(0, BUILT, "1", L0) + nccl_line(1, "NCCL_DEBUG: N/A", "1", L0, rank=1)
    assert [(line.group_rank, line.event.value) for line in parse_nccl(both)] == [
        (0, "communicator"),
        (1, "communicator"),
    ]
