"""Megatron-Bridge with the Megatron-LM that fits it: from what a user names to folders."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from ringproof.launch.imports import imports_of
from ringproof.rehearsal.protocol.program import Upstream
from ringproof.rehearsal.runs.upstreams import open_bridge, open_upstream
from ringproof.stack.pairs import core_of

NAME = re.compile(r"megatron[-_]bridge", re.IGNORECASE)
PROGRAMS = Path(__file__).parent / "programs"
RECIPES = "run_recipe.py"  # Bridge's program that trains a recipe by its name
PIN = ".main.commit"


def is_bridge(spec: str) -> bool:
    """Whether a name, as ``--upstream`` takes it, is one of Megatron-Bridge.

    >>> is_bridge("megatron-bridge==0.5.1"), is_bridge("megatron-core==0.18.2")
    (True, False)
    """
    folder = Path(spec)
    if folder.is_dir():
        return any((folder / at / "megatron" / "bridge").is_dir() for at in ("", "src"))
    return NAME.search(spec.partition("@")[0]) is not None


def calls_bridge(script: str) -> bool:
    """Whether a launch's script trains with Megatron-Bridge.

    That follows from what it imports, or from its name where it is not at hand.
    """
    if Path(script).is_file():
        return any(name.startswith("megatron.bridge") for name in imports_of(script))
    return Path(script).name == RECIPES


def open_pair(
    bridge: str, megatron: str, engine: str | None, *, cache: Path, offline: bool
) -> tuple[Upstream, str]:
    """Return Megatron-Bridge on a Megatron-LM, and the versions of both for people.

    Args:
        bridge: As `open_upstream` takes Megatron.
        megatron: The same; empty for the one that fits.

    Raises:
        InputError: One of them is not what it should be, or which Megatron-LM fits is not known.
    """
    root, name = open_bridge(bridge, option="--upstream", cache=cache, offline=offline)
    upstream = open_upstream(megatron or _fitting(root), engine, cache=cache, offline=offline)
    found = replace(upstream, extra=(root,), programs=PROGRAMS, lacks=())
    return found, f"{name}, {upstream.megatron_name}"


def _fitting(root: Path) -> str:
    """Return the Megatron-LM that a Bridge names, or the release of its time."""
    pin = root.parent / PIN
    if pin.is_file():
        return f"fetched:NVIDIA/Megatron-LM@{pin.read_text().strip()}"
    text = (root / "megatron" / "bridge" / "package_info.py").read_text()
    parts = [re.search(rf"^{part} = (\d+)", text, re.MULTILINE) for part in ("MAJOR", "MINOR")]
    return core_of(".".join(part[1] if part else "?" for part in parts))
