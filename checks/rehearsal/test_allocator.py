"""Blocks as torch's caching allocator hands them out."""

from __future__ import annotations

import random

from ringproof.rehearsal.hollow.allocator import Allocator
from ringproof.rehearsal.hollow.ledger import Ledger, Origin

MIB = 1 << 20


def test_a_large_block_is_split_only_if_more_than_a_mebibyte_is_left() -> None:
    allocator = Allocator()
    assert allocator.allocate(15 * MIB + 1).size == 16 * MIB  # of its own segment of 16 MiB
    first = allocator.allocate(18 * MIB)
    allocator.release(first)
    kept = allocator.allocate(17 * MIB)
    assert kept.size == 18 * MIB and allocator.reserved == 34 * MIB
    allocator.release(kept)
    assert allocator.allocate(17 * MIB - 512).size == 17 * MIB - 512


def test_small_and_expandable_blocks_are_always_split() -> None:
    allocator = Allocator()
    assert [allocator.allocate(count).size for count in (1, 512, MIB)] == [512, 512, MIB]
    assert allocator.reserved == 2 * MIB
    assert Allocator(expandable=True).allocate(15 * MIB + 1).size == 15 * MIB + 512


def test_the_smallest_free_block_is_taken_and_neighbours_join() -> None:
    allocator = Allocator()
    first, second, third = (allocator.allocate(6 * MIB) for _ in range(3))
    assert allocator.reserved == 20 * MIB
    other = allocator.allocate(9 * MIB)
    assert allocator.reserved == 40 * MIB
    allocator.release(first)
    allocator.release(other)
    assert allocator.allocate(5 * MIB).size == 6 * MIB  # of the first, not of the larger one
    for block in (second, third):
        allocator.release(block)
    assert allocator.allocate(14 * MIB).size == 14 * MIB and allocator.reserved == 40 * MIB


def test_what_is_free_as_a_whole_is_given_back() -> None:
    allocator, chance = Allocator(), random.Random(0)
    live = []
    for _ in range(3000):
        if live and chance.random() < 0.5:
            allocator.release(live.pop(chance.randrange(len(live))))
        else:
            live.append(allocator.allocate(int(2 ** chance.uniform(0, 26))))
    spans = sorted((block.address, block.size) for block in live)
    ends = [address + size for address, size in spans]
    assert all(end <= at for end, (at, _) in zip(ends, spans[1:], strict=False))
    assert sum(size for _, size in spans) <= allocator.reserved
    allocator.empty()
    assert sum(size for _, size in spans) <= allocator.reserved
    for block in live:
        allocator.release(block)
    allocator.empty()
    assert allocator.reserved == 0


def test_the_ledger_counts_the_whole_block() -> None:
    ledger = Ledger()
    number = ledger.enter(15 * MIB, Origin())
    assert (ledger.bytes, ledger.blocks[number].bytes) == (16 * MIB, 16 * MIB)
    ledger.resize(number, 0)
    assert ledger.bytes == 0
    ledger.resize(number, 15 * MIB)
    ledger.drop(number)
    assert (ledger.bytes, ledger.peak) == (0, 16 * MIB)
