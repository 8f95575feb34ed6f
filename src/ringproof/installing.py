"""Copying skills to where coding agents look for them."""

from __future__ import annotations

import filecmp
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from ringproof.errors import InputError, shown

_SHARED = ".agents/skills"
AGENTS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("claude", "claude-code"), ".claude/skills"),
        **dict.fromkeys(
            (
                "amp", "cline", "codex", "cursor", "gemini-cli", "github-copilot", "opencode",
                "universal", "warp", "zed",
            ),
            _SHARED,
        ),
        "continue": ".continue/skills",
        "goose": ".goose/skills",
        "openhands": ".openhands/skills",
        "qwen-code": ".qwen/skills",
        "roo": ".roo/skills",
        "windsurf": ".windsurf/skills",
    }
)  # fmt: skip
"""Folder of a project in which an agent looks for skills. The npm client ``skills`` has the same
table; ``checks/distribution`` compares the two."""
_SHOWN = 3


@dataclass(frozen=True)
class Installation:
    """One skill for one place.

    Attributes:
        source: Folder of the skill.
        target: Folder that it becomes.
        differing: Relative paths of the files that only one of the two folders has, or that differ
            in their contents; ``None`` if there is no target.
    """

    source: Path
    target: Path
    differing: tuple[str, ...] | None

    @property
    def state(self) -> str:
        """``new``, ``same`` or ``changed``."""
        return "new" if self.differing is None else "changed" if self.differing else "same"


def planned(source: Path, target: Path) -> Installation:
    """Compare a skill with what is at its target, which stays as it is."""
    if not target.exists() and not target.is_symlink():
        return Installation(source, target, None)
    both = sorted(_files(source) | _files(target))
    differing = (name for name in both if not _same(source / name, target / name))
    return Installation(source, target, tuple(differing))


def refuse_changed(plans: list[Installation]) -> None:
    """Raise `InputError` if an installation would overwrite what somebody changed."""
    for plan in plans:
        if plan.differing:
            names = ", ".join(plan.differing[:_SHOWN])
            more = len(plan.differing) - _SHOWN
            sentence = (
                f"{shown(plan.target)} is another version of the skill "
                f"({names}{f' and {more} more' * (more > 0)}); compare it with "
                "`ringproof skills show`, and give --force to replace it"
            )
            raise InputError("install", sentence)


def install(plan: Installation) -> None:
    """Put a skill in place: complete, or, if something fails, not at all.

    Raises:
        InputError: The target cannot be written.
    """
    folder = plan.target.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # On the same file system, and where no agent looks for skills.
        with tempfile.TemporaryDirectory(dir=folder, prefix=".ringproof-") as name:
            ignore = shutil.ignore_patterns(*_LEFT_OUT)
            shutil.copytree(plan.source, Path(name, "new"), ignore=ignore)
            _exchange(Path(name), plan.target)
    except OSError as error:
        sentence = f"{shown(plan.target)} cannot be written ({error.strerror}); name another folder"
        raise InputError("install", sentence) from error


def _exchange(scratch: Path, target: Path) -> None:
    """Move ``new`` to the target, and what was there to ``old``; a link is moved, not followed."""
    there = target.exists() or target.is_symlink()
    if there:
        target.rename(scratch / "old")
    try:
        (scratch / "new").rename(target)
    except BaseException:
        if there:
            (scratch / "old").rename(target)
        raise


_LEFT_OUT = ("__pycache__", "evals")
"""Folders of a skill that are not installed. Its evals hold questions with their answers: an
assistant that reads them could not be asked these any more."""


def _files(folder: Path) -> set[str]:
    if not folder.is_dir():
        return set()
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {path.as_posix() for path in found if not set(path.parts).intersection(_LEFT_OUT)}


def _same(one: Path, other: Path) -> bool:
    return one.is_file() and other.is_file() and filecmp.cmp(one, other, shallow=False)
