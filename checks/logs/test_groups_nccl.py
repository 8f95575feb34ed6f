"""Groups from the log of PyTorch's NCCL backend."""

from __future__ import annotations

from pathlib import Path

import pytest

from checks.logs.groups_run import FLAT, L0, L1, census, judged, layout, nccl, nccl_line, read
from ringproof.logs.parsing import NcclEvent, parse_nccl

GROUPS = layout(8, 8, (2, 4))
NEW_PREFIX = "ProcessGroupNCCL.cpp:1] [PG ID 4 PG GUID 12({}) Rank 5] "
BUILT = "ProcessGroupNCCL created ncclComm_ 0x55 on CUDA device: \x00"


ERROR = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=BROADCAST)"
LEVELS = census(layout(4, 4, (2, 2)), 4)
ELSEWHERE = nccl_line(0, ERROR, desc="default_pg").replace("[I1120", "[E1120")
HERE = [nccl_line(0, ERROR, f"9{level}", level) for level in (L0, L1)]
UNREACHED = [*nccl(GROUPS, built=()), nccl_line(0, "NCCL_DEBUG: N/A", "99", "default_pg")]
EAGER = nccl(GROUPS, built=(FLAT, L0, L1), eager=True)
LOG_OF_RANK_3 = [line for line in nccl(GROUPS, built=(L0, L1)) if line.startswith("[rank3]")]
SEEN = ("hierarchical", "communicators")
CASES: dict[str, tuple[list[str], tuple[str, str]]] = {
    "both levels": (nccl(GROUPS, built=(L0, L1)), SEEN),
    "both levels, older": (nccl(GROUPS, built=(L0, L1), newer=False), SEEN),
    "with a census": ([*census(GROUPS, 8), *nccl(GROUPS, built=(L0, L1))], SEEN),
    "one rank's log": (LOG_OF_RANK_3, SEEN),
    "flat alone": (nccl(GROUPS, built=(FLAT,)), ("flat", "communicators")),
    "flat alone, with a census": (
        [*census(GROUPS, 8), *nccl(GROUPS, built=(FLAT,))],
        ("flat", "communicators"),
    ),
    "eager ones show creation only": (EAGER, ("hierarchical", "groups-created")),
    "an error elsewhere": ([*LEVELS, ELSEWHERE], ("hierarchical", "groups-created")),
    "errors prove use": ([*LEVELS, *HERE], SEEN),
    "one level alone": (nccl(GROUPS, built=(L1,)), ("none", "communicators")),
    "a level of one rank": (
        nccl(layout(8, 8, (1, 8)), built=(L0, L1)),
        ("flat", "communicators"),
    ),
    "attention was not reached": (UNREACHED, ("none", "communicators")),
}


@pytest.mark.parametrize("name", CASES)
def test_verdicts(tmp_path: Path, name: str) -> None:
    lines, expected = CASES[name]
    report = read(tmp_path, lines, expected[0], require_traffic=True)
    assert judged(report) == expected
    assert report.as_expected is (expected[1] == "communicators")


def test_groups_and_their_ranks(tmp_path: Path) -> None:
    groups = read(tmp_path, CASES["with a census"][0], hcp="2,4").facts.groups
    assert {(L0, (2, 3)), (L1, (1, 3, 5, 7))} < {(group.name, group.ranks) for group in groups}
    assert sum(group.name == L0 for group in groups) == 4
    alone = read(tmp_path, LOG_OF_RANK_3, hcp="2,4")
    assert {group.ranks for group in alone.facts.groups} == {None}
    undescribed = read(tmp_path, nccl(GROUPS, built=()))
    assert judged(undescribed) == ("unknown", "none")
    assert any("7 NCCL groups have no description" in text for text in undescribed.warnings)


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


def test_a_log_of_the_whole_run_s_group_alone_is_unknown(tmp_path: Path) -> None:
    whole = [("default_pg", tuple(range(4)))]
    report = read(tmp_path, nccl(whole, built=("default_pg",)))
    assert judged(report) == ("unknown", "none")
    assert any("which every run has" in text for text in report.warnings)
    other = [*whole, ("DATA_PARALLEL_GROUP", tuple(range(4)))]
    report = read(tmp_path, nccl(other, built=("default_pg", "DATA_PARALLEL_GROUP")))
    assert judged(report) == ("none", "communicators")


def test_the_axis_of_a_device_mesh_is_the_flat_group(tmp_path: Path) -> None:
    groups = [("default_pg", tuple(range(4))), ("mesh_cp", (0, 1)), ("mesh_cp", (2, 3))]
    report = read(tmp_path, nccl(groups, built=("default_pg", "mesh_cp")))
    assert judged(report) == ("flat", "communicators")
    assert report.facts.flat.size == 2
    of_shards = [("default_pg", tuple(range(4))), ("mesh_dp_shard_cp", tuple(range(4)))]
    report = read(tmp_path, nccl(of_shards, built=("default_pg", "mesh_dp_shard_cp")))
    assert judged(report) == ("none", "communicators")
