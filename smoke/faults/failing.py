"""Ranks that fail in the middle of a training: in an attention layer of the second step."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace

from ringproof.harness.cluster import RankContext
from ringproof.reference.model.attention import Attention
from ringproof.reference.model.batch import PackedBatch
from ringproof.reference.training import trainer
from ringproof.reference.training.options import TrainOptions
from ringproof.reference.training.records import Record, StepRecord
from smoke.faults.seams import seen_by

FAILING = "this rank fails now"


def train_and_fail(rank: RankContext, *, options: TrainOptions, culprit: int, how: str) -> int:
    """The case: one rank is ``killed``, has ``raised``, or has ``hung``; any other word: none."""
    done: list[int] = []

    def take(record: Record) -> None:
        if isinstance(record, StepRecord):
            done.append(record.step)

    def change(batch: PackedBatch) -> PackedBatch:
        if rank.rank == culprit and done == [1]:
            _fail(how)
        return batch

    with seen_by(Attention, change):
        trainer.train(options, rank.device, take)
    return len(done)


def _fail(how: str) -> None:
    print(FAILING, flush=True)
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "raised":
        raise ValueError("the real cause")
    while how == "hung":
        time.sleep(0.1)


def train_with_another_seed(rank: RankContext, *, options: TrainOptions, culprit: int) -> None:
    """The case: one rank was started with another seed."""
    seed = options.batch.seed + (rank.rank == culprit)
    trainer.train(replace(options, batch=replace(options.batch, seed=seed)), rank.device, _ignore)


def _ignore(record: Record) -> None:
    """Nobody looks."""
