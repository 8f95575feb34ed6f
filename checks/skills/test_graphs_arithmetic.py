"""The arithmetic of references/capacity.md: its tables and bytes follow from its rules.

What the command that it names says of a batch holds for that batch. That upstream has these rules
is shown by upstream's code, in `test_graphs_lines.py` and `test_graphs_program.py`.
"""

from __future__ import annotations

import itertools
import re
import shlex
from dataclasses import dataclass, replace

import pytest

from checks.planning.plan_run import BASIC, plan, plan_json
from checks.skills.shared import REPOSITORY
from ringproof.cards import load_card
from ringproof.errors import InputError
from ringproof.reference.packing.capacity import to_capacity
from ringproof.reference.packing.sequences import Capacity, pack

REFERENCE = REPOSITORY / "skills" / "dynamic-cp-cuda-graphs" / "references" / "capacity.md"
MIB = 1 << 20


def capture_sizes(domain, smallest):
    """Powers of two from the domain down to the smallest size."""
    return [domain >> step for step in range(domain.bit_length()) if domain >> step >= smallest]


def slots_of_5618(pipeline_stages, global_batch, sub_samples):
    return 1 if pipeline_stages == 1 else global_batch * sub_samples


@dataclass(frozen=True)
class Plan:
    domain: int
    smallest: int
    budget: int
    capacity: int
    hidden: int
    rotary: int
    layers: int
    slots: int
    sequence_shards: int = 1

    @property
    def sizes(self):
        return capture_sizes(self.domain, self.smallest)

    @property
    def graph_pairs(self):
        return self.layers * self.slots * len(self.sizes)

    def tokens(self, size):
        return self.budget * size

    @property
    def hidden_bytes(self):
        return self.budget // self.sequence_shards * self.hidden * 2

    @property
    def metadata_bytes(self):
        return 4 * (self.capacity + 1) * 4

    def rope_bytes(self, size):
        return self.tokens(size) * self.rotary * 4


QWEN = Plan(
    domain=8,
    smallest=1,
    budget=4096,
    capacity=32,
    hidden=4096,
    rotary=128,
    layers=36,
    slots=1,
    sequence_shards=2,
)


def capacity_needed(budget, domain, shortest):
    """Enough for every microbatch: real sequences of the shortest length, and the dummy."""
    return budget * domain // shortest + 1


def test_capacity_rule_covers_every_microbatch():
    """Packs of the shortest sequences with a tail, so that the dummy takes an entry."""
    budget, domain, shortest = 64, 4, 16
    capacity = capacity_needed(budget, domain, shortest)
    for size in capture_sizes(domain, 1):
        rows = budget * size
        packed = pack([shortest] * (rows // shortest - 1), multiple=2)
        assert to_capacity(packed, Capacity(rows=rows, entries=capacity)).rows == rows
        with pytest.raises(InputError, match="entries"):
            to_capacity(packed, Capacity(rows=rows, entries=packed.sequences))


def rows_of(heading):
    """The cells of the first table below a heading of the reference."""
    section = REFERENCE.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    table = list(itertools.takewhile(lambda line: line.startswith("|"), lines))
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in table[2:]]


def number(cell):
    return int(re.sub(r"[^\d]", "", cell))


def test_table_of_capacities_is_what_the_rules_give():
    shown = [[number(cell) for cell in row] for row in rows_of("Tokens")]
    assert shown == [
        [size, QWEN.tokens(size), QWEN.budget, QWEN.rope_bytes(size) // MIB] for size in QWEN.sizes
    ]


def test_table_of_graphs_is_what_the_rules_give():
    half = replace(QWEN, layers=18)
    expected = []
    for stages, held, sub_samples in ((1, QWEN, 1), (2, half, 1), (2, half, 32)):
        live, old = stages, slots_of_5618(stages, 64, sub_samples)
        pairs = [replace(held, slots=slots).graph_pairs for slots in (live, old)]
        row = [stages, sub_samples, live, old, held.layers, len(held.sizes), *pairs]
        expected.append(row)
    assert [[number(cell) for cell in row] for row in rows_of("Slots and graphs")] == expected


def test_stated_bytes_are_what_the_rules_give():
    text = REFERENCE.read_text(encoding="utf-8")
    rope = sum(QWEN.rope_bytes(size) for size in QWEN.sizes)
    assert f"{QWEN.hidden_bytes // MIB} MiB of hidden states" in text
    assert f"{QWEN.metadata_bytes} bytes of metadata" in text
    assert f"{rope // MIB} MiB of RoPE tables" in text
    assert rope < 2 * QWEN.rope_bytes(QWEN.domain), (
        "all sizes together: less than twice the largest"
    )
    wide = replace(QWEN, domain=1024)
    gib = sum(wide.rope_bytes(size) for size in wide.sizes) / 2**30
    assert f"at D = {wide.domain:,} the tables\n  of all sizes are {gib:.1f} GiB" in text


# --- what `ringproof plan --graphs` says of a batch ---

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
