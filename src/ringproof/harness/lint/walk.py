"""Finds skills below a path and reads them, within limits and without leaving the root."""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Iterator
from pathlib import Path

from ringproof.errors import InputError
from ringproof.files import looks_binary
from ringproof.harness.lint.frontmatter import parse_frontmatter
from ringproof.harness.lint.model import Skill, SourceFile, source_file
from ringproof.harness.reports.model import Finding
from ringproof.harness.reports.printable import showable

MAIN = "SKILL.md"
MAX_BYTES = 1_000_000
MAX_DEPTH = 16
MAX_FILES_PER_SKILL = 5_000
SKIPPED = re.compile(
    r"\.git|\.hg|\.svn|node_modules|site-packages|__pycache__|\.?venv|\.tox|\.nox"
    r"|\.mypy_cache|\.pytest_cache|\.ruff_cache|.*\.egg-info"
)


def find_skills(path: Path) -> tuple[tuple[Path, Path], ...]:
    """The skills at or below a path, sorted, each once: (real ``SKILL.md``, repository folder).

    Raises:
        InputError: The path does not exist, or holds no skill: nothing checked is not a pass.
    """
    try:
        real = path.resolve(strict=True)
    except (OSError, RuntimeError):
        raise InputError("PATH", path, "no such file or folder", "name a skill") from None
    if real.is_file() and real.name.lower() == MAIN.lower():
        real = real.parent
    repository = _repository(real)
    found = tuple((main, repository) for main in _mains(real))
    if not found:
        problem = f"no {MAIN} there: 0 files scanned"
        raise InputError("PATH", path, problem, "name a skill, a folder of skills or a repository")
    return found


def _repository(real: Path) -> Path:
    """Where repository-relative paths start: at ``.git``, else above ``skills``, else here."""
    lineage = (real, *real.parents)
    for folder in lineage[:MAX_DEPTH]:
        if (folder / ".git").exists():
            return folder
    for folder in lineage[:3]:
        if folder.name == "skills":
            holder = folder.parent
            return holder.parent if holder.name in (".claude", ".agents") else holder
    return real


def _mains(root: Path) -> Iterator[Path]:
    for folder, names in _folders(root):
        exact = [name for name in names if name == MAIN]
        for name in exact or [name for name in names if name.lower() == MAIN.lower()]:
            yield folder / name


def _folders(root: Path) -> Iterator[tuple[Path, list[str]]]:
    """Every folder and the names of its files, top down; linked folders are not entered."""
    for where, folders, files in os.walk(root, followlinks=False):
        depth = len(Path(where).relative_to(root).parts)
        folders[:] = sorted(name for name in folders if _enter(where, name, depth))
        yield Path(where), sorted(files)


def _enter(where: str, name: str, depth: int) -> bool:
    folder = Path(where) / name
    unwanted = SKIPPED.fullmatch(name) is not None or depth >= MAX_DEPTH
    return not unwanted and not (folder / "pyvenv.cfg").exists()


def read_skill(main: Path, repository: Path) -> Skill:
    """Read one skill: all its text files, except those of skills nested in it.

    What a file is called does not matter: text is what can be decoded.

    Raises:
        InputError: It has more files than any skill needs.
    """
    folder = main.parent
    texts: list[SourceFile] = []
    unread: list[Finding] = []
    names = tuple(_names(folder))
    for name in names:
        path = folder / name
        shown = shown_path(path)
        problem = _outside(path, repository)
        if problem:
            unread.append(Finding("RP209", shown, 1, problem))
            continue
        raw = _read(path)
        text = None if raw is None else _decoded(raw)
        if text is not None:
            texts.append(source_file(name, shown, text))
        elif raw is None or not _is_binary(raw):
            why = f"larger than {MAX_BYTES:,} bytes, not UTF-8 or not readable: not checked"
            unread.append(Finding("RP208", shown, 1, why))
    empty = SourceFile(main.name, shown_path(main), "")
    read = next((text for text in texts if text.name == main.name), empty)
    head = parse_frontmatter(read.text)
    return Skill(folder, repository, read, head, tuple(texts), names, tuple(unread))


def _names(folder: Path) -> Iterator[str]:
    count = 0
    for where, files in _folders(folder):
        inner = where != folder and MAIN in files
        for name in () if inner else files:
            count += 1
            if count > MAX_FILES_PER_SKILL:
                problem = f"more than {MAX_FILES_PER_SKILL:,} files in one skill"
                raise InputError("PATH", folder, problem, "lint a smaller folder")
            yield (where / name).relative_to(folder).as_posix()


def _outside(path: Path, repository: Path) -> str:
    try:
        target = path.resolve(strict=True)
    except (OSError, RuntimeError):
        return "is a link that leads nowhere" if path.is_symlink() else ""
    return "" if target.is_relative_to(repository) else "is a link that leads out of the repository"


def _read(path: Path) -> bytes | None:
    """The first bytes, one more than may be checked; ``None`` where they cannot be read.

    A device or pipe is never opened.
    """
    try:
        if not path.is_file():
            return None
        with path.open("rb") as stream:
            return stream.read(MAX_BYTES + 1)
    except OSError:
        return None


def _decoded(raw: bytes) -> str | None:
    try:
        return None if len(raw) > MAX_BYTES else raw.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _is_binary(raw: bytes) -> bool:
    """Whether there is no text in it; text of 8 or 16 bits a character is text."""
    wide = raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return not wide and b"\0" in raw and looks_binary(raw)


def shown_path(path: Path) -> str:
    """Relative to the working directory where inside it, with every character visible."""
    here = Path.cwd().resolve()
    inside = path.is_relative_to(here)
    return showable((path.relative_to(here) if inside else path).as_posix(), 500)
