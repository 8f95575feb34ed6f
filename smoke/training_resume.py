"""Training that is saved and resumed, and what goes wrong on purpose there."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from ringproof.harness.cluster import RankContext
from ringproof.reference.training import checkpoint
from smoke.training_steps import Run, made_for, step, whole_parameters


def resume(
    rank: RankContext, *, run: Run, folder: str, until: int, save_at: int, load: bool
) -> dict[str, Any]:
    """Train up to a step; save before one of them, or start from the newest checkpoint."""
    identity = {"preset": run.preset, "tp": run.layout.tp, "pp": run.layout.pp, "seed": 0}
    torch.manual_seed(rank.rank)
    with broken_checkpoint(rank, run.fault), made_for(rank, run) as made:
        state = checkpoint.TrainingState(
            made.parameters,
            made.optimiser,
            identity,
            checkpoint.place_of(run.layout, rank.rank),
            rank.device,
        )
        start = checkpoint.load(Path(folder), state) if load else 0
        steps = []
        for index in range(start, until):
            if index == save_at:
                checkpoint.save(Path(folder), state, index)
            steps.append(step(made, index))
            steps[-1]["draw"] = torch.rand(1).item()
        return {
            "start": start,
            "losses": [one["losses"] for one in steps],
            "norms": [one["norm"] for one in steps],
            "draws": [one["draw"] for one in steps],
            "parameters": whole_parameters(made.parameters),
        }


@contextmanager
def broken_checkpoint(rank: RankContext, fault: str) -> Iterator[None]:
    """``forget-PART``: it is loaded into the void. ``killed-WHERE``: SIGKILL of one rank there."""
    kind, _, what = fault.partition("-")
    tensors = checkpoint._tensors

    def forgetful(state: checkpoint.TrainingState) -> dict[str, torch.Tensor]:
        return {
            key: value.clone() if what in key.split(".") else value
            for key, value in tensors(state).items()
        }

    def killed(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    places = {
        "writing": (checkpoint.distributed_checkpoint, "save", 1),
        "renaming": (Path, "rename", 0),
        "naming": (checkpoint, "_flush", 0),
    }
    with ExitStack() as changes:
        if fault == "forget-random":
            changes.enter_context(mock.patch.object(checkpoint, "_set_random_state"))
        elif kind == "forget":
            changes.enter_context(mock.patch.object(checkpoint, "_tensors", forgetful))
        if kind == "killed" and rank.rank == places[what][2]:
            changes.enter_context(mock.patch.object(*places[what][:2], killed))
        yield
