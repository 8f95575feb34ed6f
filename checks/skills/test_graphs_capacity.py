"""The capacity help of the graph bank skill: what its command says of a batch holds for it."""

from __future__ import annotations

import itertools
import re
import shlex

import pytest

from checks.planning.plan_run import BASIC, plan, plan_json
from checks.skills.shared import REPOSITORY
from checks.skills.test_graphs_arithmetic import (
    QWEN,
    REFERENCE,
    capacity_needed,
    capture_sizes,
    slots_of_5618,
)
from ringproof.cards import load_card
from ringproof.errors import InputError
from ringproof.reference.packing.capacity import to_capacity
from ringproof.reference.packing.sequences import Capacity, pack

BUDGET = 2048
CARD = REPOSITORY / "cards" / "dynamic-cp-cuda-graphs" / "card.yaml"


def packs_of(document):
    for microbatch in document["microbatches"]:
        for group in microbatch["groups"]:
            size = len(group["ranks"])
            lengths = [document["lengths"][index] for index in group["sequences"]]
            yield size, pack(lengths, multiple=2 * size) if lengths else None


@pytest.fixture(scope="module")
def document():
    return plan_json("--graphs")


def test_every_pack_of_a_plan_fits_the_capacity_that_it_gives(document):
    entries = document["graphs"]["thd_max_packed_sequences"]
    rows = document["graphs"]["rows_per_rank"]
    packs = [(size, packed) for size, packed in packs_of(document) if packed]
    for size, packed in packs:
        assert to_capacity(packed, Capacity(rows=rows * size, entries=entries)).rows == rows * size
    size, most = max(packs, key=lambda one: one[1].sequences)
    assert most.sequences == entries - 1
    assert most.rows < rows * size, "it has a tail, so the dummy takes an entry"
    with pytest.raises(InputError, match=r"capacity.entries: .* and a dummy"):
        to_capacity(most, Capacity(rows=rows * size, entries=entries - 1))


def test_what_is_counted_is_counted_again(document):
    graphs, packs = document["graphs"], list(packs_of(document))
    assert graphs["microbatches"] == len(document["microbatches"]) > 1
    held = [size for size, packed in packs if packed]
    assert graphs["groups"] == {str(size): held.count(size) for size in capture_sizes(8, 1)}
    tokens = sum(document["lengths"])
    padded = sum(packed.rows for _, packed in packs if packed)
    computed = sum(BUDGET * size for size, _ in packs)
    assert graphs["padding_fraction_without"] == pytest.approx(1 - tokens / padded)
    assert graphs["padding_fraction"] == pytest.approx(1 - tokens / computed)
    assert graphs["padding_fraction"] > graphs["padding_fraction_without"]


def test_a_cap_gives_the_flag_and_costs_microbatches(document):
    capped = plan_json("--graphs", "--max-sequences", "3")["graphs"]
    assert capped["thd_max_packed_sequences"] == 3 + 1
    assert document["graphs"]["thd_max_packed_sequences"] > 3 + 1
    assert capped["microbatches"] > document["graphs"]["microbatches"]
    said = plan(*BASIC, "--max-sequences", "3", "--graphs", "--target", "pr5618").out
    assert "--thd-max-packed-sequences 4 \\" in said


@pytest.mark.parametrize("stages", [1, 2])
def test_slots_and_pairs_are_those_of_the_rules(stages):
    graphs = plan_json("--graphs", "--pp", str(stages))["graphs"]
    slots = slots_of_5618(stages, global_batch=64, sub_samples=1)
    assert graphs["pr5618_slots"] == slots
    assert graphs["pr5618_pairs_per_layer"] == slots * len(capture_sizes(8, 1))


def test_the_bound_is_enough_and_the_plan_needs_less(document):
    padded = [-(-length // 16) * 16 for length in document["lengths"]]
    bound = capacity_needed(BUDGET, 8, min(padded))
    assert document["graphs"]["thd_max_packed_sequences"] <= bound


def fence_after(text, heading):
    """The first fence of text below a heading of the reference."""
    found = re.search(rf"\n## {heading}\n.*?```text\n(.*?)```", text, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_command_prints_what_the_skill_shows():
    command = next(one for one in load_card(CARD).commands if one.id == "size-the-bank")
    program, name, *arguments = shlex.split(command.run)
    assert (program, name) == ("ringproof", "plan")
    out = plan(*arguments).out
    shown = fence_after(REFERENCE.read_text(encoding="utf-8"), "From a length distribution")
    graphs = [line for line in out.splitlines() if line.startswith("graph ")]
    assert shown.splitlines() == graphs
    assert len(graphs) == 6
    for flag in ("--cuda-graph-impl transformer_engine", "--pad-packed-seq-alignment max"):
        assert f"\n{flag} \\\n" in out
    assert f"\n--max-seqlen-per-dp-cp-rank {QWEN.budget} \\\n" in out
    capped = plan(*arguments, "--max-sequences", "31").out
    assert "--thd-max-packed-sequences 32: 31 sequences" in capped
    slots = next(line for line in graphs if line.startswith("graph slots"))
    assert slots in capped, "as many microbatches: the cap costs nothing here"
    fewer = plan(*itertools.takewhile(lambda word: word != "--batches", arguments)).out
    assert shown.splitlines()[0] not in fewer, "one batch has not the fullest pack"
