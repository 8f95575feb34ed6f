"""Findings: runs that are wrong although the words are there, and evidence against itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

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
    nccl,
    nccl_line,
    read,
    texts,
    traffic,
)
from ringproof.logs.groups.output import as_json, as_text

GROUPS = layout(8, 8, (2, 4))
SOUND = census(GROUPS, 8)
EQUAL = census(layout(4, 4, (2, 2)), 4)
BUILT = nccl(GROUPS, built=(L0, L1))
ON, OFF = engine("a2a+p2p", size=8), engine("a2a+p2p", parallel=False, size=1)
MOVED = [*SOUND, *traffic(L0, 8, EXCHANGE, 9), *traffic(L1, 8, RING, 9)]
SHAPES = [line for line in SOUND if FLAT + " " not in line]
MIXED = "Transformer Engine ran attention both with and without context parallelism: "
ORDER = ": the levels are not in the order inner, outer"


def options(place: int, size: int, *, rank: int | None = None, name: str = L0) -> str:
    """What the constructor of a group's backend prints, with the description in the prefix."""
    rank = place if rank is None else rank
    text = f"ProcessGroupNCCL initialization options: size: {size}, global rank: {rank}, TIMEOUT"
    return nccl_line(place, text, "7" if name == L0 else "8", name, rank)


def renamed(lines: list[str]) -> list[str]:
    """The levels under each other's name: what swapped sizes look like."""
    return [line.replace(L0, "@").replace(L1, L0).replace("@", L1) for line in lines]


def idle(done: str) -> list[str]:
    """A run whose rank 6 reports something else of the outer level."""
    start = f"[ringproof traffic] rank=6/8 group={L1}"
    return [f"{start} {done}" if line.startswith(start) else line for line in MOVED]


HCP = {"hcp": "2,4"}
LEVELS = {"expect": "hierarchical"}
IDLE = f"ranks 6 moved no data on {L1}, other ranks did"
NCCL = f"NCCL group 7 ({L0})"
CASES: dict[str, tuple[list[str], dict[str, Any], list[str]]] = {
    "sound": (SOUND, HCP, []),
    "sound traffic": (MOVED, LEVELS, []),
    "sound communicators": (BUILT, {**HCP, "require_traffic": True}, []),
    "sound options": ([options(0, 2), options(1, 2)], {}, []),
    "sound attention": ([*BUILT, ON, ON], {**HCP, "require_traffic": True}, []),
    "swapped sizes": (
        census(layout(8, 8, (4, 2)), 8),
        HCP,
        ["expected level sizes 2,4 (inner first), found 4,2"],
    ),
    "equal sizes": (EQUAL, {"hcp": "2,2"}, []),
    "swapped levels of equal sizes": (
        renamed(EQUAL),
        {"hcp": "2,2"},
        [
            f"{L0} joins ranks 0,2, which are not 1 apart in the CP group{ORDER}",
            f"{L1} joins ranks 0-1, which are not 2 apart in the CP group{ORDER}",
        ],
    ),
    "swapped roles": (
        [*SOUND, *traffic(L0, 8, RING, 9), *traffic(L1, 8, EXCHANGE, 9)],
        LEVELS,
        [
            f"{L0} carried no all_to_all, which is its part in a2a+p2p",
            f"{L1} carried no send, which is its part in a2a+p2p",
        ],
    ),
    "a rank without the levels": (
        [line for line in SOUND if "rank=5/" not in line or FLAT + " " in line],
        LEVELS,
        [f"ranks 5 are in no {name}, other ranks are" for name in (L0, L1)],
    ),
    "a rank that moved nothing": (idle("operations=- bytes=0"), LEVELS, [IDLE]),
    "a rank that kept books": (idle("operations=all_reduce:3 bytes=24"), LEVELS, [IDLE]),
    "a rank without a communicator": (
        [
            line
            for line in nccl(GROUPS, built=(FLAT, L0, L1))
            if not (line.startswith("[rank4]") and L1 in line)
        ],
        LEVELS,
        [f"ranks 4 built no communicator of {L1}, other ranks did"],
    ),
    "a product that is another": (
        [*SHAPES, *census(layout(8, 4), 8)],
        LEVELS,
        [
            "the level sizes 2 x 4 make 8, the CP group has 4 ranks",
            f"{L1} joins ranks 0-6:2, which are not 2 apart in the CP group{ORDER}",
        ],
    ),
    "attention without CP": (
        [*BUILT, ON, OFF, ON, OFF, OFF],
        {**HCP, "require_traffic": True},
        [f"{MIXED}3 lines without, 2 lines with a2a+p2p over 8 ranks"],
    ),
    "traffic of a silent log": (
        ["hello"],
        {"require_traffic": True},
        ["the logs do not show that any context-parallel group was used"],
    ),
    "no groups": (
        nccl(GROUPS, built=()),
        {"expect": "none", "require_traffic": True},
        ["expected none, found unknown"],
    ),
    "members": ([options(n, 2) for n in range(4)], {}, [f"{NCCL} of size 2 has 4 members"]),
    "places": ([options(0, 2), options(5, 2)], {}, [f"{NCCL} of size 2 has a member at place 5"]),
    "sizes": ([options(0, 2), options(1, 3)], {}, [f"{NCCL} is described with sizes 2 and 3"]),
    "names": (
        [options(0, 2), nccl_line(1, "NCCL_DEBUG: N/A", "7", L1, 1)],
        {},
        [f"NCCL group 7 is described as {L0} and as {L1}"],
    ),
    "one rank twice": (
        [options(0, 2, rank=4), options(1, 2, rank=4)],
        {},
        [f"{NCCL} has rank 4 at places 0 and 1"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_findings(tmp_path: Path, name: str) -> None:
    lines, expectation, expected = CASES[name]
    report = read(tmp_path, lines, **expectation)
    assert texts(report) == expected
    assert report.as_expected is (not expected if expectation else None)


def test_uneven_sizes(tmp_path: Path) -> None:
    found = texts(read(tmp_path, [*SOUND, *census(layout(8, 8, (4, 2)), 8)], "hierarchical"))
    assert sum("different sizes" in text for text in found) == 2


def test_a_damaged_line_is_a_warning_not_a_finding(tmp_path: Path) -> None:
    whole = next(line for line in SOUND if "rank=5/" in line and L1 in line)
    lines = [line[: len(line) // 2] if line == whole else line for line in SOUND]
    report = read(tmp_path, lines, hcp="2,4")
    assert report.as_expected is True
    assert any("no sound line" in warning for warning in report.warnings)


def test_several_worlds_are_a_warning(tmp_path: Path) -> None:
    report = read(tmp_path, [*SOUND, *EQUAL])
    assert any("world sizes (4, 8)" in warning for warning in report.warnings)


def test_mixed_attention_is_counted(tmp_path: Path) -> None:
    report = read(tmp_path, [*BUILT, ON, OFF, ON, OFF, OFF])
    assert [one["lines"] for one in as_json(report)["engine"]] == [3, 2]
    assert any("3 lines without" in line for line in as_text(report))
    chosen = [engine("p2p", size=2), engine("p2p", False, 1)]
    for sizes, found in (("1,2", False), ("2,4", True)):  # Dynamic CP may run on one rank
        said = texts(read(tmp_path, chosen, dynamic=sizes))
        assert any(text.startswith(MIXED) for text in said) is found


@pytest.mark.parametrize("expect", [None, "hierarchical", "flat"])
def test_initialization_options_are_no_traffic(tmp_path: Path, expect: str | None) -> None:
    both = [options(0, 2), options(1, 2), options(0, 4, name=L1), options(1, 4, name=L1)]
    if expect == "flat":
        both.append(argument("cp_comm_type", "['p2p']"))
    report = read(tmp_path, both, expect, require_traffic=True)
    assert report.as_expected is False
    assert any("not that anything used them" in text for text in texts(report))
    if expect is not None:
        assert read(tmp_path, both, expect).as_expected is True
