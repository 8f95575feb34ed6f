"""A graph for each part of a stage, microbatch slot and CP size: captured once, chosen per step.

A graph has its CP group baked in, so under Dynamic CP there is one for each size that a rank may be
part of. A microbatch of capacity (``model.static``) takes a *slot*: the static tensors of its CP
size there are overwritten, and each captured part that is called with these replays. Whoever calls
a part with any other microbatch gets the eager computation, unchanged.

A slot is taken from the moment a microbatch enters it to the replay of its last backward. No slot
is given away before: not by numbering microbatches, but by asking the graphs themselves.

Memory: one pool for each slot. Within it CP sizes overlay each other, since a slot holds one
microbatch at a time, and the largest size is captured first. Slots share nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from ringproof.errors import InputError
from ringproof.reference.graphs.backend import (
    Capture,
    CaptureBackend,
    GraphedCallable,
    GraphMemory,
    Outputs,
    Pool,
    Replays,
)
from ringproof.reference.graphs.installed import Installed, Places, check_free
from ringproof.reference.graphs.key import GraphKey, key_of
from ringproof.reference.graphs.scopes import Part
from ringproof.reference.graphs.slots import Slot
from ringproof.reference.model.batch import PackedBatch
from ringproof.reference.model.static import batch_tensors, load, static_batch, with_tensors


@dataclass(frozen=True, kw_only=True)
class BankOptions:
    """How a bank is made.

    Args:
        backend: What captures and replays.
        slots: Microbatches that may wait for their backwards together.
        warm_up: Runs of each part before its capture.
        shape: Of a part's rows: ``[r or R, h]``, the same at every CP size.
        dtype: Of the rows.
        device: Where they live.
        overflow: ``error``, or ``eager``: compute without graphs what no graph can take.
    """

    backend: CaptureBackend
    slots: int
    warm_up: int
    shape: tuple[int, int]
    dtype: torch.dtype
    device: torch.device
    overflow: str = "error"

    def __post_init__(self) -> None:
        if self.slots < 1:
            raise InputError("graph_slots", self.slots, "is less than 1", "give 1 or more")


Fingerprint: TypeAlias = "dict[str, tuple[int, int, bool]]"
"""Of each parameter: which object it is, where it lies, and whether it gets a gradient."""


class GraphBank:
    """See the file. Made by :func:`capture_bank`, which calls ``install``.

    Args:
        parts: What was captured.
        slots: With all graphs.
        overflow: See :class:`BankOptions`.
    """

    def __init__(self, parts: Sequence[Part], slots: Sequence[Slot], *, overflow: str) -> None:
        self._parts, self._slots, self._overflow = tuple(parts), tuple(slots), overflow
        self._installed: list[Installed] = []
        self._captured = [_fingerprint(part) for part in parts]
        self._taken: dict[int, int] = {}
        self._eager = 0

    @property
    def replayed(self) -> Mapping[int, int]:
        """Microbatches by CP size that were given a slot since :meth:`begin`."""
        return dict(self._taken)

    @property
    def eager(self) -> int:
        """Microbatches that no graph could take, since :meth:`begin`."""
        return self._eager

    @property
    def replays(self) -> Mapping[GraphKey, Replays]:
        """How often each graph was replayed, in all."""
        return {key: graph.replays for key, graph in self._graphs()}

    @property
    def memory(self) -> Mapping[GraphKey, GraphMemory]:
        """What each graph holds."""
        return {key: graph.memory for key, graph in self._graphs()}

    def begin(self) -> None:
        """Begin a step: count from zero.

        Raises:
            InputError: A parameter is not the one of the capture any more. A graph would go on with
                the memory that it knows, and nothing would tell.
        """
        self._taken, self._eager = {}, 0
        for part, captured in zip(self._parts, self._captured, strict=True):
            found = _fingerprint(part)
            names = sorted(captured.keys() | found.keys())
            changed = [name for name in names if found.get(name) != captured.get(name)]
            if changed:
                problem = "is not what it was at the capture: replaced, moved, frozen or added"
                raise InputError(f"{part.name}.{changed[0]}", None, problem, "capture it anew")

    def enter(self, batch: PackedBatch) -> PackedBatch:
        """The static microbatch of a free slot, filled from this one.

        What is called with it replays. Its tensors stay as they are until the last backward; or,
        if nothing is called with it, as long as it is held.

        Args:
            batch: One of fixed capacity; one without metadata is left as it is, and counted.

        Returns:
            A new object around the static tensors, or the same microbatch where no graph can take
            it and that is no error.

        Raises:
            InputError: It has another group, capacity or the like than the graphs of its CP size;
                or, unless that is to be eager, there are none of that size, or no slot is free.
        """
        if not self._parts:
            return batch
        size = batch.group.size
        if batch.metadata is None:
            self._eager += 1
            return batch
        if size not in self._slots[0].batches:
            sizes = ", ".join(map(str, self._slots[0].batches))
            return self._refused(batch, "cp_size", size, f"graphs were captured for {sizes}")
        slot = next((slot for slot in self._slots if not slot.taken), None)
        if slot is None:
            problem = "as many microbatches wait for their backwards already"
            return self._refused(batch, "graph_slots", len(self._slots), problem)
        load(slot.batches[size], batch)
        self._taken[size] = self._taken.get(size, 0) + 1
        return slot.enter(size)

    def install(self) -> None:
        """Let the parts replay when they are called with the microbatch of a slot."""
        for part in self._parts:
            places: Places = {
                metadata: (slot, graph)
                for slot in self._slots
                for key, graph in slot.graphs.items()
                if key.layer == part.name
                and (metadata := slot.batches[key.cp_size].metadata) is not None
            }
            self._installed.append(Installed(part, places))

    def reset(self) -> None:
        """Free all graphs; the parts compute as they did before the capture."""
        for installed in self._installed:
            installed.remove()
        for _, graph in self._graphs():
            graph.reset()
        self._installed, self._captured = [], []
        self._parts, self._slots = (), ()

    def _graphs(self) -> list[tuple[GraphKey, GraphedCallable]]:
        return [pair for slot in self._slots for pair in slot.graphs.items()]

    def _refused(self, batch: PackedBatch, name: str, value: int, problem: str) -> PackedBatch:
        if self._overflow == "error":
            remedy = "raise it, or use --graphs-overflow eager"
            if name == "cp_size":
                remedy = "capture it, or use --graphs-overflow eager"
            raise InputError(name, value, problem, remedy)
        self._eager += 1
        return batch


def capture_bank(
    parts: Sequence[Part], samples: Sequence[PackedBatch], options: BankOptions
) -> GraphBank:
    """Capture all parts for every slot and CP size, largest first.

    A collective over every CP group of the samples, and TP. If it raises, no graph is left, and
    the parts compute as before.

    Args:
        parts: Of one stage, in the order of its forward; may be none.
        samples: A microbatch of fixed capacity for each CP size; it need not hold a sequence.
        options: See :class:`BankOptions`.

    Raises:
        InputError: A part cannot be captured, with the line at fault, or has graphs already; two
            samples of one size.
    """
    for part in parts:
        check_free(part)
    ordered = sorted(samples, key=lambda batch: -batch.group.size)
    sizes = [batch.group.size for batch in ordered]
    if not sizes or len(set(sizes)) < len(sizes):
        raise InputError("samples", sizes, "each CP size has one", "give a microbatch of each")
    slots = [
        Slot({batch.group.size: static_batch(batch) for batch in ordered}, _rows(parts, options))
        for _ in range(options.slots if parts else 0)
    ]
    bank = GraphBank(parts, slots, overflow=options.overflow)
    try:
        for number, slot in enumerate(slots):
            pool = options.backend.new_pool()
            for size in sizes:
                slot.graphs.update(_capture(parts, slot, number, size, options, pool=pool))
        bank.install()
    except BaseException:
        bank.reset()
        raise
    return bank


def _capture(
    parts: Sequence[Part],
    slot: Slot,
    number: int,
    size: int,
    options: BankOptions,
    *,
    pool: Pool,
) -> dict[GraphKey, GraphedCallable]:
    batch = slot.batches[size]
    keys = [
        key_of(part.name, number, batch, dtype=options.dtype, recompute=part.recompute)
        for part in parts
    ]
    captures = [
        Capture(
            name=str(key),
            function=_function(part, batch),
            inputs=(slot.rows[part.name], *batch_tensors(batch).values()),
            parameters=dict(part.module.named_parameters()),
        )
        for key, part in zip(keys, parts, strict=True)
    ]
    graphs = options.backend.capture(captures, pool=pool, warm_up=options.warm_up)
    return dict(zip(keys, graphs, strict=True))


def _rows(parts: Sequence[Part], options: BankOptions) -> dict[str, torch.Tensor]:
    return {
        part.name: torch.zeros(
            options.shape, dtype=options.dtype, device=options.device, requires_grad=True
        )
        for part in parts
    }


def _function(part: Part, batch: PackedBatch) -> Callable[..., Outputs]:
    """The part on rows and a microbatch's tensors, each an input of the graph."""
    names = tuple(batch_tensors(batch))

    def function(x: torch.Tensor, *tensors: torch.Tensor) -> Outputs:
        own = with_tensors(batch, dict(zip(names, tensors, strict=True)))
        # Not the module itself: its own hooks run around each replay, and would run twice.
        return part.run(part.module.forward, x, own)

    return function


def _fingerprint(part: Part) -> Fingerprint:
    return {
        name: (id(parameter), parameter.data_ptr(), parameter.requires_grad)
        for name, parameter in part.module.named_parameters()
    }
