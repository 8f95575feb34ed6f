"""Which releases a launch runs on whose user names none, or only some of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ringproof.errors import InputError
from ringproof.stack.pairs import PAIRS
from ringproof.upstream.sources import open_tree

BRIDGE = next(iter(PAIRS.values()))  # the newest
OF_MBRIDGE = "pip:megatron-core==0.16.1"  # the newest release that mbridge 0.15.1 runs with


@dataclass(frozen=True)
class Releases:
    """Specs of Megatron-LM and of Megatron-Bridge; the latter is empty where none is used.

    Attributes:
        said: Which releases were chosen; empty where the user named them.
    """

    megatron: str
    bridge: str
    said: str = ""


def choose_releases(
    megatron: str, bridge: str, *, cache: Path, offline: bool, vanilla: bool = False,
    alone: bool = False,
) -> Releases:  # fmt: skip
    """Return what the user named, and the newest releases that fit it for the rest.

    Args:
        megatron, bridge: Specs of the user; empty for none.
        vanilla: Whether the launch of verl takes mbridge.
        alone: Whether the launch uses no Megatron-Bridge.

    Raises:
        InputError: None of the releases can be had.
    """
    if vanilla:
        said = f"{OF_MBRIDGE}, the newest that mbridge runs with"
        return Releases(megatron, "") if megatron else Releases(OF_MBRIDGE, "", said)
    if megatron:
        return Releases(megatron, bridge or PAIRS.get(as_spec(megatron), BRIDGE))
    known = as_spec(bridge) in PAIRS.values()
    problems = []
    for core, partner in PAIRS.items():
        if known and partner != as_spec(bridge):
            continue
        taken = "" if alone else bridge or partner
        problem = _absent((core, taken), cache, offline)
        if problem is None:
            both = f"{core} and {taken}, the newest releases that are known to fit"
            return Releases(core, taken, f"{core}, the newest release" if alone else both)
        problems.append(problem)
    sentence = f"it is missing, and {problems[0].sentence}; name a checkout or another release"
    raise InputError("--upstream", sentence) from problems[0]


def as_spec(release: str) -> str:
    """Return a release as a spec: ``NAME==VERSION`` may have been written without ``pip:``."""
    return release if release.startswith("pip:") else f"pip:{release}"


def _absent(specs: Iterable[str], cache: Path, offline: bool) -> InputError | None:
    """Return why one of the releases among some specs cannot be had; ``None`` if all can."""
    try:
        for spec in specs:
            if spec.startswith("pip:"):
                open_tree(spec, cache=cache, offline=offline)
    except InputError as error:
        return error
    return None
