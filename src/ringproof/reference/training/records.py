"""Records of a run, its steps, evaluations and CUDA graphs, as JSON or as a line of text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any, ClassVar

VERSION = 1


class Record:
    """What a run reports: a line of its log, and perhaps a line of progress. A dataclass."""

    kind: ClassVar[str]

    def as_json(self) -> dict[str, Any]:
        """Return the record as plain data. CP sizes are strings because they are keys in JSON."""
        record: Any = self
        return {"kind": self.kind, **asdict(record)}

    def progress_line(self, steps: int) -> str:
        """Return a line of progress, or nothing; ``steps`` are those of the whole run."""
        return ""

    def megatron_line(self, steps: int, now: datetime) -> str:
        """Return the line that Megatron-LM prints at a time, or nothing."""
        return ""


@dataclass(frozen=True, kw_only=True)
class RunRecord(Record):
    """First line of a log: options of the run, number of ranks, versions, backend and device."""

    kind = "run"
    version: int = field(default=VERSION, init=False)
    arguments: Mapping[str, Any]
    world_size: int
    environment: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class StepRecord(Record):
    """Record of one optimizer step. It is the same on every rank except for the times.

    Args:
        step: Counted from 1.
        loss: Objective for the global batch, the sum of ``losses``.
        grad_norm: Gradient norm before clipping.
        samples: Sequences so far, including this step.
        tokens: Real tokens in the step.
        rows: Rows that the ranks of the domain computed, padding included.
        step_seconds: Wall time of the step, including planning and routing.
        microbatches: Groups of each microbatch, with CP size and tokens of each sequence.
        cp_histogram: Sequences by the size of their CP group.
        graph_replays, graph_eager: See `GraphTotals`.
    """

    kind = "step"
    step: int
    loss: float
    losses: Mapping[str, float]
    grad_norm: float
    learning_rate: float
    samples: int
    tokens: int
    rows: int
    step_seconds: float
    planning_seconds: float
    microbatches: tuple[tuple[tuple[int, tuple[int, ...]], ...], ...]
    cp_histogram: Mapping[int, int] = field(default_factory=dict)
    graph_replays: Mapping[int, int] = field(default_factory=dict)
    graph_eager: int = 0

    @property
    def tokens_per_second(self) -> float:
        """Real tokens of the global batch per second."""
        return self.tokens / self.step_seconds

    @property
    def padding_fraction(self) -> float:
        """Fraction of the computed rows that hold no token."""
        return 1 - self.tokens / self.rows

    def as_json(self) -> dict[str, Any]:
        """See `Record`."""
        return {
            **super().as_json(),
            "microbatches": [
                [{"cp_size": size, "lengths": list(lengths)} for size, lengths in groups]
                for groups in self.microbatches
            ],
            "cp_histogram": _as_keys(self.cp_histogram),
            "graph_replays": _as_keys(self.graph_replays),
            "tokens_per_second": self.tokens_per_second,
            "padding_fraction": self.padding_fraction,
        }

    def progress_line(self, steps: int) -> str:
        """See `Record`."""
        sizes, graphs = _counts(self.cp_histogram), ""
        if self.graph_replays:
            graphs = f"  graphs {_counts(self.graph_replays)} eager {self.graph_eager}"
        return (
            f"step {self.step:>{len(str(steps))}}/{steps}  loss {self.loss:.6f}  "
            f"grad norm {self.grad_norm:.4f}  {self.tokens_per_second:,.0f} tokens/s  "
            f"padding {self.padding_fraction:.0%}  microbatches {len(self.microbatches)}  "
            f"CP {sizes}{graphs}"
        )

    def megatron_line(self, steps: int, now: datetime) -> str:
        """Return the line that Megatron-LM's ``training_log`` prints."""
        fields = [
            f"iteration {self.step:8d}/{steps:8d}",
            f"consumed samples: {self.samples:12d}",
            f"elapsed time per iteration (ms): {1000 * self.step_seconds:.1f}",
            f"learning rate: {self.learning_rate:.6E}",
            f"global batch size: {sum(self.cp_histogram.values()):5d}",
            *(f"{_MEGATRON_NAMES.get(n, n)}: {value:.6E}" for n, value in self.losses.items()),
            "loss scale: 1.0",
            f"grad norm: {self.grad_norm:.3f}",
            "number of skipped iterations:   0",
            "number of nan iterations:   0",
        ]
        return f" [{now:%Y-%m-%d %H:%M:%S.%f}] " + "".join(f"{field} | " for field in fields)


@dataclass(frozen=True, kw_only=True)
class EvaluationRecord(Record):
    """Record of the objective on held-out documents after a step."""

    kind = "evaluation"
    step: int
    loss: float
    losses: Mapping[str, float]

    def progress_line(self, steps: int) -> str:
        """See `Record`."""
        return f"evaluation after step {self.step}  loss {self.loss:.6f}"

    def megatron_line(self, steps: int, now: datetime) -> str:
        """See `Record`."""
        parts = "".join(
            f"{_MEGATRON_NAMES.get(n, n)} value: {value:.6E} | " for n, value in self.losses.items()
        )
        return f" validation loss at iteration {self.step} | {parts}"


@dataclass(frozen=True, kw_only=True)
class SizeMemory:
    """Memory in bytes of the graphs of one CP size on a rank, over all parts and slots.

    Args:
        inputs: Static tokens and metadata of the microbatches. Parts share them, so they are
            counted once per slot.
        gradients: Static gradients of the outputs of the parts.
        private: Results, intermediates, and gradients of inputs and parameters: the growth of the
            pool. On CUDA it is small if a larger size of the same slot was captured before. On the
            tape nothing is shared.
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
class GraphsRecord(Record):
    """Record of the captures before the first step. It is the same on every rank.

    An entry of a bank is a pair of graphs, forward and backward, of one part of the model in one
    slot for one CP size.

    Args:
        entries: Entries on all ranks together.
        entries_of_rank: Entries on the rank that has most.
        capture_seconds: Capture time of the slowest rank, warm-up included.
        rank: Rank that holds most bytes. ``rows`` and ``memory`` are those of this rank.
        rows: Bytes of the static rows with which parts are called. All CP sizes share them.
        memory: All other memory, by CP size.
        stage_bytes: For each pipeline rank, the bytes of its rank that holds most.
    """

    kind = "graphs"
    backend: str
    scope: str
    slots: int
    entries: int
    entries_of_rank: int
    capture_seconds: float
    rank: int
    rows: int
    memory: Mapping[int, SizeMemory]
    stage_bytes: tuple[int, ...] = ()

    @property
    def total(self) -> int:
        """Bytes of the rank that holds most."""
        return self.rows + sum(held.total for held in self.memory.values())

    def as_json(self) -> dict[str, Any]:
        """See `Record`."""
        memory = {str(size): held.as_json() for size, held in sorted(self.memory.items())}
        sizes, own = {"cp_sizes": sorted(self.memory), "total": self.total}, super().as_json()
        return {**own, "memory": memory, "stage_bytes": list(self.stage_bytes), **sizes}

    def progress_line(self, steps: int) -> str:
        """See `Record`."""
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
class GraphTotals(Record):
    """Number of replays in all steps of a run.

    Args:
        replays: By CP size, the number of passes of a microbatch through a stage with graphs, over
            all ranks. A size that never occurred has 0. Evaluations are not counted.
        eager: Number of passes without graphs, because no graph fits the microbatch.
    """

    kind = "graph_totals"
    replays: Mapping[int, int]
    eager: int

    @classmethod
    def of_steps(cls, sizes: Iterable[int], steps: Sequence[StepRecord]) -> GraphTotals:
        """Sum the replays and eager passes of all steps, by captured CP size."""
        replays = {size: sum(one.graph_replays.get(size, 0) for one in steps) for size in sizes}
        return cls(replays=replays, eager=sum(one.graph_eager for one in steps))

    @property
    def unused(self) -> tuple[int, ...]:
        """Captured CP sizes that were never replayed."""
        return tuple(size for size, count in sorted(self.replays.items()) if not count)

    def as_json(self) -> dict[str, Any]:
        """See `Record`."""
        replays, unused = _as_keys(self.replays), list(self.unused)
        return {**super().as_json(), "replays": replays, "unused": unused}

    def progress_line(self, steps: int) -> str:
        """Return a line of progress, which names every CP size that was never replayed."""
        unused = "".join(f"  CP size {size} was never replayed" for size in self.unused)
        return f"graphs replayed: CP {_counts(self.replays)}  eager {self.eager}{unused}"


def _counts(by_size: Mapping[int, int]) -> str:
    return " ".join(f"{size}:{count}" for size, count in sorted(by_size.items()))


def _as_keys(by_size: Mapping[int, int]) -> dict[str, int]:
    return {str(size): count for size, count in sorted(by_size.items())}


def _mebibytes(count: int) -> str:
    return f"{count / 2**20:.1f}"


_MEGATRON_NAMES = MappingProxyType(
    {"lm": "lm loss", "mtp": "mtp_1 loss", "moe_auxiliary": "load_balancing_loss"}
)


def json_line(record: Record) -> str:
    """Return one line of a JSONL log. Floats are written so that reading gives the same bits."""
    return json.dumps(record.as_json(), allow_nan=True)
