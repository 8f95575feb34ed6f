"""Where a benchmark ran, and how its record is written."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

from ringproof.files import write_atomically


def environment() -> dict[str, Any]:
    """Versions and processors of this machine."""
    import torch

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cores": os.cpu_count(),
        "machine": platform.machine(),
    }


def write_record(path: Path | None, content: dict[str, Any]) -> None:
    """Write a record as JSON with the environment; do nothing without a path."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"environment": environment(), **content}, indent=1)
    write_atomically(path, text + "\n", field="--json")
