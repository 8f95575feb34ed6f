"""The command as a user runs it, and processes that have to be gone."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from ringproof.cli.main import app, main

TORCHRUN_2 = ("torch.distributed.run", "--nproc-per-node", "2", "-m")


def ringproof(
    *arguments: str, launcher: tuple[str, ...] = (), folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, perhaps under a launcher, and wait for it."""
    command = [sys.executable, "-m", *launcher, "ringproof", *arguments]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=110, check=False
    )


def called(
    capture: pytest.CaptureFixture[str], change: pytest.MonkeyPatch, *arguments: str
) -> tuple[int, str, str]:
    """Run the command in this process: exit code, standard output and standard error."""
    change.setattr(sys, "argv", ["ringproof", *arguments])
    try:
        main()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    return code, *capture.readouterr()


@dataclass(frozen=True)
class LogVerdict:
    """Exit code and JSON of ``ringproof logs groups``."""

    exit_code: int
    verdict: str
    report: dict[str, Any]


def log_verdict(folder: Path, log: str, *arguments: str) -> LogVerdict:
    """Write the log into a folder and ask the command about it."""
    path = folder / "run.log"
    path.write_text(log)
    done = CliRunner().invoke(app, ["logs", "groups", str(path), "--json", "-", *arguments])
    report = json.loads(done.stdout)
    return LogVerdict(done.exit_code, report["verdict"], report)


def running(process_id: int) -> bool:
    """Whether a process runs; one that has ended but was not yet collected does not."""
    try:
        return psutil.Process(process_id).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def assert_gone(process_ids: tuple[int, ...]) -> None:
    assert process_ids
    deadline = time.monotonic() + 20  # on a busy machine
    while any(map(running, process_ids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [process for process in process_ids if running(process)]
