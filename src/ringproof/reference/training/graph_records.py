"""What a run says of its graphs: what was captured, and at the end how often it was replayed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class SizeMemory:
    """Bytes that the graphs of one CP size hold on a rank, of all parts and slots.

    Args:
        entries: How many of them there are.
        inputs: Static tokens and metadata of the size's microbatches. Parts share them, so they
            are counted once for each slot.
        gradients: Static gradients of what the parts return.
        private: Results, intermediates, and gradients of inputs and parameters. On the tape this
            is their sum, without any reuse, which is more than a GPU takes. On CUDA it is what
            the pool grew by: little, where a larger size of the same slot was captured before.
    """

    entries: int
    inputs: int
    gradients: int
    private: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.inputs + self.gradients + self.private

    def as_json(self) -> dict[str, Any]:
        """As plain data, with what one entry holds on average."""
        per_entry = self.total / self.entries if self.entries else 0.0
        return {**asdict(self), "total": self.total, "per_entry": per_entry}


@dataclass(frozen=True, kw_only=True)
class GraphsRecord:
    """What was captured before the first step. The same on every rank.

    An entry of a bank is one part of the model, in one slot, for one CP size: a pair of graphs,
    forward and backward.

    Args:
        backend: What captured.
        scope: What a graph holds.
        slots: For each stage of a rank.
        entries: On all ranks together.
        entries_of_rank: Of the rank that has most.
        capture_seconds: Of the slowest rank, warm-up included.
        rank: Which one holds most bytes; what follows is of it.
        rows: Bytes of the static rows that parts are called with; CP sizes share them.
        memory: The rest, by CP size.
        stage_bytes: Of the rank that holds most among those of each pipeline rank.
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
        """The record as plain data; sizes are strings, as JSON's keys are."""
        memory = {str(size): held.as_json() for size, held in sorted(self.memory.items())}
        own = {**asdict(self), "memory": memory, "stage_bytes": list(self.stage_bytes)}
        return {"kind": "graphs", **own, "cp_sizes": sorted(self.memory), "total": self.total}

    def progress_line(self) -> str:
        """What was captured, for whoever watches."""
        sizes = " ".join(str(size) for size in sorted(self.memory))
        parts = ", ".join(
            f"CP {size} {_mebibytes(held.total)}" for size, held in sorted(self.memory.items())
        )
        stages = ""
        if len(self.stage_bytes) > 1:
            stages = f"  by stage {' '.join(map(_mebibytes, self.stage_bytes))}"
        slots = "slot" if self.slots == 1 else "slots"
        how = " without reuse" if self.backend == "tape" else ""
        return (
            f"graphs: {self.backend}, {self.scope}  CP {sizes}  {self.slots} {slots}  "
            f"{self.entries_of_rank} entries a rank, {self.entries} in all  "
            f"captured in {self.capture_seconds:.1f} s  "
            f"{_mebibytes(self.total)} MiB on rank {self.rank}{how} "
            f"(rows {_mebibytes(self.rows)}, {parts}){stages}"
        )


@dataclass(frozen=True, kw_only=True)
class GraphTotals:
    """How often graphs were replayed in all steps of a run.

    Args:
        replays: By CP size of the banks, how often a rank took a microbatch through a stage by
            graphs. A size that never came up has 0. Evaluations are not counted.
        eager: How often it did so without, because no graph could take the microbatch.
    """

    replays: Mapping[int, int]
    eager: int

    @classmethod
    def of_steps(
        cls, sizes: Iterable[int], steps: Iterable[tuple[Mapping[int, int], int]]
    ) -> GraphTotals:
        """Summed.

        Args:
            sizes: CP sizes that were captured.
            steps: Replays and eager microbatches of each step.
        """
        replays, eager = dict.fromkeys(sizes, 0), 0
        for replayed, without in steps:
            eager += without
            for size, count in replayed.items():
                replays[size] = replays.get(size, 0) + count
        return cls(replays=replays, eager=eager)

    @property
    def unused(self) -> tuple[int, ...]:
        """CP sizes that were captured for nothing."""
        return tuple(size for size, count in sorted(self.replays.items()) if not count)

    def as_json(self) -> dict[str, Any]:
        """The record as plain data."""
        replays = {str(size): count for size, count in sorted(self.replays.items())}
        unused = list(self.unused)
        return {"kind": "graph_totals", "replays": replays, "eager": self.eager, "unused": unused}

    def progress_line(self) -> str:
        """The totals for whoever watches; names every CP size that was never replayed."""
        counts = " ".join(f"{size}:{count}" for size, count in sorted(self.replays.items()))
        unused = "".join(f"  CP size {size} was never replayed" for size in self.unused)
        return f"graphs replayed: CP {counts}  eager {self.eager}{unused}"


def _mebibytes(count: int) -> str:
    return f"{count / 2**20:.1f}"
