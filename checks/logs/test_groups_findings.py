"""Findings: runs that are wrong although the words are all there."""

from __future__ import annotations

from pathlib import Path

from checks.logs.groups_run import EXCHANGE, FLAT, L0, L1, RING, census, layout, read, traffic

GROUPS = layout(8, 8, (2, 4))
SOUND = census(GROUPS, 8)


def renamed(lines: list[str]) -> list[str]:
    """The levels under each other's name: what swapped sizes look like."""
    return [line.replace(L0, "@").replace(L1, L0).replace("@", L1) for line in lines]


def test_a_sound_run_has_no_findings(tmp_path: Path) -> None:
    assert read(tmp_path, SOUND, hcp="2,4").findings == ()


def test_swapped_sizes(tmp_path: Path) -> None:
    swapped = read(tmp_path, census(layout(8, 8, (4, 2)), 8), hcp="2,4")
    assert swapped.findings == ("expected level sizes 2,4 (inner first), found 4,2",)
    assert swapped.as_expected is False


def test_swapped_levels_show_in_the_ranks_even_when_sizes_are_equal(tmp_path: Path) -> None:
    lines = census(layout(4, 4, (2, 2)), 4)
    assert read(tmp_path, lines, hcp="2,2").as_expected is True
    report = read(tmp_path, renamed(lines), hcp="2,2")
    assert report.as_expected is False
    assert any("0,2" in finding and "inner, outer" in finding for finding in report.findings)


def test_swapped_roles(tmp_path: Path) -> None:
    right = [*SOUND, *traffic(L0, 8, EXCHANGE, 9), *traffic(L1, 8, RING, 9)]
    wrong = [*SOUND, *traffic(L0, 8, RING, 9), *traffic(L1, 8, EXCHANGE, 9)]
    assert read(tmp_path, right, "hierarchical").findings == ()
    assert len(read(tmp_path, wrong, "hierarchical").findings) == 2


def test_a_rank_without_the_levels(tmp_path: Path) -> None:
    lines = [line for line in SOUND if "rank=5/" not in line or FLAT + " " in line]
    report = read(tmp_path, lines, "hierarchical")
    assert [finding for finding in report.findings if "ranks 5 are in no" in finding]
    assert report.as_expected is False


def test_a_rank_that_moved_nothing(tmp_path: Path) -> None:
    moved = [*SOUND, *traffic(L0, 8, EXCHANGE, 9), *traffic(L1, 8, RING, 9)]
    idle = f"[ringproof traffic] rank=6/8 group={L1}"
    lines = [f"{idle} operations=- bytes=0" if line.startswith(idle) else line for line in moved]
    assert lines != moved
    report = read(tmp_path, lines, "hierarchical")
    assert report.findings == (f"ranks 6 moved no data on {L1}, other ranks did",)


def test_a_damaged_line_is_a_warning_not_a_finding(tmp_path: Path) -> None:
    whole = next(line for line in SOUND if "rank=5/" in line and L1 in line)
    lines = [line[: len(line) // 2] if line == whole else line for line in SOUND]
    report = read(tmp_path, lines, hcp="2,4")
    assert report.as_expected is True
    assert any("no sound line" in warning for warning in report.warnings)


def test_uneven_sizes_and_products(tmp_path: Path) -> None:
    mixed = read(tmp_path, [*SOUND, *census(layout(8, 8, (4, 2)), 8)], "hierarchical")
    assert sum("different sizes" in finding for finding in mixed.findings) == 2
    lines = [line for line in census(layout(8, 8, (2, 4)), 8) if FLAT + " " not in line]
    smaller = read(tmp_path, [*lines, *census(layout(8, 4), 8)], "hierarchical")
    assert any("2 x 4 make 8, the CP group has 4 ranks" in text for text in smaller.findings)


def test_several_worlds_are_a_warning(tmp_path: Path) -> None:
    report = read(tmp_path, [*SOUND, *census(layout(4, 4), 4)])
    assert any("world sizes (4, 8)" in warning for warning in report.warnings)
