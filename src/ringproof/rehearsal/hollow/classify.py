"""What the blocks of a ledger hold, at its peak and over time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from ringproof.rehearsal.hollow.ledger import Ledger, LiveBlock, Origin
from ringproof.rehearsal.protocol.memory import KINDS, HeldTensors

OPTIMIZER_CODE = "core/optimizer/"
LARGEST = 12
MOMENTS = 240


def kind_of(block: LiveBlock) -> str:
    """Return one of `KINDS`: what was said, or what follows from when the block lived."""
    if block.kind:
        return block.kind
    origin, dropped = block.origin, block.dropped_in_backward
    if OPTIMIZER_CODE in origin.place and dropped is None:
        return "optimizer"
    if origin.phase == "optimizer":
        return "temporaries" if dropped is not None else "optimizer"
    if dropped is None:
        return "buffers"
    if dropped and not origin.backward and origin.phase == "step":
        return "activations"
    return "communication" if block.received else "temporaries"


class Sorted:
    """A ledger whose run has ended, with its blocks by kind.

    Args:
        relative: Makes paths relative to the folders of upstream code.
    """

    def __init__(self, ledger: Ledger, relative: Callable[[str], str]) -> None:
        self._ledger, self._relative = ledger, relative
        self._kinds = {number: kind_of(block) for number, block in ledger.blocks.items()}

    def at_peak(self) -> Origin:
        """Return where the block is from that made the peak."""
        before = reversed(self._ledger.events[: self._ledger.peak_event])
        numbers = (number for number, change in before if change > 0)
        number = next(numbers, None)
        return Origin() if number is None else self._ledger.blocks[number].origin

    def phase(self, origin: Origin) -> str:
        """Return the phase of a block for people."""
        if origin.phase != "step":
            return origin.phase
        return "backward" if origin.backward else "forward"

    def highest(self) -> dict[str, int]:
        """Return the highest bytes whenever a phase and place, with a space between, made more."""
        found: Counter[tuple[str, str]] = Counter()
        level = 0
        for number, change in self._ledger.events:
            level += change
            if change > 0:
                origin = self._ledger.blocks[number].origin
                key = self.phase(origin), origin.place
                found[key] = max(found[key], level)
        return {f"{phase} {self._relative(at)}": size for (phase, at), size in found.items()}

    def kinds(self, event: int) -> dict[str, int]:
        """Return the bytes of each kind after so many events."""
        found: Counter[str] = Counter()
        for number, size in self._ledger.alive(event).items():
            found[self._kinds[number]] += size
        return _ordered(found)

    def largest(self, event: int) -> tuple[HeldTensors, ...]:
        """Return the tensors that took most after so many events."""
        sizes: Counter[tuple[str, tuple[int, ...], str, str, str]] = Counter()
        counts: Counter[tuple[str, tuple[int, ...], str, str, str]] = Counter()
        for number, size in self._ledger.alive(event).items():
            origin = self._ledger.blocks[number].origin
            module = origin.module.partition(" of layer ")[0]
            key = (self._kinds[number], origin.shape, origin.dtype, origin.place, module)
            sizes[key] += size
            counts[key] += 1
        return tuple(
            HeldTensors(size, counts[key], *key[:3], self._relative(key[3]), key[4])
            for key, size in sizes.most_common(LARGEST)
        )

    def timeline(self, start: int, end: int) -> tuple[Mapping[str, int], ...]:
        """Return the bytes by kind at the highest moment of each of some parts of a span."""
        width = max((end - start) // MOMENTS, 1)
        return tuple(_highest(self._levels(start, end), width))

    def _levels(self, start: int, end: int) -> Iterator[dict[str, int]]:
        levels = self._ledger.levels(start, self._kinds)
        for _, level in zip(range(end - start), levels, strict=False):
            yield _ordered(level)


def _highest(levels: Iterator[dict[str, int]], width: int) -> Iterator[dict[str, int]]:
    part: list[dict[str, int]] = []
    for level in levels:
        part.append(level)
        if len(part) == width:
            yield max(part, key=lambda one: sum(one.values()))
            part = []
    if part:
        yield max(part, key=lambda one: sum(one.values()))


def _ordered(found: Mapping[str, int]) -> dict[str, int]:
    return {kind: found[kind] for kind in KINDS if found.get(kind)}
