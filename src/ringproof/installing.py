"""Copying skills to where coding agents look for them."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ringproof.errors import InputError, shown
from ringproof.files import read_bounded, read_input, walk_folders, write_atomically

MANIFEST = ".ringproof.json"
"""File beside installed skills that says what was installed."""

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
_MOST_BYTES = 16 << 20
"""All files of a skill; the largest of ours has less than 1 MB."""


@dataclass(frozen=True)
class Installation:
    """One skill for one place.

    Attributes:
        source: Folder of the skill.
        target: Folder that it becomes.
        files: Content of each file of the skill, by its relative path.
        differing: Relative paths of the files that only one of the two folders has, or that differ
            in their contents; ``None`` if there is no target.
        edited: Whether somebody changed the target since it was installed, as far as is known.
    """

    source: Path
    target: Path
    files: Mapping[str, bytes]
    differing: tuple[str, ...] | None
    edited: bool = False

    @property
    def state(self) -> str:
        """``new``, ``same``, ``changed`` by somebody, or ``older`` and otherwise as installed."""
        if not self.differing:
            return "new" if self.differing is None else "same"
        return "changed" if self.edited else "older"


def planned(source: Path, target: Path) -> Installation:
    """Compare a skill with what is at its target, which stays as it is.

    Raises:
        InputError: The skill holds a link or anything else that is not a regular file, or too much.
    """
    files = _contents(source)
    if not target.exists() and not target.is_symlink():
        return Installation(source, target, MappingProxyType(files), None)
    try:
        there = {} if target.is_symlink() else _contents(target, installed=True)
    except InputError:  # somebody put a link there
        there = {}
    both = sorted(files.keys() | there.keys())
    differing = tuple(name for name in both if files.get(name) != there.get(name))
    return Installation(source, target, MappingProxyType(files), differing, is_edited(target))


def refuse_changed(plans: list[Installation]) -> None:
    """Raise `InputError` if an installation would overwrite what somebody changed."""
    for plan in plans:
        if plan.state == "changed" and plan.differing:
            names = ", ".join(plan.differing[:_SHOWN])
            more = len(plan.differing) - _SHOWN
            sentence = (
                f"{shown(plan.target)} is another version of the skill "
                f"({names}{f' and {more} more' * (more > 0)}); compare it with "
                "`ringproof skills show`, and give --force to replace it"
            )
            raise InputError("install", sentence)


def installed(folder: Path) -> tuple[str, ...]:
    """Return the skills that were installed into a folder, by its manifest."""
    return tuple(sorted(name for name in _manifest(folder) if os.path.lexists(folder / name)))


def is_edited(target: Path) -> bool:
    """Whether somebody changed a skill since it was installed."""
    try:
        there = {} if target.is_symlink() else _contents(target, installed=True)
    except InputError:  # somebody put a link there
        there = {}
    return not there or _digests(there) != _manifest(target.parent).get(target.name)


def remove(targets: Sequence[Path], *, force: bool) -> None:
    """Remove skills that were installed; a link in the place of one is not followed.

    Their folders are locked while this runs. A skill that is gone already is no error.

    Args:
        force: Whether to remove also what somebody changed.

    Raises:
        InputError: Somebody changed one of them, and then none is removed; or a folder cannot be
            written.
    """
    with contextlib.ExitStack() as locks:
        for folder in sorted({target.parent for target in targets}):
            with _saying(folder):
                locks.enter_context(_locked(folder))
        there = [target for target in targets if os.path.lexists(target)]
        for target in () if force else filter(is_edited, there):
            problem = "was changed since it was installed; give --force to remove it"
            raise InputError("remove", f"{shown(target)} {problem}")
        for target in there:
            with _saying(target):
                _remove(target)


@contextlib.contextmanager
def _saying(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        sentence = f"{shown(place)} cannot be removed ({error.strerror}); check who may write it"
        raise InputError("remove", sentence) from error


def _remove(target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".ringproof-") as name:
        target.rename(Path(name, "old"))
        manifest = _manifest(target.parent)
        manifest.pop(target.name, None)
        _write_manifest(target.parent, manifest)


def install(plan: Installation) -> None:
    """Put a skill in place: complete, or, if something fails, not at all.

    The folder is locked meanwhile. Its manifest says what was installed, so that a later
    installation tells an older release from what somebody changed.

    Raises:
        InputError: The target cannot be written.
    """
    folder = plan.target.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # On the same file system, and where no agent looks for skills.
        with _locked(folder), tempfile.TemporaryDirectory(dir=folder, prefix=".ringproof-") as name:
            for relative, content in plan.files.items():
                place = Path(name, "new", relative)
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(content)
            _exchange(Path(name), plan.target)
            _write_manifest(folder, {**_manifest(folder), plan.target.name: _digests(plan.files)})
    except OSError as error:
        sentence = f"{shown(plan.target)} cannot be written ({error.strerror}); name another folder"
        raise InputError("install", sentence) from error


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Wait until no other process installs into a folder."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _manifest(folder: Path) -> dict[str, Any]:
    """Return the digests of what was installed, by skill and file; empty where none are known."""
    if not (folder / MANIFEST).is_file():  # a pipe would be waited for
        return {}
    try:
        skills = json.loads(read_bounded(folder / MANIFEST, _MOST_BYTES))["skills"]
        # A name that leads to another folder was not written by `install`.
        outside = ("", ".", "..")
        return {
            name: known
            for name, known in skills.items()
            if name not in outside and name == Path(name).name
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def _write_manifest(folder: Path, skills: Mapping[str, Any]) -> None:
    text = json.dumps({"version": 1, "skills": skills}, indent=1, sort_keys=True) + "\n"
    if skills:
        write_atomically(folder / MANIFEST, text, field="install")
    else:
        (folder / MANIFEST).unlink(missing_ok=True)


def _digests(files: Mapping[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(content).hexdigest() for name, content in sorted(files.items())}


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


_BYTECODE = "__pycache__"
_LEFT_OUT = (_BYTECODE, "evals")
"""Folders of a skill that are not installed. Its evals hold questions with their answers: an
assistant that reads them could not be asked these any more."""


def _contents(folder: Path, *, installed: bool = False) -> dict[str, bytes]:
    """Read all files of a skill.

    Args:
        installed: Whether somebody may have added files to it, which are read wherever they are,
            bytecode excepted.

    Raises:
        InputError: One is not a regular file, cannot be read, or they are too large together. A
            link could lead to a private key, and out of the skill.
    """
    found: dict[str, bytes] = {}
    left = _MOST_BYTES
    left_out = () if installed else _LEFT_OUT
    for where, names, links in walk_folders(folder, lambda path: path.name in left_out):
        for path in [*links, *(where / name for name in names)]:
            if where.name == _BYTECODE and path.suffix == ".pyc":
                continue
            if path.is_symlink() or not path.is_file():
                remedy = "a skill is installed only if all of it are regular files"
                raise InputError("install", f"{shown(path)} is not a regular file; {remedy}")
            content = read_input(path, left, field="install", remedy="make the skill smaller")
            left -= len(content)
            found[path.relative_to(folder).as_posix()] = content
    return found
