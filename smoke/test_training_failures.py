"""``ringproof train`` when a rank fails from outside: it stops, names the rank, leaves nothing.

What is seen of ranks that fail by themselves: ``test_cluster``.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from smoke.processes import assert_gone

REPORTED_WITHIN_SECONDS = 15.0
COMMAND = (
    sys.executable, "-m", "ringproof", "train", "--preset", "qwen3-tiny", "--cp", "2",
    "--force-cp", "2,1", "--max-length", "64", "--max-tokens-per-rank", "64",
    "--global-batch", "8",
)  # fmt: skip
WITHOUT_END = ("--steps", "100000")


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


@pytest.mark.slow
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
