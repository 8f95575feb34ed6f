"""The environment in which proofs ran, and its class."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from ringproof.budget import usable_cpus
from ringproof.programs import program, python, run
from ringproof.upstream.gitprogram import Git, first_line

_GPU_QUERY = (
    "import json, torch; "
    "print(json.dumps([torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]))"
)


@dataclass(frozen=True)
class Environment:
    """Facts about the machine and checkout for evidence.

    Attributes:
        name: Environment class: ``cpu-gloo``, ``1xH200``, ``cpu`` without torch.
        commit: Commit of the checkout; ``None`` outside of git.
    """

    name: str
    python: str
    torch: str | None
    platform: str
    cpus: int
    gpus: tuple[str, ...]
    commit: str | None
    dirty: bool | None

    @property
    def processes(self) -> int:
        """Two test processes, or one if tests share GPUs or there is one processor."""
        return 1 if self.gpus else min(2, self.cpus)


def read_environment(root: Path) -> Environment:
    """Describe this machine and the checkout, without importing torch into this process."""
    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        torch = None
    gpus = _gpus() if torch is not None else ()
    here = ("-C", str(root))
    commit = first_line(Git(None), *here, "rev-parse", "--verify", "HEAD") or None
    status = Git(None).run(*here, "status", "--porcelain") if commit else None
    return Environment(
        name=_class_name(torch, gpus),
        python=platform.python_version(),
        torch=torch,
        platform=f"{platform.system()} {platform.machine()}",
        cpus=usable_cpus(),
        gpus=gpus,
        commit=commit,
        dirty=bool(status.out) if status and status.code == 0 else None,
    )


def _class_name(torch: str | None, gpus: tuple[str, ...]) -> str:
    if not gpus:
        return "cpu" if torch is None else "cpu-gloo"
    counts = Counter(_short_name(name) for name in gpus)
    return "+".join(f"{count}x{name}" for name, count in sorted(counts.items()))


def _short_name(device: str) -> str:
    """Shorten ``NVIDIA A100-SXM4-80GB`` to ``A100-SXM4-80GB``."""
    words = re.sub(r"[^A-Za-z0-9.-]+", "-", device.replace("NVIDIA", "")).strip("-")
    return words or "GPU"


def _gpus() -> tuple[str, ...]:
    if program("nvidia-smi") is None and not Path("/dev/nvidia0").exists():
        return ()
    try:
        ended = run(python(code=_GPU_QUERY), seconds=120)
        return tuple(json.loads(ended.out.splitlines()[-1])) if ended.code == 0 else ()
    except (OSError, ValueError, IndexError):
        return ()
