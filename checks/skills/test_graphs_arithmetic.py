"""The arithmetic of references/capacity.md: its tables and bytes follow from its rules.

That upstream has these rules is shown by upstream's code, in `test_graphs_lines.py` and
`test_graphs_program.py`.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace

import pytest

from checks.skills.shared import REPOSITORY
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
    stage = replace(QWEN, layers=18)
    expected = []
    for stages, plan, sub_samples in ((1, QWEN, 1), (2, stage, 1), (2, stage, 32)):
        live, old = stages, slots_of_5618(stages, 64, sub_samples)
        pairs = [replace(plan, slots=slots).graph_pairs for slots in (live, old)]
        row = [stages, sub_samples, live, old, plan.layers, len(plan.sizes), *pairs]
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
