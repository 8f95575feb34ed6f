"""Transfers are waited for by whoever needs their buffers, and by nobody else."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from ringproof.reference.graphs.tape.memory import Block, TapePool, address_of
from ringproof.reference.graphs.tape.operation import BlockAccess, Transfers, touched

A, B, C = (
    TapePool().add(torch.ones(1), label=label, owned=True, born=0) for label in ("a", "b", "c")
)


@dataclass
class Work:
    """Counts waits."""

    waits: int = 0

    def wait(self) -> None:
        self.waits += 1


def touch(*, reads: tuple[Block, ...] = (), writes: tuple[Block, ...] = ()) -> BlockAccess:
    return BlockAccess(frozenset(reads), frozenset(writes))


@pytest.mark.parametrize(
    ("other", "waits"),
    [
        (touch(reads=(A,), writes=(C,)), 0),  # what is being sent may be read
        (touch(writes=(A,)), 1),
        (touch(reads=(B,)), 1),
        (touch(writes=(B,)), 1),
        (touch(reads=(C,)), 0),
    ],
)
def test_who_waits(other: BlockAccess, waits: int) -> None:
    transfers, work = Transfers(), Work()
    transfers.start(work, touch(reads=(A,), writes=(B,)))
    transfers.make_way_for(other)
    assert work.waits == waits
    transfers.make_way_for(other)
    transfers.finish()
    transfers.finish()
    assert work.waits == 1


def test_what_communication_touches() -> None:
    pool = TapePool()
    mine, theirs = (
        address_of(one, pool.add(one, "one", owned=True)) for one in (torch.ones(1), torch.ones(1))
    )
    c10d = torch.ops.c10d
    assert touched(c10d.send.default, ([mine], None, 0, 0), {}, ()) == touch(reads=(mine.block,))
    assert touched(c10d.recv_.default, ([mine], None, 0, 0), {}, ()) == touch(writes=(mine.block,))
    gather = touched(c10d.allgather_.default, ([[theirs]], [mine], None), {}, ())
    assert gather == touch(reads=(mine.block,), writes=(theirs.block,))


def test_what_computation_touches() -> None:
    pool = TapePool()
    x, y, out = (
        address_of(one, pool.add(one, "one", owned=True)) for one in map(torch.ones, (1, 1, 1))
    )
    aten = torch.ops.aten
    plain = touched(aten.add.Tensor, (x, y), {}, (out,))
    assert plain == touch(reads=(x.block, y.block), writes=(out.block,))
    assert touched(aten.add_.Tensor, (x, y), {}, (None,)) == touch(
        reads=(y.block,), writes=(x.block,)
    )
    assert touched(aten.add.out, (x, y), {"out": out}, (None,)) == plain
