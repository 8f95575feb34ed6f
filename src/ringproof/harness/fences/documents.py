"""Finds the documents of skills and the root of their repository."""

from __future__ import annotations

from pathlib import Path

from ringproof.errors import InputError
from ringproof.files import walk_files

FIELD = "PATH"
_SUFFIXES = (".md", ".mdx", ".markdown")
NOT_ENTERED = frozenset((".git", "node_modules", "__pycache__", ".venv", "site-packages"))


def repository_root(path: Path) -> Path:
    """Return the folder to which a skill's paths are relative.

    This is the given folder if it contains ``.git`` or ``skills``, otherwise the nearest parent
    with ``.git``, otherwise the parent of the ``skills`` folder around it, otherwise the given
    folder.
    """
    folder = path if path.is_dir() else path.parent
    if (folder / ".git").exists() or (folder / "skills").is_dir():
        return folder
    for above in folder.parents:
        if (above / ".git").exists():
            return above
    for inner in (folder, *folder.parents):
        if inner.name == "skills":
            return inner.parent
    return folder


def skill_documents(path: Path, root: Path) -> list[Path]:
    """List the Markdown files of the skills at, in or around a path, without following links.

    A skill is a folder with a ``SKILL.md``. A file is returned as it is.

    Raises:
        InputError: The path does not exist, or has no skill.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise InputError(FIELD, path, "there is no such file or folder", "name skills or a file")
    found = walk_files(path, NOT_ENTERED.__contains__)
    files = [file for file in found if file.suffix.lower() in _SUFFIXES]
    skills = {file.parent for file in files if file.name == "SKILL.md"}
    above = [folder for folder in (path, *path.parents) if folder.is_relative_to(root)]
    if not any((folder / "SKILL.md").is_file() for folder in above):
        files = [file for file in files if not skills.isdisjoint(file.parents)]
    if not files:
        raise InputError(FIELD, path, "holds no skill (no SKILL.md)", "name a folder of skills")
    return files
