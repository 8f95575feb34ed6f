"""The page of a plan: one file, nothing from outside, true to the plan, usable at any size."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from checks.planning.batches import Mixed
from checks.planning.plan_run import BASIC
from ringproof.cli.lengths import read_lengths
from ringproof.cli.plan_options import PlanOptions
from ringproof.cli.plan_page import MAX_BLOCKS, drawing, page
from ringproof.cli.plan_result import Result, plan_result
from ringproof.reference.planning import AttentionOnly, Domain, Goal, Pipeline, make_plan
from ringproof.reference.planning.baselines import static_plan
from ringproof.reference.planning.lengths import make_lengths
from ringproof.reference.planning.simulate import timeline

OUTSIDE = re.compile(r"""(?:src|href|action)\s*=|url\(|@import|fetch\(|https?:|//[a-z]""")


def result(source: str, **options: Any) -> Result:
    lengths = read_lengths(source)
    given = {"ranks": 8, "max_tokens_per_rank": 2048, **options}
    return plan_result(PlanOptions(lengths=source, **given), lengths)


@pytest.fixture(scope="module")
def small() -> Result:
    return result(BASIC[1])


class Reader(HTMLParser):
    """Tags, and the content of the scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] == "script" and data.strip():
            self.scripts.append(data)


def embedded(text: str) -> Any:
    return json.loads(Reader(text).scripts[0])


def test_nothing_comes_from_outside(small: Result) -> None:
    text = page(small)
    assert OUTSIDE.findall(text) == []
    assert OUTSIDE.findall('<img src="x">') != []
    assert "default-src 'none'" in text
    assert "$" not in re.sub(r"\$\{", "", text)  # no placeholder was left, but JavaScript's
    assert {"canvas", "table", "details", "noscript"} <= set(Reader(text).tags)


def test_the_script_reads_what_the_blocks_hold(small: Result) -> None:
    names = ("MICROBATCH", "FIRST", "RANKS", "START", "END", "SIZE", "COUNT", "TOKENS", "MEMBERS")
    places = dict(re.findall(r"\b([A-Z]+) = (\d+)[,;]", page(small)))
    assert [places[name] for name in names] == [str(place) for place in range(len(names))]
    blocks = drawing(small.line, small.lengths.values, small.plan.cp_sizes).blocks
    first = small.line.blocks[0]
    assert blocks[0][:3] == (0, first.group.first_rank, first.group.size)
    assert blocks[0][3:5] == pytest.approx((first.start, first.end), rel=1e-6)


def test_the_pictures_are_those_of_the_plans(small: Result) -> None:
    data = embedded(page(small))
    assert [len(panel["ends"]) for panel in data["panels"]] == [
        len(small.plan.microbatches),
        *(len(item.plan.microbatches) for item in small.baselines),
    ]
    lengths = small.lengths.values
    for panel in data["panels"]:
        members = [member for block in panel["blocks"] for member in block[8]]
        assert all(lengths[index] == tokens for index, tokens in members)
        assert sum(block[6] for block in panel["blocks"]) == len(lengths)
        assert sum(block[7] for block in panel["blocks"]) == sum(lengths)
        assert all(data["sizes"][block[5]] == block[2] for block in panel["blocks"])
        assert panel["until"] == panel["end"]
        assert panel["end"] == pytest.approx(max(block[4] for block in panel["blocks"]), rel=0.1)
    assert data["panels"][0]["end"] == pytest.approx(small.plan.metrics.makespan, rel=1e-6)
    assert [item.name for item in small.baselines] == ["static", "sorted", "best", "padded"]
    for panel, item in zip(data["panels"][1:], small.baselines, strict=True):
        assert panel["end"] == pytest.approx(item.plan.metrics.makespan, rel=1e-6)


@pytest.mark.parametrize("objective", ["sync", "async"])
def test_a_rank_is_in_one_place_at_a_time(objective: Any) -> None:
    lengths = np.random.default_rng(3).integers(1, 6000, 200)
    domain = Domain(ranks=12, max_tokens_per_rank=2048, cp_sizes=(1, 2, 4, 12))
    goal = Goal(objective=objective)
    line = timeline(make_plan(lengths, domain, AttentionOnly(), goal), AttentionOnly(), goal)
    for block in line.blocks:
        for rank in block.group.ranks:
            beside = [
                item
                for item in line.blocks
                if item is not block and rank in item.group.ranks and item.start < block.end
            ]
            assert all(item.end <= block.start + 1e-6 for item in beside)


def test_a_pipeline_shows_one_stage_and_counts_waiting_as_idle() -> None:
    piped = result(BASIC[1], pp=4)
    line = timeline(piped.plan, piped.model, Goal("sync", Pipeline(4)))
    assert line.ends[-1] < piped.plan.metrics.makespan
    assert line.idle_fraction > timeline(piped.plan, piped.model).idle_fraction + 0.1
    text = page(piped)
    assert "One pipeline stage at work" in text
    assert "One pipeline stage at work" not in page(result(BASIC[1]))


def test_what_came_from_outside_is_escaped() -> None:
    nasty = '</script><img src=x onerror="alert(1)">'
    lengths = make_lengths([100, 200], nasty)
    options = PlanOptions(lengths=nasty, ranks=2, max_tokens_per_rank=512)
    text = page(plan_result(options, lengths))
    assert nasty not in text
    assert "<img" not in text
    assert text.count("</script>") == 2
    assert "&lt;/script&gt;" in text


def test_a_large_domain_is_drawn_in_rows() -> None:
    lengths = np.random.default_rng(0).integers(1, 9000, 16_384)
    ranks = 4096
    domain = Domain(ranks=ranks, max_tokens_per_rank=2048, cp_sizes=(1, 2, 4, 8, ranks))
    made = make_plan(lengths, domain, Mixed())
    line = timeline(made, Mixed())
    drawn = drawing(line, lengths, made.cp_sizes)
    assert drawn.ranks_per_row == 8
    assert len(drawn.blocks) < len(line.blocks)
    assert len(drawn.blocks) <= MAX_BLOCKS
    assert sum(block[6] for block in drawn.blocks) == len(lengths)
    assert sum(block[7] for block in drawn.blocks) == int(lengths.sum())
    assert max(block[1] + block[2] for block in drawn.blocks) == ranks
    assert not drawn.cut
    assert any(block[9] > 1 for block in drawn.blocks)


def test_256_ranks_by_64_microbatches_are_drawn_group_by_group() -> None:
    lengths = np.full(256 * 64, 2048)
    domain = Domain(ranks=256, max_tokens_per_rank=2048, cp_sizes=(1,))
    made = make_plan(lengths, domain, AttentionOnly())
    drawn = drawing(timeline(made, AttentionOnly()), lengths, made.cp_sizes)
    assert len(drawn.blocks) == 256 * 64
    assert drawn.ranks_per_row == 1
    assert not drawn.cut


def test_too_many_microbatches_are_cut_and_said() -> None:
    lengths = np.full(MAX_BLOCKS + 50, 64)
    domain = Domain(ranks=1, max_tokens_per_rank=64, cp_sizes=(1,))
    made = static_plan(lengths, domain, 1, AttentionOnly())
    line = timeline(made, AttentionOnly())
    drawn = drawing(line, lengths, made.cp_sizes)
    assert drawn.cut
    assert len(drawn.ends) == MAX_BLOCKS
    assert drawn.end == pytest.approx(line.ends[-1])
    # Behind the last microbatch that is drawn the picture is empty, which is not idle time.
    assert drawn.until == pytest.approx(drawn.ends[-1])
    assert drawn.until < drawn.end
