"""When transfers start and end, seen through a communicator that only takes notes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ringproof.reference.attention.blocks import BlockExchange, Gather, LocalBlock, Ring
from ringproof.reference.attention.kernels import choose_kernel
from ringproof.reference.attention.loop import BlockwiseAttention, LoopPlan
from ringproof.reference.attention.steps import Step, Tile
from ringproof.reference.packing.partition import Span


@dataclass
class Note:
    """A transfer that never moves anything."""

    events: list[str]
    name: str

    def wait(self) -> None:
        self.events.append(f"wait {self.name}")


@dataclass
class Notebook:
    """Stands in for a communicator and writes down what it is asked to do."""

    size: int
    rank: int = 0
    events: list[str] = field(default_factory=list)

    def shift(
        self, send: torch.Tensor, receive: torch.Tensor, *, tag: int, distance: int = 1
    ) -> tuple[Note]:
        assert send.data_ptr() != receive.data_ptr(), "a buffer cannot be sent and received into"
        receive.fill_(distance)
        self.events.append(f"shift {tag}" + (f" by {distance}" if distance != 1 else ""))
        return (Note(self.events, f"shift {tag}"),)

    def start_all_gather(self, send: torch.Tensor, receive: torch.Tensor) -> tuple[Note]:
        self.events.append("gather")
        return (Note(self.events, "gather"),)


def run(exchange: BlockExchange, events: list[str]) -> None:
    for step, _ in enumerate(exchange.blocks(torch.zeros(4))):
        events.append(f"compute {step}")


def test_the_ring_has_the_next_block_in_flight_while_it_computes() -> None:
    notes = Notebook(size=3)
    run(Ring(notes), notes.events)  # type: ignore[arg-type] # records calls
    assert notes.events == [
        "shift 1",
        "compute 0",
        "wait shift 1",
        "shift 1",
        "compute 1",
        "wait shift 1",
        "compute 2",
    ]


def test_the_gather_runs_while_the_own_block_is_worked_on() -> None:
    notes = Notebook(size=3)
    run(Gather(notes), notes.events)  # type: ignore[arg-type] # records calls
    assert notes.events == ["gather", "compute 0", "wait gather", "compute 1", "compute 2"]


def test_gradients_travel_while_the_next_block_computes() -> None:
    notes = Notebook(size=2)
    sink = Ring(notes).gradient_sink()  # type: ignore[arg-type] # records calls
    sink.add(torch.ones(4))
    notes.events.append("compute 1")
    sink.add(torch.ones(4))
    sink.total()
    assert notes.events == ["shift 2", "compute 1", "wait shift 2", "shift 2", "wait shift 2"]


def test_gathered_gradients_go_to_their_owners_one_by_one() -> None:
    """In step s to the rank s places before; what arrives is added to the own block's."""
    notes = Notebook(size=4)
    sink = Gather(notes).gradient_sink()  # type: ignore[arg-type] # records calls
    kept = []
    for step in range(4):
        gradient = torch.full((4,), 10.0)
        kept.append(StorageWeakRef(gradient.untyped_storage()))
        sink.add(gradient)
        del gradient
        notes.events.append(f"computed {step + 1}")
        assert sum(not one.expired() for one in kept) <= 2, "the sum and the block in flight"
    assert sink.total().tolist() == [10.0 - 1 - 2 - 3] * 4
    sends = [event for event in notes.events if event.startswith("shift")]
    assert sends == [f"shift 2 by -{step}" for step in (1, 2, 3)]
    assert notes.events[1:4] == ["shift 2 by -1", "computed 2", "wait shift 2"]


@dataclass(frozen=True)
class Twice(LocalBlock):
    """Yields the own block many times and keeps the gradients it is given."""

    times: int
    kept: list[torch.Tensor]

    def blocks(self, own: torch.Tensor) -> Iterator[torch.Tensor]:
        yield from (own for _ in range(self.times))

    def gradient_sink(self) -> Twice:  # type: ignore[override] # broken on purpose
        return self

    def add(self, gradient: torch.Tensor) -> None:
        self.kept.append(gradient)

    def total(self) -> torch.Tensor:
        return torch.stack(self.kept).sum(0)


@pytest.mark.parametrize(
    ("dtype", "sums"),
    [(torch.bfloat16, torch.float32), (torch.float64, torch.float64)],
    ids=["bfloat16", "float64"],
)
def test_gradients_are_summed_in_the_accumulation_type(
    dtype: torch.dtype, sums: torch.dtype
) -> None:
    """bfloat16 sums over many blocks would lose one bit in eight of what they add."""
    q, k, v = (torch.ones(1, 4, 1, 8, dtype=dtype, requires_grad=True) for _ in range(3))
    exchange = Twice(times=64, kept=[])
    step = Step(0, (Tile(Span(0, 4), Span(0, 4), causal=False),))
    plan = LoopPlan((step,) * 64, exchange, choose_kernel("reference", q, v), scale=1.0)
    out, lse = BlockwiseAttention.apply(q, k, v, plan)
    assert lse.dtype == sums
    out.sum().backward()
    assert {gradient.dtype for gradient in exchange.kept} == {sums}
    assert v.grad.dtype == dtype
    # 64 equal blocks: each key has a 256th of the weight in each of 64 blocks, from four rows.
    assert torch.allclose(v.grad.double(), torch.ones_like(v).double(), atol=1e-2)


def test_autocast_does_not_change_the_data_type() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 16, 2, 8, generator=generator, requires_grad=True) for _ in range(3))
    step = Step(0, (Tile(Span(0, 16), Span(0, 16), causal=True),))
    plan = LoopPlan((step,), LocalBlock(), choose_kernel("reference", q, v), scale=0.3)
    right = BlockwiseAttention.apply(q, k, v, plan)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = BlockwiseAttention.apply(q, k, v, plan)[0]
        out.sum().backward()
    assert out.dtype == torch.float32
    assert torch.equal(out, right)
