"""The integer arithmetic of the graph bank skill: sizes, capacities, slots, static bytes.

The rules are those of pull request 5618, named by the card's anchors, written again as small
functions. The worked tables of `references/capacity.md` must show what they give.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace

import pytest

from checks.skills.shared import REPOSITORY
from ringproof.errors import InputError
from ringproof.reference.packing.partition import rank_spans

REFERENCE = REPOSITORY / "skills" / "dynamic-cp-cuda-graphs" / "references" / "capacity.md"
MIB = 1 << 20


def capture_sizes(domain, smallest):
    """Captured CP sizes, in capture order."""
    for size in (domain, smallest):
        if size < 1 or size & (size - 1):
            raise ValueError("not a power of two")
    if smallest > domain:
        raise ValueError("smallest size above the domain")
    return [size for size in (domain >> step for step in range(64)) if size >= smallest]


def size_for(length, budget, smallest=1):
    """The CP size that the scheduler gives a sequence."""
    size = smallest
    while size * budget < length:
        size *= 2
    return size


def slots_of(pipeline_stages, global_batch, sub_samples, running=1):
    return 1 if pipeline_stages == 1 else max(running, global_batch * sub_samples)


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


def test_sizes_are_powers_of_two_largest_first():
    assert capture_sizes(8, 1) == [8, 4, 2, 1]
    assert capture_sizes(64, 4) == [64, 32, 16, 8, 4]
    assert capture_sizes(2, 2) == [2]


@pytest.mark.parametrize(("domain", "smallest"), [(12, 1), (8, 3), (4, 8), (8, 0)])
def test_other_domains_are_refused(domain, smallest):
    with pytest.raises(ValueError, match=r"power of two|above the domain"):
        capture_sizes(domain, smallest)


@pytest.mark.parametrize("smallest", [1, 2, 4])
def test_every_size_the_scheduler_can_choose_is_captured(smallest):
    budget, domain = 16, 8
    chosen = {size_for(length, budget, smallest) for length in range(1, budget * domain + 1)}
    assert chosen == set(capture_sizes(domain, smallest))
    assert size_for(budget * domain + 1, budget, smallest) not in capture_sizes(domain, smallest)


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_rows_of_a_rank_do_not_depend_on_the_size(size):
    budget = 16
    for rank in range(size):
        spans = rank_spans(budget * size, size, rank, "zigzag")
        assert sum(span.stop - span.start for span in spans) == budget


def test_an_odd_budget_cannot_be_cut():
    with pytest.raises(InputError):
        rank_spans(15 * 2, 2, 0, "zigzag")


def test_one_slot_without_a_pipeline():
    assert slots_of(1, global_batch=512, sub_samples=32) == 1


def test_slots_of_a_pipeline_are_the_global_batch_times_sub_samples():
    assert slots_of(2, global_batch=64, sub_samples=1) == 64
    assert slots_of(2, global_batch=64, sub_samples=32) == 2048
    assert slots_of(2, global_batch=4, sub_samples=1, running=8) == 8


def packed_metadata(valid, padded, target, capacity, dummy="zero"):
    """Logical and physical boundaries with the tail, filled up to the capacity.

    ``dummy``: "zero" as the pull request, "full" as dev, None without a dummy.
    """
    logical = [0, *itertools.accumulate(valid)]
    physical = [0, *itertools.accumulate(padded)]
    tail = target - physical[-1]
    if tail and dummy:
        logical.append(logical[-1] + (tail if dummy == "full" else 0))
        physical.append(target)
    if len(logical) > capacity + 1:
        raise ValueError("more sequences than the capacity")
    fill = capacity + 1 - len(logical)
    return logical + logical[-1:] * fill, physical + physical[-1:] * fill


def lengths(boundaries):
    return [after - before for before, after in itertools.pairwise(boundaries)]


def test_dummy_has_no_valid_token_and_spans_the_tail():
    logical, physical = packed_metadata([5, 4], [8, 8], target=32, capacity=4)
    assert logical == [0, 5, 9, 9, 9]
    assert physical == [0, 8, 16, 32, 32]
    assert lengths(logical) == [5, 4, 0, 0]
    assert sum(lengths(physical)) == 32, "every physical row belongs to a sequence"
    assert len(logical) == len(physical) == 4 + 1


def test_dummy_of_dev_is_full_of_valid_tokens():
    logical, physical = packed_metadata([5, 4], [8, 8], target=32, capacity=4, dummy="full")
    assert lengths(logical) == [5, 4, 16, 0]
    assert physical == packed_metadata([5, 4], [8, 8], target=32, capacity=4)[1]


def test_without_a_dummy_the_tail_is_hidden():
    _, physical = packed_metadata([5, 4], [8, 8], target=32, capacity=4, dummy=None)
    assert physical[-1] == 16 < 32, "rows 16 to 31 belong to no sequence"
    exact = packed_metadata([5, 4], [16, 16], target=32, capacity=4, dummy=None)
    assert exact == packed_metadata([5, 4], [16, 16], target=32, capacity=4), "no tail, no dummy"


def test_the_dummy_takes_one_entry_of_the_capacity():
    three = ([2, 2, 2], [4, 4, 4])
    assert packed_metadata(*three, target=16, capacity=4)
    with pytest.raises(ValueError, match="more sequences than the capacity"):
        packed_metadata(*three, target=16, capacity=3)
    assert packed_metadata(*three, target=12, capacity=3), "without a tail all entries are real"


def capacity_needed(budget, domain, shortest):
    """Enough for every microbatch: real sequences of the shortest length, and the dummy."""
    return budget * domain // shortest + 1


def test_capacity_rule_covers_every_microbatch():
    budget, domain, shortest = 64, 4, 16
    capacity = capacity_needed(budget, domain, shortest)
    for size in capture_sizes(domain, 1):
        most = budget * size // shortest
        # One row less than full, so that there is a tail.
        sizes = [shortest] * (most - 1)
        packed_metadata(sizes, sizes, target=budget * size, capacity=capacity)
    full = [shortest] * (budget * domain // shortest - 1)
    with pytest.raises(ValueError, match="more sequences"):
        packed_metadata(full, full, target=budget * domain, capacity=len(full))


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
        slots = slots_of(stages, 64, sub_samples)
        pairs = replace(plan, slots=slots).graph_pairs
        expected.append([stages, sub_samples, slots, plan.layers, len(plan.sizes), pairs])
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
