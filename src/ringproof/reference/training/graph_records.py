"""Records of the CUDA graphs of a run: the captures, and the number of replays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class SizeMemory:
    """Memory in bytes of the graphs of one CP size on a rank, over all parts and slots.

    Args:
        entries: Number of entries.
        inputs: Static tokens and metadata of the microbatches. Parts share them, so they are
            counted once per slot.
        gradients: Static gradients of the outputs of the parts.
        private: Results, intermediates, and gradients of inputs and parameters: the growth of the
            pool. On CUDA it is small if a larger size of the same slot was captured before. On the
            tape sizes share only what one pass needs.
    """

    entries: int
    inputs: int
    gradients: int
    private: int

    @property
    def total(self) -> int:
        """Sum of all bytes."""
        return self.inputs + self.gradients + self.private

    def as_json(self) -> dict[str, Any]:
        """Return plain data, with the average of an entry."""
        per_entry = self.total / self.entries if self.entries else 0.0
        return {**asdict(self), "total": self.total, "per_entry": per_entry}


@dataclass(frozen=True, kw_only=True)
class GraphsRecord:
    """Record of the captures before the first step. It is the same on every rank.

    An entry of a bank is a pair of graphs, forward and backward, of one part of the model in one
    slot for one CP size.

    Args:
        backend: Name of the capture backend.
        scope: Part of the model that one graph captures.
        slots: Slots per stage of a rank.
        entries: Entries on all ranks together.
        entries_of_rank: Entries on the rank that has most.
        capture_seconds: Capture time of the slowest rank, warm-up included.
        rank: Rank that holds most bytes. ``rows`` and ``memory`` are those of this rank.
        rows: Bytes of the static rows with which parts are called. All CP sizes share them.
        memory: All other memory, by CP size.
        stage_bytes: For each pipeline rank, the bytes of its rank that holds most.
    """

    backend: str
    scope: str
    slots: int
    entries: int
    entries_of_rank: int
    capture_seconds: float
    rank: int
    rows: int
    memory: Mapping[int, SizeMemory]
    stage_bytes: tuple[int, ...]

    @property
    def total(self) -> int:
        """Bytes of the rank that holds most."""
        return self.rows + sum(held.total for held in self.memory.values())

    def as_json(self) -> dict[str, Any]:
        """Return the record as plain data. Sizes are strings because they are keys in JSON."""
        memory = {str(size): held.as_json() for size, held in sorted(self.memory.items())}
        own = {**asdict(self), "memory": memory, "stage_bytes": list(self.stage_bytes)}
        return {"kind": "graphs", **own, "cp_sizes": sorted(self.memory), "total": self.total}

    def progress_line(self) -> str:
        """Return a line of progress about the captures."""
        sizes = " ".join(str(size) for size in sorted(self.memory))
        parts = ", ".join(
            f"CP {size} {_mebibytes(held.total)}" for size, held in sorted(self.memory.items())
        )
        stages = ""
        if len(self.stage_bytes) > 1:
            stages = f"  by stage {' '.join(map(_mebibytes, self.stage_bytes))}"
        slots = "slot" if self.slots == 1 else "slots"
        return (
            f"graphs: {self.backend}, {self.scope}  CP {sizes}  {self.slots} {slots}  "
            f"{self.entries_of_rank} entries a rank, {self.entries} in all  "
            f"captured in {self.capture_seconds:.1f} s  "
            f"{_mebibytes(self.total)} MiB on rank {self.rank} "
            f"(rows {_mebibytes(self.rows)}, {parts}){stages}"
        )


@dataclass(frozen=True, kw_only=True)
class GraphTotals:
    """Number of replays in all steps of a run.

    Args:
        replays: By CP size, the number of passes of a microbatch through a stage with graphs, over
            all ranks. A size that never occurred has 0. Evaluations are not counted.
        eager: Number of passes without graphs, because no graph fits the microbatch.
    """

    replays: Mapping[int, int]
    eager: int

    @classmethod
    def of_steps(
        cls, sizes: Iterable[int], steps: Iterable[tuple[Mapping[int, int], int]]
    ) -> GraphTotals:
        """Sum the counts of all steps.

        Args:
            sizes: Captured CP sizes.
            steps: Replays and eager passes of each step.
        """
        replays, eager = dict.fromkeys(sizes, 0), 0
        for replayed, without in steps:
            eager += without
            for size, count in replayed.items():
                replays[size] = replays.get(size, 0) + count
        return cls(replays=replays, eager=eager)

    @property
    def unused(self) -> tuple[int, ...]:
        """Captured CP sizes that were never replayed."""
        return tuple(size for size, count in sorted(self.replays.items()) if not count)

    def as_json(self) -> dict[str, Any]:
        """The record as plain data."""
        replays = {str(size): count for size, count in sorted(self.replays.items())}
        unused = list(self.unused)
        return {"kind": "graph_totals", "replays": replays, "eager": self.eager, "unused": unused}

    def progress_line(self) -> str:
        """Return a line of progress, which names every CP size that was never replayed."""
        counts = " ".join(f"{size}:{count}" for size, count in sorted(self.replays.items()))
        unused = "".join(f"  CP size {size} was never replayed" for size in self.unused)
        return f"graphs replayed: CP {counts}  eager {self.eager}{unused}"


def _mebibytes(count: int) -> str:
    return f"{count / 2**20:.1f}"
