"""``ringproof logs groups --dynamic``: the groups of Dynamic CP, against what is expected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from checks.logs.groups_run import RING, census, traffic
from ringproof.cli.logs import app
from ringproof.reference.topology.dynamic_catalogue import all_dynamic_groups, dynamic_description
from ringproof.reference.topology.layout import RankLayout

WORLD = 8
TWO, FOUR = dynamic_description(2), dynamic_description(4)

Groups = list[tuple[str, tuple[int, ...]]]


def made(layout: RankLayout, *sizes: int) -> Groups:
    """The groups that the reference trainer makes."""
    planned = all_dynamic_groups(layout, sizes, ranks_per_node=None)
    return [(group.description, group.ranks) for group in planned]


ALIGNED = made(RankLayout(cp=4, dp=2), 1, 2, 4)


def report(tmp_path: Path, lines: list[str], *options: str) -> Any:
    log = tmp_path / "run.log"
    log.write_text("\n".join(lines) + "\n")
    return CliRunner().invoke(app, ["groups", str(log), *options])


def findings(result: Any) -> list[str]:
    return [line for line in result.output.splitlines() if line.startswith("finding: ")]


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ("1,2,4", ""),
        ("1,2,4,8", ""),
        ("1,2", "there are dynamic groups of 4 ranks, which were not expected"),
        ("1,2,4,16", "expected dynamic groups of 16 ranks, found none"),
    ],
)
def test_the_sizes_are_compared(tmp_path: Path, sizes: str, said: str) -> None:
    """The domain, which always exists, is a size that may be named and need not be."""
    result = report(tmp_path, census(ALIGNED, WORLD), "--dynamic", sizes)
    assert findings(result) == ([f"finding: {said}"] if said else [])
    assert result.exit_code == (1 if said else 0)
    assert f"{FOUR}: 2 of size 4; ranks 0-3" in result.output


def test_without_the_option_nothing_is_expected(tmp_path: Path) -> None:
    result = report(tmp_path, census(ALIGNED, WORLD))
    assert result.exit_code == 0
    assert "--dynamic SIZES checks them" in result.output


def test_no_dynamic_group_at_all(tmp_path: Path) -> None:
    """What a flag that is accepted and ignored looks like."""
    static = [("CONTEXT_PARALLEL_GROUP", (0, 1, 2, 3)), ("CONTEXT_PARALLEL_GROUP", (4, 5, 6, 7))]
    result = report(tmp_path, census(static, WORLD), "--dynamic", "1,2,4")
    assert len(findings(result)) == 3
    assert result.exit_code == 1


def test_a_group_with_fewer_ranks_than_its_name_says(tmp_path: Path) -> None:
    """Upstream's slices of a domain of ten: its last group of four has two ranks."""
    slices = [(FOUR, tuple(range(start, min(start + 4, 10)))) for start in (0, 4, 8)]
    result = report(tmp_path, census(slices, 10), "--dynamic", "4")
    assert findings(result) == [
        f"finding: {FOUR} has 2 ranks (8-9): a microbatch that asks for 4 runs on these"
    ]
    assert report(tmp_path, census(slices[:2], 8), "--dynamic", "4").exit_code == 0


def test_a_group_that_is_not_an_aligned_run(tmp_path: Path) -> None:
    others = [item for item in ALIGNED if item[0] != TWO]
    shifted = [*others, (TWO, (1, 2)), (TWO, (3, 0))]
    result = report(tmp_path, census(shifted, WORLD), "--dynamic", "1,2,4")
    assert [line for line in findings(result) if "1-2, which are not an aligned run" in line]
    assert len(findings(result)) == 2


def test_strided_domains_are_aligned_in_their_own_order(tmp_path: Path) -> None:
    layout = RankLayout(tp=2, cp=2, dp=2)
    result = report(tmp_path, census(made(layout, 1, 2), WORLD), "--dynamic", "1,2,4")
    assert result.exit_code == 0, result.output


def test_traffic_can_be_asked_for(tmp_path: Path) -> None:
    """A group of one rank has none."""
    lines = [*census(ALIGNED, WORLD), *traffic(TWO, WORLD, RING, 4096)]
    options = ("--dynamic", "1,2,4", "--require-traffic")
    assert findings(report(tmp_path, lines, *options)) == [
        "finding: the logs show no data moved on the dynamic groups of 4 ranks"
    ]
    both = [*lines, *traffic(FOUR, WORLD, RING, 4096)]
    assert report(tmp_path, both, *options).exit_code == 0
