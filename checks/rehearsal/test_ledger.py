"""The ledger of full-size runs, and what of torch it is told, in one process."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ringproof.rehearsal.hollow import devices
from ringproof.rehearsal.hollow.classify import Sorted, kind_of
from ringproof.rehearsal.hollow.ledger import Ledger, LiveBlock, Mark, Origin
from ringproof.rehearsal.hollow.mode import HollowMode, vacant
from ringproof.rehearsal.hollow.storages import Storages

SIDE = 2048  # a square of this side has more elements than are computed with
MATRIX = 4 * SIDE * SIDE


@pytest.fixture
def storages() -> Iterator[Storages]:
    """Storages of the device, of which everything that is made is one."""
    found = Storages(Ledger())
    with HollowMode(found), found.wanted():
        yield found


def matrix(side: int = SIDE) -> Tensor:
    return torch.ones(side, side)


def test_blocks_are_rounded_up_and_the_peak_is_kept() -> None:
    ledger = Ledger()
    first, second = ledger.enter(1, Origin()), ledger.enter(1000, Origin())
    assert (ledger.bytes, ledger.peak) == (512 + 1024, 512 + 1024)
    ledger.drop(first)
    ledger.drop(first)  # a second time changes nothing
    assert (ledger.bytes, ledger.peak, ledger.peak_event) == (1024, 1536, 2)
    ledger.resize(second, 0)
    ledger.resize(second, 513)
    assert (ledger.bytes, ledger.peak) == (1024, 1536)
    assert ledger.alive(2) == {first: 512, second: 1024}
    assert ledger.alive(len(ledger.events)) == {second: 1024}


def test_marks_have_the_peak_since_the_mark_before() -> None:
    ledger = Ledger()
    kept = ledger.enter(512, Origin())
    ledger.drop(ledger.enter(2048, Origin()))
    ledger.mark("one")
    ledger.pass_by([(1000, Origin())])
    ledger.mark("two")
    ledger.drop(kept)
    ledger.mark("three")
    assert ledger.marks == [
        Mark("one", 3, 512, 2560), Mark("two", 5, 512, 1536), Mark("three", 6, 0, 512)
    ]  # fmt: skip


def test_bytes_that_are_needed_for_a_moment_can_make_the_peak() -> None:
    ledger = Ledger()
    ledger.enter(512, Origin())
    ledger.pass_by([(4000, Origin(place="x.py:1")), (512, Origin(place="x.py:2"))])
    assert (ledger.bytes, ledger.peak) == (512, 512 + 4096 + 512)
    found, kinds = Sorted(ledger, str), {"buffers": 512, "temporaries": 4096 + 512}
    assert found.kinds(ledger.peak_event) == kinds
    assert found.at_peak().place == "x.py:2"
    assert kinds in found.timeline(0, len(ledger.events))
    assert found.highest() == {"setup ": 512, "setup x.py:1": 512 + 4096, "setup x.py:2": 5120}
    assert found.kinds(len(ledger.events)) == {"buffers": 512}


FORWARD, BACKWARD = Origin(phase="step"), Origin(phase="step", backward=True)


@pytest.mark.parametrize(
    ("block", "kind"),
    [
        (LiveBlock(1, Origin(), kind="gradients"), "gradients"),
        (LiveBlock(1, Origin(place="/x/megatron/core/optimizer/adam.py:3")), "optimizer"),
        (LiveBlock(1, Origin(phase="optimizer")), "optimizer"),
        (LiveBlock(1, Origin(phase="optimizer"), dropped_in_backward=False), "temporaries"),
        (LiveBlock(1, FORWARD, dropped_in_backward=True), "activations"),
        (LiveBlock(1, FORWARD, received=True, dropped_in_backward=True), "activations"),
        (LiveBlock(1, FORWARD, received=True, dropped_in_backward=False), "communication"),
        (LiveBlock(1, FORWARD, dropped_in_backward=False), "temporaries"),
        (LiveBlock(1, BACKWARD, dropped_in_backward=True), "temporaries"),
        (LiveBlock(1, FORWARD), "buffers"),
        (LiveBlock(1, Origin()), "buffers"),
    ],
)
def test_the_kind_of_a_block_follows_from_its_life(block: LiveBlock, kind: str) -> None:
    assert kind_of(block) == kind


def test_the_timeline_keeps_the_highest_moment() -> None:
    ledger = Ledger()
    for size in range(1000):
        ledger.drop(ledger.enter(512 * (1 + size % 700), FORWARD))
    timeline = Sorted(ledger, str).timeline(0, len(ledger.events))
    assert len(timeline) < 300
    assert max(moment.get("temporaries", 0) for moment in timeline) == ledger.peak == 512 * 700


def test_large_tensors_have_no_content_and_small_ones_are_computed(storages: Storages) -> None:
    large, small = matrix(), matrix(4)
    assert storages.is_hollow(large) and not storages.is_hollow(small)
    assert storages.ledger.bytes == MATRIX + 512
    assert (small @ small).tolist() == [[4.0] * 4] * 4
    assert storages.is_hollow(large @ large)
    assert (large @ large)[0, 0].item() == 0
    assert sum(storages.invented.values()) == 1


def test_views_and_writes_take_no_memory_and_products_do(storages: Storages) -> None:
    a = matrix()
    view = a[:5].t()[3:]
    a.add_(1.0).mul_(a)
    assert storages.ledger.bytes == MATRIX
    product = a @ a
    assert storages.ledger.bytes == 2 * MATRIX
    del a, product
    assert storages.ledger.bytes == MATRIX  # the view holds the first one
    del view
    assert storages.ledger.bytes == 0
    assert storages.ledger.peak == 2 * MATRIX


def test_a_kernel_takes_only_what_it_leaves(storages: Storages) -> None:
    a = matrix()
    with storages.kernel():
        b = (a * 2) @ (a * 3)
    assert storages.ledger.peak == storages.ledger.bytes == 2 * MATRIX
    del b


def test_a_compiled_function_writes_into_a_copy(storages: Storages) -> None:
    a = matrix()
    with storages.kernel(compiled=True):
        a.mul_(2)
    ledger = storages.ledger
    assert (ledger.bytes, ledger.peak) == (MATRIX, 2 * MATRIX)
    highest = Sorted(ledger, str).timeline(0, len(ledger.events))[ledger.peak_event - 1]
    assert highest == Sorted(ledger, str).kinds(ledger.peak_event)
    assert highest == {"buffers": MATRIX, "temporaries": MATRIX}
    assert ledger.blocks[2].origin.shape == (SIDE, SIDE)


def test_memory_can_be_given_to_a_tensor_that_was_emptied(storages: Storages) -> None:
    kept, made, small, other = matrix(), matrix(), torch.zeros(3), torch.ones(3)
    for tensor in (kept, small):
        tensor.untyped_storage().resize_(0)
        storages.resized(tensor.untyped_storage())
    assert storages.ledger.bytes == MATRIX + 512
    storages.share(kept, made)
    storages.share(small, other)
    for tensor in (kept, small):
        storages.resized(tensor.untyped_storage())
    assert storages.ledger.bytes == MATRIX + 512 and storages.ledger.peak == 2 * MATRIX + 1024
    del made, other
    assert storages.ledger.bytes == MATRIX + 512
    assert storages.is_hollow(kept) and small.tolist() == [1.0] * 3


def test_what_is_made_on_the_host_is_not_counted() -> None:
    storages = Storages(Ledger())
    with HollowMode(storages):
        host = matrix()
        with storages.wanted():
            device = matrix()
        assert storages.ledger.bytes == MATRIX
        assert not storages.holds(host * 2) and storages.holds(host * device)


def test_products_are_counted_whether_they_are_computed_or_not() -> None:
    mode = HollowMode(Storages(Ledger()))
    with mode:
        assert (torch.ones(4, 8) @ torch.ones(8, 2)).tolist() == [[8.0, 8.0]] * 4
    assert mode.flops == 2 * 4 * 8 * 2


def test_what_is_copied_to_the_host_takes_no_memory_of_the_device() -> None:
    storages = Storages(Ledger())
    with HollowMode(storages):
        with storages.wanted():
            source = torch.ones(SIDE)
        backup = torch.empty(SIDE)
        backup.copy_(source)
        assert storages.holds(source) and not storages.holds(backup)
        assert storages.ledger.bytes == source.nbytes
    assert backup.tolist() == [1.0] * SIDE


def test_a_function_of_upstream_sees_tensors_of_the_device_on_cuda() -> None:
    storages = Storages(Ledger())
    with HollowMode(storages), storages.wanted():
        tensor = torch.ones(SIDE)
    asks = devices.naming_cuda(storages, lambda one: devices._device_of(storages, one).type)
    assert (asks(tensor), asks(torch.ones(1))) == ("cuda", "cpu")
    assert devices._device_of(storages, tensor) == devices.GPU


def test_the_largest_of_unknown_numbers_are_spread_evenly(storages: Storages) -> None:
    values, chosen = torch.topk(matrix(), 2, dim=-1)
    assert values.shape == chosen.shape == (SIDE, 2)
    assert torch.bincount(chosen.flatten()).tolist() == [2] * SIDE


def test_the_first_of_all_numbers_can_be_the_largest() -> None:
    mode = HollowMode(Storages(Ledger()))
    mode.crowded = True
    with mode:
        assert torch.topk(matrix(), 2, dim=0).indices.unique().tolist() == [0, 1]
        assert torch.topk(torch.arange(8.0), 3).indices.tolist() == [0, 1, 2]


def test_a_small_mask_made_like_a_tensor_without_content_can_be_written(storages: Storages) -> None:
    logits = matrix()[:, :4]
    assert storages.is_hollow(logits)
    chosen = torch.zeros_like(logits)
    rows = torch.arange(SIDE)
    chosen.index_put_((rows, rows % 4), torch.ones(SIDE))
    assert chosen.bool().sum(0).tolist() == [SIDE // 4] * 4
    assert storages.is_hollow(torch.zeros_like(matrix()))


def test_masks_with_content_choose(storages: Storages) -> None:
    mask = torch.arange(SIDE * SIDE).reshape(SIDE, SIDE) < 7
    large = matrix()
    assert large[mask].shape == torch.masked_select(large, mask).shape == (7,)


def test_memory_that_no_machine_has_can_be_named() -> None:
    tensor = vacant((1 << 20, 1 << 20), (1 << 20, 1), torch.bfloat16)
    assert tensor.shape == (1 << 20, 1 << 20)
    assert tensor[-1, -1].item() == 0


def test_booleans_that_nothing_computed_take_no_memory_of_the_host(storages: Storages) -> None:
    held = []
    before = resident()
    for _ in range(64):
        held.append(matrix() > 0)  # 4 MiB each
    assert resident() - before < 64 << 20
    assert storages.ledger.bytes == 64 * SIDE * SIDE and not held[-1].any()


def resident() -> int:
    """Bytes of physical memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def trained(storages: Storages, *, computes: bool) -> Ledger:
    """Two steps of a network, with Adam's states."""
    with HollowMode(storages, computes=computes), storages.wanted():
        weights = [torch.full((1500, 1500), 0.01, requires_grad=True) for _ in range(2)]
        states = [(torch.zeros_like(w), torch.zeros_like(w)) for w in weights]
        for _ in range(2):
            rows = torch.full((900, 1500), 0.1)
            for weight in weights:
                rows = torch.nn.functional.gelu(rows @ weight)
            torch.nn.functional.softmax(rows, -1).square().sum().backward()
            for weight, (mean, square) in zip(weights, states, strict=True):
                updated(weight, mean, square)
    return storages.ledger


@torch.no_grad()
def updated(weight: Tensor, mean: Tensor, square: Tensor) -> None:
    """One step of Adam, after which the gradient is dropped."""
    assert weight.grad is not None
    mean.mul_(0.9).add_(weight.grad, alpha=0.1)
    square.mul_(0.9).addcmul_(weight.grad, weight.grad, value=0.1)
    weight.sub_(mean / (square.sqrt() + 1e-8))
    weight.grad = None


def test_a_training_without_content_takes_the_bytes_of_one_that_computes() -> None:
    computed = trained(Storages(Ledger()), computes=True)
    hollow = trained(Storages(Ledger()), computes=False)
    assert hollow.events == computed.events
    assert hollow.peak == computed.peak > 6 * 4 * 1500 * 1500
