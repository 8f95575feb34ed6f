"""What ``ringproof logs groups`` says of a log, asked the way a user asks."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class LogVerdict:
    """Exit code and JSON of the command."""

    exit_code: int
    verdict: str
    report: dict[str, Any]


def log_verdict(folder: Path, log: str, *arguments: str) -> LogVerdict:
    """Write the log into a folder and run the command on it."""
    path = folder / "run.log"
    path.write_text(log)
    done = subprocess.run(
        [sys.executable, "-m", "ringproof", "logs", "groups", str(path), "--json", "-", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    report = json.loads(done.stdout)
    return LogVerdict(done.returncode, report["verdict"], report)
