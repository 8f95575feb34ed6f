"""What a run says of itself: one record per step, as JSON or as a line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any

from ringproof.reference.training.graph_records import GraphsRecord, GraphTotals

VERSION = 1


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """The first line of a log: what ran, and where.

    Args:
        arguments: The options of the run.
        world_size: Ranks.
        environment: Versions, backend and device.
    """

    arguments: Mapping[str, Any]
    world_size: int
    environment: Mapping[str, str]

    def as_json(self) -> dict[str, Any]:
        """The record as plain data."""
        return {"kind": "run", "version": VERSION, **asdict(self)}


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """One optimiser step; the same numbers on every rank, but for its own clock.

    Args:
        step: Counted from 1.
        loss: The objective: all parts of ``losses``.
        losses: Parts of the objective by name, each over the global batch.
        grad_norm: Before clipping.
        learning_rate: Of this step.
        samples: Sequences so far, this step's included.
        tokens: Real tokens of the step.
        rows: Rows that the ranks of the domain computed, padding included.
        step_seconds: Wall time of the step, planning and routing included.
        planning_seconds: Of it, the planner's.
        microbatches: Which groups each had: CP size, and tokens of each of its sequences. What
            `ringproof plan calibrate` fits costs from.
        cp_histogram: Sequences by the size of their CP group.
        graph_replays: By CP size, how often a rank took a microbatch through a stage by graphs.
        graph_eager: How often it did so without, because no graph could take the microbatch.
    """

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
        """Of the rows computed, how many held no token of the data."""
        return 1 - self.tokens / self.rows

    def as_json(self) -> dict[str, Any]:
        """The record as plain data; sizes are strings, as JSON's keys are."""
        return {
            "kind": "step",
            **asdict(self),
            "microbatches": [
                [{"cp_size": size, "lengths": list(lengths)} for size, lengths in groups]
                for groups in self.microbatches
            ],
            "cp_histogram": {str(size): n for size, n in sorted(self.cp_histogram.items())},
            "graph_replays": {str(size): n for size, n in sorted(self.graph_replays.items())},
            "tokens_per_second": self.tokens_per_second,
            "padding_fraction": self.padding_fraction,
        }

    def progress_line(self, steps: int) -> str:
        """The step for whoever watches.

        Args:
            steps: Of the whole run.
        """
        sizes = " ".join(f"{size}:{count}" for size, count in sorted(self.cp_histogram.items()))
        return (
            f"step {self.step:>{len(str(steps))}}/{steps}  loss {self.loss:.6f}  "
            f"grad norm {self.grad_norm:.4f}  {self.tokens_per_second:,.0f} tokens/s  "
            f"padding {self.padding_fraction:.0%}  microbatches {len(self.microbatches)}  "
            f"CP {sizes}{self._graphs}"
        )

    @property
    def _graphs(self) -> str:
        if not self.graph_replays:
            return ""
        counts = " ".join(f"{size}:{count}" for size, count in sorted(self.graph_replays.items()))
        return f"  graphs {counts} eager {self.graph_eager}"

    def megatron_line(self, steps: int, now: datetime) -> str:
        """The step as Megatron-LM's trainer prints it, field by field (``training_log``).

        Args:
            steps: Of the whole run.
            now: Time of the line.
        """
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
class EvaluationRecord:
    """The objective on held-out documents after a step."""

    step: int
    loss: float
    losses: Mapping[str, float]

    def as_json(self) -> dict[str, Any]:
        """The record as plain data."""
        return {"kind": "evaluation", **asdict(self)}

    def progress_line(self) -> str:
        """The evaluation for whoever watches."""
        return f"evaluation after step {self.step}  loss {self.loss:.6f}"

    def megatron_line(self) -> str:
        """The evaluation as Megatron-LM's trainer prints it."""
        parts = "".join(
            f"{_MEGATRON_NAMES.get(n, n)} value: {value:.6E} | " for n, value in self.losses.items()
        )
        return f" validation loss at iteration {self.step} | {parts}"


Record = RunRecord | StepRecord | EvaluationRecord | GraphsRecord | GraphTotals
_MEGATRON_NAMES = MappingProxyType(
    {"lm": "lm loss", "mtp": "mtp_1 loss", "moe_auxiliary": "load_balancing_loss"}
)


def json_line(record: Record) -> str:
    """One line of a JSONL log; floats are written so that they are read back bit by bit."""
    return json.dumps(record.as_json(), allow_nan=True)
