"""A training in which a rank is killed, raises, hangs or disagrees: stopped, named, nothing left.

Through the API with ranks that fail inside an attention layer, and through the command with what
can happen to a run from outside.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ringproof.cluster import Cluster, ClusterOptions, RankContext, RankFailure
from ringproof.errors import InputError
from ringproof.reference.model.attention import Attention
from ringproof.reference.model.batch import PackedBatch
from ringproof.reference.training import trainer
from smoke import cases
from smoke.faults import seen_by
from smoke.processes import assert_gone
from smoke.training_matrix import Spread, Trace, options_of

REPORTED_WITHIN_SECONDS = 15.0
SILENT_SECONDS = 4.0
STEPS = 3
THREE = Spread({"cp": 3}, batch={"cp_sizes": "divisors", "forced_sizes": (3, 1)})
OPTIONS = options_of("qwen3-tiny", THREE, steps=STEPS)
COMMAND = (
    sys.executable, "-m", "ringproof", "train", "--preset", "qwen3-tiny", "--cp", "2",
    "--force-cp", "2,1", "--max-length", "64", "--max-tokens-per-rank", "64",
    "--global-batch", "8",
)  # fmt: skip
WITHOUT_END = ("--steps", "100000")
FAILING = "this rank fails now"


def train_and_fail(rank: RankContext, *, culprit: int, how: str) -> int:
    """In the second step one rank is ``killed``, has ``raised``, or has ``hung``; or nothing."""
    trace = Trace()

    def change(batch: PackedBatch) -> PackedBatch:
        if rank.rank == culprit and len(trace.steps) == 1:
            print(FAILING, flush=True)
            cases.fail(how)
        return batch

    with seen_by(Attention, change):
        trainer.train(OPTIONS, rank.device, trace.take)
    return len(trace.steps)


def train_with_another_seed(rank: RankContext, *, culprit: int) -> None:
    """One rank was started with another seed."""
    seed = OPTIONS.batch.seed + (rank.rank == culprit)
    options = replace(OPTIONS, batch=replace(OPTIONS.batch, seed=seed))
    trainer.train(options, rank.device, lambda record: None)


class Ranks:
    """Three ranks, and when one of them said that it fails."""

    def __init__(self) -> None:
        self.failed: list[float] = []
        options = ClusterOptions(timeout_seconds=60, log_sink=self._note)
        self.cluster = Cluster(3, options)

    def _note(self, rank: int, line: str) -> None:
        if line == FAILING:
            self.failed.append(time.monotonic())

    def failure(self, how: str, **limits: Any) -> RankFailure:
        """Train until rank 1 fails; the report is in time."""
        with pytest.raises(RankFailure) as caught:
            self.cluster.run(train_and_fail, culprit=1, how=how, **limits)
        assert len(self.failed) == 1
        assert time.monotonic() - self.failed[0] < REPORTED_WITHIN_SECONDS
        return caught.value


@pytest.fixture
def three() -> Iterator[Ranks]:
    ranks = Ranks()
    with ranks.cluster:
        yield ranks


@pytest.mark.parametrize(
    ("how", "reason"), [("killed", "killed by SIGKILL"), ("raised", "ValueError: the real cause")]
)
def test_a_rank_that_fails_in_step_two_is_named(three: Ranks, how: str, reason: str) -> None:
    before = three.cluster.process_ids
    failure = three.failure(how)
    assert failure.rank == 1
    assert failure.reason == reason
    assert_gone(before)


def test_a_rank_that_hangs_in_step_two_is_named(three: Ranks) -> None:
    """The same training with nothing wrong ends first, so that silence means what it should."""
    fine = three.cluster.run(train_and_fail, culprit=1, how="nothing")
    assert fine.values == (STEPS,) * 3
    three.failed.clear()
    before = three.cluster.process_ids
    failure = three.failure("hung", timeout_seconds=SILENT_SECONDS, renewed_by_output=True)
    assert failure.rank == 1
    assert re.search(r"silent for 4 s, at \S+cases.py:\d+ in fail", failure.reason)
    assert "communicator.py" in failure.others
    assert_gone(before)


@pytest.mark.slow
def test_a_rank_with_another_seed_is_named(three: Ranks) -> None:
    started, before = time.monotonic(), three.cluster.process_ids
    with pytest.raises(InputError) as refusal:
        three.cluster.run(train_with_another_seed, culprit=1)
    assert str(refusal.value).startswith("plan of step 1: rank 1 made another than the other 2")
    assert time.monotonic() - started < 60
    assert_gone(before)
    with pytest.raises(AssertionError):
        assert_gone((os.getpid(),))  # negative control: it does see what is left


class Command:
    """A running ``ringproof train``."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            (*COMMAND, *arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        )

    def wait_for_step(self, number: int) -> None:
        """Until a step is reported."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if re.search(rf"\b{number}/", line):
                return
        raise AssertionError(self.process.communicate()[1])

    def ranks(self) -> tuple[int, ...]:
        """Process ids of its ranks: the children of the server that forks them, in order."""
        found = [children(child) for child in children(self.process.pid)]
        return max(found, key=len)

    def ended(self, within: float) -> tuple[int, str]:
        """Exit code and what it wrote to standard error."""
        _, errors = self.process.communicate(timeout=within)
        return self.process.returncode, errors


def children(parent: int) -> tuple[int, ...]:
    text = Path(f"/proc/{parent}/task/{parent}/children").read_text()
    return tuple(sorted(map(int, text.split())))


@pytest.fixture
def commands() -> Iterator[list[Command]]:
    """What a failed assertion leaves running is ended."""
    started: list[Command] = []
    yield started
    for command in started:
        if command.process.poll() is None:
            command.process.kill()
            command.process.wait()


def test_the_command_names_a_rank_that_was_killed(commands: list[Command]) -> None:
    commands.append(Command("--data", "synthetic:mean=32", *WITHOUT_END))
    commands[0].wait_for_step(2)
    ranks = commands[0].ranks()
    assert len(ranks) == 2
    os.kill(ranks[1], signal.SIGKILL)
    code, errors = commands[0].ended(within=REPORTED_WITHIN_SECONDS)
    assert code == 1
    assert errors.startswith("error: rank 1 failed first: killed by SIGKILL")
    assert "Traceback" not in errors
    assert_gone(ranks)


@pytest.mark.slow
def test_the_command_names_a_file_that_one_rank_cannot_read_again(
    commands: list[Command], tmp_path: Path
) -> None:
    for number in range(40):
        (tmp_path / f"{number}.txt").write_text(f"document {number} " * 4)
    commands.append(Command("--data", f"folder:{tmp_path}", *WITHOUT_END))
    commands[0].wait_for_step(2)
    ranks = commands[0].ranks()
    (tmp_path / "7.txt").write_text("")
    code, errors = commands[0].ended(within=REPORTED_WITHIN_SECONDS)
    assert code in (1, 2)
    assert re.search(
        r"/7\.txt: the file had 44 bytes when the run began, and now 0", errors.splitlines()[0]
    )
    assert_gone(ranks)


@pytest.mark.slow
def test_launched_ranks_with_different_seeds_refuse_each_other(commands: list[Command]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    for rank in ("0", "1"):
        place = {"RANK": rank, "LOCAL_RANK": rank, "MASTER_PORT": port}
        arguments = ("--data", "synthetic:mean=32", "--seed", rank, "--steps", "3")
        commands.append(Command(*arguments, **common, **place))
    for command in commands:
        code, errors = command.ended(within=60)
        assert code == 2
        assert errors.splitlines()[-1].startswith("error: plan of step 1: rank 1 made another")
