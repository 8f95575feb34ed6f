"""Training logs to compare: a real tiny training, and the three formats it can be written in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

Rows = Sequence[tuple[int, float, float]]
"""Step, loss, gradient norm."""


@dataclass(frozen=True)
class Training:
    """A small network trained by gradient descent in float64; every field is a way to differ.

    Attributes:
        order: Order in which the samples of a batch are summed: the same mathematics, other
            rounding.
        normaliser: What the loss is multiplied with, as by a wrong count of tokens.
        swapped: Step that gets the batch of the step after it.
        scaled: Step from which on the gradient is 1.5 times too large.
        rate: Learning rate; a large one lets rounding grow.
    """

    steps: int = 120
    seed: int = 0
    order: int = 0
    normaliser: float = 1.0
    swapped: int | None = None
    scaled: int | None = None
    rate: float = 0.5

    def run(self) -> list[tuple[int, float, float]]:
        """Step, loss and gradient norm of every step."""
        random = np.random.default_rng(self.seed)
        w1, w2 = random.normal(size=(6, 16)), random.normal(size=(16, 1)) / 4
        rows = []
        for step in range(1, self.steps + 1):
            loss, g1, g2 = self._gradients(w1, w2, self._batch(step))
            if self.scaled is not None and step >= self.scaled:
                g1, g2 = 1.5 * g1, 1.5 * g2
            rows.append((step, loss, float(np.sqrt((g1**2).sum() + (g2**2).sum()))))
            w1, w2 = w1 - self.rate * g1, w2 - self.rate * g2
        return rows

    def _batch(self, step: int) -> np.ndarray:
        at = step + 1 if step == self.swapped else step
        batch = np.random.default_rng((self.seed, at)).normal(size=(24, 6))
        return batch if not self.order else np.roll(batch, self.order, axis=0)

    def _gradients(
        self, w1: np.ndarray, w2: np.ndarray, x: np.ndarray
    ) -> tuple[float, np.ndarray, np.ndarray]:
        loss, g1, g2 = 0.0, np.zeros_like(w1), np.zeros_like(w2)
        for row in x:  # one after the other, so that the order of the sum is ours
            hidden = np.tanh(row @ w1)
            error = float(hidden @ w2[:, 0]) - float(np.sin(2 * row.sum()))
            loss += error * error + 1
            g2 += 2 * error * hidden[:, None]
            g1 += 2 * error * np.outer(row, w2[:, 0] * (1 - hidden**2))
        return self.normaliser * loss / len(x), g1 / len(x), g2 / len(x)


def write_jsonl(path: Path, rows: Rows) -> Path:
    """As the trainer writes them."""
    lines = [json.dumps({"kind": "run", "version": 1, "arguments": {}, "world_size": 1})]
    lines += [
        json.dumps(
            {"kind": "step", "step": step, "loss": loss, "grad_norm": norm, "tokens": 64,
             "losses": {"lm": loss - 0.125, "mtp": 0.125}, "cp_histogram": {"1": 2}}
        )
        for step, loss, norm in rows
    ]  # fmt: skip
    path.write_text("\n".join(lines) + "\n")
    return path


def iteration_line(
    step: int, loss: float | None, norm: float | None, *, skipped: int = 0, nan: int = 0
) -> str:
    """A line as Megatron-LM's ``training_log`` builds it."""
    fields = [
        f"iteration {step:8d}/{1000:8d}",
        f"consumed samples: {8 * step:12d}",
        "elapsed time per iteration (ms): 123.4",
        "throughput per GPU (TFLOP/s/GPU): 12.3",
        "learning rate: 1.000000E-04",
        "global batch size:     8",
        "load_balancing_loss: 1.034567E+00",
        "mtp_1 loss: 9.034567E+00",
        *([] if loss is None else [f"lm loss: {loss:.6E}"]),
        "loss scale: 1.0",
        *([] if norm is None else [f"grad norm: {norm:.3f}"]),
        "num zeros: 17",
        f"number of skipped iterations: {skipped:3d}",
        f"number of nan iterations: {nan:3d}",
    ]
    return " [2026-11-20 09:00:00.123456] " + " | ".join(fields) + " |"


def write_megatron(path: Path, rows: Rows) -> Path:
    """With a preamble and validation, as on a terminal."""
    lines = ["using world size: 8, data-parallel size: 1, context-parallel size: 4"]
    for step, loss, norm in rows:
        lines.append(iteration_line(step, loss, norm))
        if step % 10 == 0:
            said = f" validation loss at iteration {step} | lm loss value: 7.000000E+00 | "
            lines += ["-" * 80, said + "lm loss PPL: 1.096633E+03 | ", "-" * 80]
    path.write_text("\n".join(lines) + "\n")
    return path


def write_csv(path: Path, rows: Rows, header: str = "step,loss,grad_norm") -> Path:
    """With all digits."""
    lines = [header, *(f"{step},{loss!r},{norm!r}" for step, loss, norm in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path
