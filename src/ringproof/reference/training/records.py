"""Records of a run: one per step, as JSON or as a line of text."""

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
    """First line of a log: options and environment of the run.

    Args:
        arguments: Options of the run.
        world_size: Number of ranks.
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
    """Record of one optimizer step. It is the same on every rank except for the times.

    Args:
        step: Counted from 1.
        loss: Objective, the sum of ``losses``.
        losses: Parts of the objective by name, each for the global batch.
        grad_norm: Gradient norm before clipping.
        learning_rate: Learning rate of this step.
        samples: Sequences so far, including this step.
        tokens: Real tokens in the step.
        rows: Rows that the ranks of the domain computed, padding included.
        step_seconds: Wall time of the step, including planning and routing.
        planning_seconds: Part of it that the planner took.
        microbatches: Groups of each microbatch, with CP size and tokens of each sequence.
            `ringproof plan calibrate` fits costs to them.
        cp_histogram: Sequences by the size of their CP group.
        graph_replays: By CP size, the number of passes of a microbatch through a stage with graphs.
        graph_eager: Number of passes without graphs, because no graph fits the microbatch.
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
        """Fraction of the computed rows that hold no token."""
        return 1 - self.tokens / self.rows

    def as_json(self) -> dict[str, Any]:
        """Return the record as plain data. Sizes are strings because they are keys in JSON."""
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
        """Return a line of progress.

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
        """Return the line that Megatron-LM's ``training_log`` prints.

        Args:
            steps: Of the whole run.
            now: Time that the line shows.
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
    """Record of the objective on held-out documents after a step."""

    step: int
    loss: float
    losses: Mapping[str, float]

    def as_json(self) -> dict[str, Any]:
        """The record as plain data."""
        return {"kind": "evaluation", **asdict(self)}

    def progress_line(self) -> str:
        """Return a line of progress."""
        return f"evaluation after step {self.step}  loss {self.loss:.6f}"

    def megatron_line(self) -> str:
        """Return the line that Megatron-LM prints for an evaluation."""
        parts = "".join(
            f"{_MEGATRON_NAMES.get(n, n)} value: {value:.6E} | " for n, value in self.losses.items()
        )
        return f" validation loss at iteration {self.step} | {parts}"


Record = RunRecord | StepRecord | EvaluationRecord | GraphsRecord | GraphTotals
_MEGATRON_NAMES = MappingProxyType(
    {"lm": "lm loss", "mtp": "mtp_1 loss", "moe_auxiliary": "load_balancing_loss"}
)


def json_line(record: Record) -> str:
    """Return one line of a JSONL log. Floats are written so that reading gives the same bits."""
    return json.dumps(record.as_json(), allow_nan=True)
