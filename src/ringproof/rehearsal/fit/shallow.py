"""The memory of a deep launch from two shallow ones, since it is linear in the layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ringproof.launch.flags import Flags
from ringproof.launch.full.size import FullProgram
from ringproof.launch.reading import Launch
from ringproof.launch.small.layout import layout
from ringproof.rehearsal.fit.ranks import CHUNKS, uneven
from ringproof.rehearsal.fit.result import Fit, RankMemory
from ringproof.rehearsal.protocol.memory import KINDS, MemoryReport
from ringproof.rehearsal.protocol.traffic import GroupTraffic

LAYERS = "--num-layers"
UNLIKE = (
    "--num-layers-per-virtual-pipeline-stage", "--recompute-num-layers",
    "--cpu-offloading-num-layers", "--window-attn-skip-freq", "--no-rope-freq",
    "--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split",
)  # fmt: skip
"""Options with which the memory is not linear in the layers, or that count them."""


def depths(arguments: tuple[str, ...], ranks: int) -> tuple[int, int] | None:
    """Return two smaller numbers of layers from which the memory follows; ``None`` without.

    They give each chunk of each pipeline stage two and four layers.
    """
    flags = Flags(arguments)
    if uneven(flags) or any(map(flags.has, UNLIKE)):
        return None
    unit = layout(flags, ranks).pipeline * flags.integer(CHUNKS, 1)
    layers = flags.integer(LAYERS, 0)
    return (2 * unit, 4 * unit) if layers % unit == 0 and layers > 6 * unit else None


def with_layers(launch: Launch, count: int) -> Launch:
    """Return a launch with so many layers."""
    return replace(launch, arguments=Flags(launch.arguments).with_(LAYERS, str(count)).words)


def extended(launch: Launch, program: FullProgram, low: Fit, high: Fit) -> Fit:
    """Return the measurement of a launch that follows from two with fewer layers."""
    counts = [
        Flags(one.arguments).integer(LAYERS, 0) for one in (low.program, high.program, program)
    ]
    line = _Line(*counts)
    ranks = tuple(line.rank(a, b) for a, b in zip(low.ranks, high.ranks, strict=True))
    return replace(
        high, launch=launch, program=program, ranks=ranks, seconds=low.seconds + high.seconds,
        extended_from=tuple(counts[:2]),
    )  # fmt: skip


class _Line:
    """The line through two depths, at a third."""

    def __init__(self, low: int, high: int, wanted: int) -> None:
        self._times, self._span = wanted - low, high - low

    def at(self, low: int, high: int) -> int:
        """Return the value at the third depth."""
        return low + (high - low) * self._times // self._span

    def rank(self, low: RankMemory, high: RankMemory) -> RankMemory:
        """Return the memory of a rank."""
        memory = self._memory(low.memory, high.memory)
        return replace(high, memory=memory, seconds=low.seconds + high.seconds)

    def _memory(self, low: MemoryReport, high: MemoryReport) -> MemoryReport:
        before = {_key(one): one for one in low.sent}
        # Each place that makes more is a line of its own; with more layers, another one is highest.
        highest = {
            name: self.at(low.highest[name], size)
            for name, size in high.highest.items()
            if name in low.highest
        }
        name = max(highest, key=lambda at: highest[at])
        phase, _, place = name.partition(" ")
        kinds = self._kinds(low.at_peak, high.at_peak)
        return replace(
            high,
            peak=highest[name],
            steady=self.at(low.steady, high.steady),
            at_peak=kinds if sum(kinds.values()) == highest[name] else {},
            place=place,
            module="",
            phase=phase,
            highest=highest,
            at_rest=self._kinds(low.at_rest, high.at_rest),
            flops=self.at(low.flops, high.flops),
            sent=tuple(self._traffic(before.get(_key(one)), one) for one in high.sent),
            largest=(),
            steps=(),
            logged=(),
            timeline=(),
        )

    def _kinds(self, low: Mapping[str, int], high: Mapping[str, int]) -> dict[str, int]:
        sizes = {kind: self.at(low.get(kind, 0), high.get(kind, 0)) for kind in KINDS}
        return {kind: size for kind, size in sizes.items() if size}

    def _traffic(self, low: GroupTraffic | None, high: GroupTraffic) -> GroupTraffic:
        calls, size = (0, 0) if low is None else (low.calls, low.bytes)
        return replace(high, calls=self.at(calls, high.calls), bytes=self.at(size, high.bytes))


def _key(sent: GroupTraffic) -> tuple[str, tuple[int, ...], str]:
    return sent.group, sent.ranks, sent.operation
