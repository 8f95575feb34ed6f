"""Memory that results of one pass share: those that nothing needs after it.

A CUDA graph's pool gives the bytes of a result to the next one as soon as nobody holds the first.
So does this, for results that live within one pass: they get places in one allocation, which all
passes of a pool use in turn. Everything else keeps memory of its own, so that the tape can say what
a replay leaves undefined.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ringproof.reference.graphs.tape.memory import Block
from ringproof.reference.graphs.tape.operation import Operation, blocks

ALIGNMENT = 64
"""Bytes; a multiple of every data type's size, and what an allocator gives on a CPU."""


class Layout(NamedTuple):
    """Places in the shared allocation.

    Args:
        places: Of each block, where it begins.
        bytes: How large the allocation has to be.
    """

    places: Mapping[Block, int]
    bytes: int


def lay_out(operations: Sequence[Operation], one: int) -> Layout:
    """Find places for the blocks that only one pass uses, by first fit.

    Blocks that a transfer touches are left out, since it may still be under way when the next
    operation runs, and so are those that an operation reads before any has written all of them.

    Args:
        operations: Of the pass, in order.
        one: The pass.
    """
    lives: dict[Block, list[int]] = {}
    apart: set[Block] = set()
    for index, operation in enumerate(operations):
        made = blocks(operation.results)
        for block in operation.touch.reads | operation.touch.writes:
            if operation.function.namespace != "aten" or (block not in lives and block not in made):
                apart.add(block)
            lives.setdefault(block, [index, index])[1] = index
    places: dict[Block, int] = {}
    live: list[tuple[int, int, int]] = []  # begin, end, last operation
    total = 0
    for block, (first, last) in lives.items():
        if block in apart or not block.born == block.died == one:
            continue
        live = sorted(part for part in live if part[2] >= first)
        begin = _first_gap(live, block.bytes)
        live.append((begin, begin + block.bytes, last))
        places[block] = begin
        total = max(total, begin + block.bytes)
    return Layout(places, total)


def _first_gap(live: Sequence[tuple[int, int, int]], size: int) -> int:
    """Where a block of that size fits between those that are live, in ascending order."""
    begin = 0
    for start, end, _ in live:
        if begin + size <= start:
            break
        begin = max(begin, -(-end // ALIGNMENT) * ALIGNMENT)
    return begin
