"""The census and traffic lines: what is printed is what is read back, and nothing else is."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringproof.reference.topology.census_line import (
    OPERATION_KINDS,
    CensusLine,
    TrafficLine,
    format_ranks,
    parse_ranks,
)

CENSUS = CensusLine(0, 8, "HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L0", "gloo", (0, 1), 0)
CENSUS_TEXT = (
    "[ringproof census] rank=0/8 group=HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L0"
    " backend=gloo ranks=0-1 place=0/2"
)
TRAFFIC = TrafficLine(
    0, 8, "HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L0", (("all_to_all", 12), ("send", 0)), 1048576
)
TRAFFIC_TEXT = (
    "[ringproof traffic] rank=0/8 group=HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L0"
    " operations=all_to_all:12,send:0 bytes=1048576"
)

names = st.text(
    st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=20
).filter(lambda name: name.split() == [name])


@st.composite
def census_lines(draw: st.DrawFn) -> CensusLine:
    world = draw(st.integers(2, 5000))
    ranks = tuple(draw(st.lists(st.integers(0, world - 1), min_size=1, max_size=12, unique=True)))
    rank = draw(st.one_of(st.sampled_from(ranks), st.integers(0, world - 1)))
    place = ranks.index(rank) if rank in ranks else None
    return CensusLine(rank, world, draw(names), draw(names), ranks, place)


@st.composite
def traffic_lines(draw: st.DrawFn) -> TrafficLine:
    kinds = draw(st.lists(st.sampled_from(OPERATION_KINDS), unique=True))
    operations = tuple((kind, draw(st.integers(0, 10**12))) for kind in kinds)
    world = draw(st.integers(1, 5000))
    rank = draw(st.integers(0, world - 1))
    return TrafficLine(rank, world, draw(names), operations, draw(st.integers(0, 10**15)))


def test_the_contract_texts() -> None:
    assert CENSUS.format() == CENSUS_TEXT
    assert CensusLine.parse(CENSUS_TEXT) == CENSUS
    assert TRAFFIC.format() == TRAFFIC_TEXT
    assert TrafficLine.parse(TRAFFIC_TEXT) == TRAFFIC


@given(st.one_of(census_lines(), traffic_lines()))
def test_lines_round_trip(line: CensusLine | TrafficLine) -> None:
    for dressed in (f"[rank3]: 12:01 {line.format()}", f"0: {line.format()}\r\n"):
        assert type(line).parse(dressed) == line


@given(st.lists(st.integers(0, 100_000), min_size=1, unique=True))
def test_ranks_round_trip(ranks: list[int]) -> None:
    assert parse_ranks(format_ranks(ranks)) == tuple(ranks)


@given(st.integers(0, 9), st.integers(1, 9), st.integers(3, 500))
def test_strided_ranks_stay_short(start: int, stride: int, count: int) -> None:
    assert len(format_ranks(range(start, start + stride * count, stride))) <= 14


@pytest.mark.parametrize(
    "text", ["", "1,", "3-1", "0-4:3", "0-3:0", "1,1", "0-2,1", "a", "-1", "1-", "0-999999999"]
)
def test_ranks_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"rank"):
        parse_ranks(text)


CHANGED = {
    CENSUS_TEXT: ("rank=8/8", "place=1/2", "place=0/3", "place=-/2", "ranks=0,8"),
    TRAFFIC_TEXT: ("rank=9/8", "operations=sent:0", "operations=send:1,send:0", "bytes=-1"),
}


@pytest.mark.parametrize(
    "text",
    [
        *(
            re.sub(rf"{field.partition('=')[0]}=\S+", field, text)
            for text, fields in CHANGED.items()
            for field in fields
        ),
        *(CENSUS_TEXT[:-1], CENSUS_TEXT[:-8], f"{CENSUS_TEXT} is what to look for"),
        *(f'echo "{CENSUS_TEXT}"', f"`{CENSUS_TEXT}", f"'{CENSUS_TEXT}", f"{TRAFFIC_TEXT}`"),
    ],
)
def test_lines_refused(text: str) -> None:
    assert CensusLine.parse(text) is TrafficLine.parse(text) is None


def test_another_prefix_may_follow() -> None:
    assert CensusLine.parse(f"{CENSUS_TEXT}[rank1]: {CENSUS_TEXT}") == CENSUS
    assert TrafficLine.parse(f"{TRAFFIC_TEXT} [rank1]: x") == TRAFFIC


def test_names_become_one_word() -> None:
    line = CensusLine(0, 1, "my  group", "", (0,), 0)
    assert "group=my_group backend=undefined" in line.format()
    assert CensusLine.parse(line.format()) is not None
