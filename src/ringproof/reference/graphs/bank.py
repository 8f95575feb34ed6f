"""A graph for each part of a stage, microbatch slot and CP size: captured once, chosen per step.

A graph contains its CP group, so under Dynamic CP there is one for each size that a rank may be
part of. A microbatch of fixed capacity (``model.static``) gets a *slot*: the static tensors of its
CP size there are overwritten, and each captured part that is called with them replays. A part that
is called with any other microbatch computes eagerly.

A slot is taken from the entry of a microbatch to the replay of its last backward. Whether that has
happened follows from the graphs, not from the number of a microbatch.

Each slot has one pool. Within it CP sizes overlay each other, since a slot holds one microbatch at
a time, and the largest size is captured first. Slots share nothing.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
import torch.distributed as dist

from ringproof.errors import InputError
from ringproof.reference.graphs.backend import Capture, CaptureBackend, Pool
from ringproof.reference.graphs.replay import Graphed, GraphMemory, Outputs, Replays
from ringproof.reference.graphs.scopes import Part
from ringproof.reference.model.batch import Metadata, PackedBatch
from ringproof.reference.model.static import batch_tensors, load, static_batch, with_tensors
from ringproof.reference.packing.sequences import Capacity


@dataclass(frozen=True, kw_only=True)
class BankOptions:
    """Options of a bank.

    Args:
        slots: Microbatches that may wait for their backwards together.
        warm_up: Runs of each part before its capture.
        shape: Shape of a part's rows, ``[r or R, h]``, the same at every CP size.
        overflow: ``error``, or ``eager``: compute without graphs what fits no graph.
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
            raise InputError("graph_slots", f"{self.slots} is less than 1; give 1 or more")


@dataclass(frozen=True, kw_only=True)
class GraphKey:
    """One entry of a graph bank: everything that a replay cannot change.

    Args:
        layer: Name of the captured part, as its parameters begin: ``layers.3.attention``.
        group: These ranks, by their number in the world.
        recompute: Whether the backward runs the forward again.
    """

    layer: str
    slot: int
    cp_size: int
    group: tuple[int, ...]
    capacity: Capacity
    dtype: torch.dtype
    recompute: bool

    def __str__(self) -> str:
        """For messages: ``layers.3.attention, slot 0, CP size 4``."""
        return f"{self.layer}, slot {self.slot}, CP size {self.cp_size}"


class Slot:
    """Room for one microbatch from its entry to its last backward.

    Its tensors are overwritten for each microbatch. So a microbatch that enters gets an object of
    its own around them, with which its parts are called. An object of an earlier microbatch is
    refused, since its content is gone.

    Args:
        batches: Static microbatch of each CP size.
        rows: Static rows of each part; CP sizes share them.
    """

    def __init__(
        self, batches: Mapping[int, PackedBatch], rows: Mapping[str, torch.Tensor]
    ) -> None:
        self.batches, self.rows = batches, rows
        self.graphs: dict[GraphKey, Graphed] = {}
        self._inside: weakref.ref[PackedBatch] | None = None
        self._is_new = False  # entered, and not replayed yet

    @property
    def taken(self) -> bool:
        """Whether its microbatch is yet to be replayed, or waits for a backward.

        A microbatch that nothing refers to any more has left the slot, and so has one whose results
        nothing refers to: an exception between forward and backward does not block a slot.
        """
        waits = self._is_new and self._inside is not None and self._inside() is not None
        return waits or any(graph.in_flight for graph in self.graphs.values())

    def enter(self, size: int) -> PackedBatch:
        """Return a new object around the static tensors of a CP size."""
        entered = replace(self.batches[size])
        self._inside, self._is_new = weakref.ref(entered), True
        return entered

    def replay(self, graph: Graphed, x: torch.Tensor, batch: PackedBatch) -> Outputs:
        """Replay one of its graphs.

        Raises:
            InputError: Another microbatch has entered since this one did.
        """
        if self._inside is None or self._inside() is not batch:
            problem = "it has left its slot: another one was entered since, or it was copied"
            raise InputError("microbatch", f"{problem}; use what GraphBank.enter returned last")
        self._is_new = False
        return graph(x, *batch_tensors(batch).values())


Places = Mapping[Metadata, tuple[Slot, Graphed]]
"""Slot and graph of a part by the metadata of the static microbatch."""

_ABSENT = object()
"""Stands for an attribute that a module does not have."""


class Installed:
    """The forward of a captured part: a replay for the microbatch of a slot, eager for any other.

    It replaces the module's forward when it is made. Hooks of the module itself run around it, as
    around the forward; they are not in the graph.
    """

    def __init__(self, part: Part, places: Places) -> None:
        self._part, self._places = part, places
        self._eager = part.module.forward
        own = part.module.__dict__
        self._before = {name: own.get(name, _ABSENT) for name in ("forward", "recomputes")}
        part.module.forward = self
        if part.recompute:
            part.module.recomputes = True

    def __call__(self, x: torch.Tensor, batch: PackedBatch) -> Any:
        """Return the result of the module."""
        place = None if batch.metadata is None else self._places.get(batch.metadata)
        if place is None:
            return self._part.restored(self._part.run(self._eager, x, batch))
        slot, graph = place
        return self._part.restored(slot.replay(graph, x, batch))

    def remove(self) -> None:
        """Restore the module. If its forward was wrapped since, the wrapper computes eagerly."""
        self._places = {}
        module = self._part.module
        if module.__dict__.get("forward") is not self:
            return
        for name, value in self._before.items():
            module.__dict__.pop(name, None)
            if value is not _ABSENT:
                setattr(module, name, value)


Fingerprint: TypeAlias = "dict[str, tuple[int, int, bool]]"
"""Identity, address and need of a gradient of each parameter."""


class GraphBank:
    """The graphs of a stage; see the module. Made by :func:`capture_bank`.

    Attributes:
        replayed: Microbatches by CP size that got a slot since :meth:`begin`.
        eager: Microbatches without a graph since :meth:`begin`.
    """

    def __init__(self, parts: Sequence[Part], slots: Sequence[Slot], *, overflow: str) -> None:
        self._parts, self._slots, self._overflow = tuple(parts), tuple(slots), overflow
        self._installed: list[Installed] = []
        self._captured = [_fingerprint(part) for part in parts]
        self.replayed: dict[int, int] = {}
        self.eager = 0

    @property
    def replays(self) -> Mapping[GraphKey, Replays]:
        """Number of replays of each graph since the capture."""
        return {key: graph.replays for key, graph in self._graphs()}

    @property
    def memory(self) -> Mapping[GraphKey, GraphMemory]:
        """Memory of each graph."""
        return {key: graph.memory for key, graph in self._graphs()}

    def begin(self) -> None:
        """Begin a step: count from zero.

        Raises:
            InputError: A parameter is not that of the capture any more. A graph would silently
                continue with the memory that it knows.
        """
        self.replayed, self.eager = {}, 0
        for part, captured in zip(self._parts, self._captured, strict=True):
            found = _fingerprint(part)
            names = sorted(captured.keys() | found.keys())
            changed = [name for name in names if found.get(name) != captured.get(name)]
            if changed:
                problem = "it is not what it was at the capture: replaced, moved, frozen or added"
                raise InputError(f"{part.name}.{changed[0]}", f"{problem}; capture it anew")

    def enter(self, batch: PackedBatch) -> PackedBatch:
        """Fill a free slot from a microbatch of fixed capacity, and return its static microbatch.

        Parts that are called with it replay. Its tensors do not change until the last backward; or,
        if nothing is called with it, as long as it exists. A microbatch without metadata is
        returned as it is, and so is one that fits no graph if ``overflow`` is ``eager``.

        Raises:
            InputError: It has another group or capacity than the graphs of its CP size; or, unless
                ``overflow`` is ``eager``, there are no graphs of that size, or no slot is free.
        """
        if not self._parts:
            return batch
        size = batch.group.size
        if batch.metadata is None:
            self.eager += 1
            return batch
        if size not in self._slots[0].batches:
            sizes = ", ".join(map(str, self._slots[0].batches))
            problem = f"graphs were captured for {sizes} and not for {size}"
            return self._refused(batch, "cp_size", problem)
        slot = next((slot for slot in self._slots if not slot.taken), None)
        if slot is None:
            problem = f"{len(self._slots)} microbatches wait for their backwards already"
            return self._refused(batch, "graph_slots", problem)
        load(slot.batches[size], batch)
        self.replayed[size] = self.replayed.get(size, 0) + 1
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

    def _graphs(self) -> list[tuple[GraphKey, Graphed]]:
        return [pair for slot in self._slots for pair in slot.graphs.items()]

    def _refused(self, batch: PackedBatch, name: str, problem: str) -> PackedBatch:
        if self._overflow == "error":
            remedy = "capture it" if name == "cp_size" else "raise it"
            raise InputError(name, f"{problem}; {remedy}, or use --graphs-overflow eager")
        self.eager += 1
        return batch


def capture_bank(
    parts: Sequence[Part], samples: Sequence[PackedBatch], options: BankOptions
) -> GraphBank:
    """Capture all parts for every slot and CP size, largest first.

    A collective over every CP group of the samples, and TP. If it raises, no graph is left, and
    the parts compute as before.

    Args:
        parts: Parts of one stage, in the order of its forward; may be empty.
        samples: A microbatch of fixed capacity for each CP size; it may hold padding only.

    Raises:
        InputError: A part cannot be captured (the message has the line at fault), or has graphs
            already; or two samples have one size.
    """
    for part in parts:  # two banks would replay for each other's microbatches
        if isinstance(part.module.__dict__.get("forward"), Installed):
            problem = f"{part.name} has graphs already"
            raise InputError("parts", f"{problem}; reset their bank first")
    ordered = sorted(samples, key=lambda batch: -batch.group.size)
    sizes = [batch.group.size for batch in ordered]
    if not sizes or len(set(sizes)) < len(sizes):
        problem = f"microbatches of CP sizes {sizes} are not one for each size"
        raise InputError("samples", f"{problem}; give one of each")
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
) -> dict[GraphKey, Graphed]:
    batch = slot.batches[size]
    assert batch.metadata is not None, "a bank is made for static microbatches"
    capacity, ranks = batch.metadata.capacity, dist.get_process_group_ranks(batch.group.flat)
    keys = [
        GraphKey(
            layer=part.name,
            slot=number,
            cp_size=size,
            group=tuple(ranks),
            capacity=capacity,
            dtype=options.dtype,
            recompute=part.recompute,
        )
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
    kind = {"dtype": options.dtype, "device": options.device, "requires_grad": True}
    return {part.name: torch.zeros(options.shape, **kind) for part in parts}


def _function(part: Part, batch: PackedBatch) -> Callable[..., Outputs]:
    """Return the part as a function of rows and the tensors of a microbatch."""
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
