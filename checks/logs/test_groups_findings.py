"""Findings: runs that are wrong although the words are there, and evidence against itself."""

from __future__ import annotations

from pathlib import Path

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
from ringproof.harness.logs.report import GroupsReport, as_json, as_text, read_groups
from ringproof.harness.logs.verdict import parse_expectation

GROUPS = layout(8, 8, (2, 4))
SOUND = census(GROUPS, 8)


def renamed(lines: list[str]) -> list[str]:
    """The levels under each other's name: what swapped sizes look like."""
    return [line.replace(L0, "@").replace(L1, L0).replace("@", L1) for line in lines]


def test_a_sound_run_has_no_findings(tmp_path: Path) -> None:
    assert texts(read(tmp_path, SOUND, hcp="2,4")) == ()


def test_swapped_sizes(tmp_path: Path) -> None:
    swapped = read(tmp_path, census(layout(8, 8, (4, 2)), 8), hcp="2,4")
    assert texts(swapped) == ("expected level sizes 2,4 (inner first), found 4,2",)
    assert swapped.as_expected is False


def test_swapped_levels_show_in_the_ranks_even_when_sizes_are_equal(tmp_path: Path) -> None:
    lines = census(layout(4, 4, (2, 2)), 4)
    assert read(tmp_path, lines, hcp="2,2").as_expected is True
    report = read(tmp_path, renamed(lines), hcp="2,2")
    assert report.as_expected is False
    assert any("0,2" in finding and "inner, outer" in finding for finding in texts(report))


def test_swapped_roles(tmp_path: Path) -> None:
    right = [*SOUND, *traffic(L0, 8, EXCHANGE, 9), *traffic(L1, 8, RING, 9)]
    wrong = [*SOUND, *traffic(L0, 8, RING, 9), *traffic(L1, 8, EXCHANGE, 9)]
    assert texts(read(tmp_path, right, "hierarchical")) == ()
    assert len(texts(read(tmp_path, wrong, "hierarchical"))) == 2


def test_a_rank_without_the_levels(tmp_path: Path) -> None:
    lines = [line for line in SOUND if "rank=5/" not in line or FLAT + " " in line]
    report = read(tmp_path, lines, "hierarchical")
    assert [finding for finding in texts(report) if "ranks 5 are in no" in finding]
    assert report.as_expected is False


@pytest.mark.parametrize("done", ["operations=- bytes=0", "operations=all_reduce:3 bytes=24"])
def test_a_rank_that_moved_nothing(tmp_path: Path, done: str) -> None:
    moved = [*SOUND, *traffic(L0, 8, EXCHANGE, 9), *traffic(L1, 8, RING, 9)]
    idle = f"[ringproof traffic] rank=6/8 group={L1}"
    lines = [f"{idle} {done}" if line.startswith(idle) else line for line in moved]
    assert lines != moved
    report = read(tmp_path, lines, "hierarchical")
    assert texts(report) == (f"ranks 6 moved no data on {L1}, other ranks did",)


def test_a_damaged_line_is_a_warning_not_a_finding(tmp_path: Path) -> None:
    whole = next(line for line in SOUND if "rank=5/" in line and L1 in line)
    lines = [line[: len(line) // 2] if line == whole else line for line in SOUND]
    report = read(tmp_path, lines, hcp="2,4")
    assert report.as_expected is True
    assert any("no sound line" in warning for warning in report.warnings)


def test_uneven_sizes_and_products(tmp_path: Path) -> None:
    mixed = read(tmp_path, [*SOUND, *census(layout(8, 8, (4, 2)), 8)], "hierarchical")
    assert sum("different sizes" in finding for finding in texts(mixed)) == 2
    lines = [line for line in census(layout(8, 8, (2, 4)), 8) if FLAT + " " not in line]
    smaller = read(tmp_path, [*lines, *census(layout(8, 4), 8)], "hierarchical")
    assert any("2 x 4 make 8, the CP group has 4 ranks" in text for text in texts(smaller))


def test_several_worlds_are_a_warning(tmp_path: Path) -> None:
    report = read(tmp_path, [*SOUND, *census(layout(4, 4), 4)])
    assert any("world sizes (4, 8)" in warning for warning in report.warnings)


BUILT = nccl(GROUPS, built=(L0, L1))
ON, OFF = engine("a2a+p2p", size=8), engine("a2a+p2p", parallel=False, size=1)


def options(place: int, size: int, *, rank: int | None = None, name: str = L0) -> str:
    """What the constructor of a group's backend prints, with the description in the prefix."""
    rank = place if rank is None else rank
    text = f"ProcessGroupNCCL initialization options: size: {size}, global rank: {rank}, TIMEOUT"
    return nccl_line(place, text, "7" if name == L0 else "8", name, rank)


def dynamic(tmp_path: Path, lines: list[str], sizes: str) -> GroupsReport:
    path = tmp_path / "dynamic.log"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return read_groups([str(path)], parse_expectation(None, None, dynamic=sizes))


def test_attention_without_cp_beside_attention_with_it(tmp_path: Path) -> None:
    assert read(tmp_path, [*BUILT, ON, ON], hcp="2,4", require_traffic=True).as_expected is True
    report = read(tmp_path, [*BUILT, ON, OFF, ON, OFF, OFF], hcp="2,4", require_traffic=True)
    assert report.as_expected is False
    assert texts(report) == (
        "Transformer Engine ran attention both with and without context parallelism:"
        " 3 lines without, 2 lines with a2a+p2p over 8 ranks",
    )
    assert [one["lines"] for one in as_json(report)["engine"]] == [3, 2]
    assert any("3 lines without" in line for line in as_text(report))


def test_dynamic_cp_may_run_on_one_rank(tmp_path: Path) -> None:
    def mixed(sizes: str) -> bool:
        lines = [engine("p2p", size=2), engine("p2p", False, 1)]
        return any(
            "both with and without" in text for text in texts(dynamic(tmp_path, lines, sizes))
        )

    assert not mixed("1,2")
    assert mixed("2,4")


@pytest.mark.parametrize("expect", [None, "hierarchical", "flat"])
def test_initialization_options_are_no_traffic(tmp_path: Path, expect: str | None) -> None:
    both = [options(0, 2), options(1, 2), options(0, 4, name=L1), options(1, 4, name=L1)]
    if expect == "flat":
        both.append(argument("cp_comm_type", "['p2p']"))
    report = read(tmp_path, both, expect, require_traffic=True)
    assert report.as_expected is False
    assert any("not that anything used them" in finding for finding in texts(report))
    if expect is not None:
        assert read(tmp_path, both, expect).as_expected is True


def test_traffic_is_required_of_a_log_that_says_nothing(tmp_path: Path) -> None:
    assert read(tmp_path, ["hello"], require_traffic=True).as_expected is False
    assert read(tmp_path, BUILT, require_traffic=True).as_expected is True
    assert texts(read(tmp_path, nccl(GROUPS, built=()), "none", require_traffic=True)) == (
        "expected none, found unknown",
    )


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([options(place, 2) for place in range(4)], f"NCCL group 7 ({L0}) of size 2 has 4 members"),
        ([options(0, 2), options(5, 2)], f"NCCL group 7 ({L0}) of size 2 has a member at place 5"),
        ([options(0, 2), options(1, 3)], f"NCCL group 7 ({L0}) is described with sizes 2 and 3"),
        (
            [options(0, 2), nccl_line(1, "NCCL_DEBUG: N/A", "7", L1, 1)],
            f"NCCL group 7 is described as {L0} and as {L1}",
        ),
        (
            [options(0, 2, rank=4), options(1, 2, rank=4)],
            f"NCCL group 7 ({L0}) has rank 4 at places 0 and 1",
        ),
    ],
)
def test_descriptions_that_contradict_each_other(
    tmp_path: Path, lines: list[str], said: str
) -> None:
    assert said in texts(read(tmp_path, lines))


def test_sound_descriptions_are_no_finding(tmp_path: Path) -> None:
    assert texts(read(tmp_path, [options(0, 2), options(1, 2)])) == ()
    assert texts(read(tmp_path, BUILT)) == ()
