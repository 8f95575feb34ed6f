"""Measurements that need an interpreter of their own.

Megatron-core keeps its process groups in module globals and torch.distributed allows one world
per process, so whatever touches them runs as ``python -m MODULE`` and reports one JSON line.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
TIMEOUT_SECONDS = 100


def measure(module: str, *arguments: str, seconds: float = TIMEOUT_SECONDS) -> dict[str, Any]:
    """Run a module of this repository in a fresh interpreter; the JSON on its last line.

    Args:
        seconds: Until it counts as hung.

    Raises:
        AssertionError: It failed or printed nothing, with the end of what it said.
        subprocess.TimeoutExpired: It hung.
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", module, *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, f"{module} exited with {done.returncode}:\n{done.stderr[-3000:]}"
    lines = done.stdout.strip().splitlines()
    assert lines, f"{module} printed nothing:\n{done.stderr[-3000:]}"
    return dict(json.loads(lines[-1]))
