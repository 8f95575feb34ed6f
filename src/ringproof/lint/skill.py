"""Find skills below a path and read them, within limits and without leaving the root."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from ringproof.cards.document import YamlProblem, parse_yaml
from ringproof.errors import InputError, shown
from ringproof.files import looks_binary, walk_folders
from ringproof.findings.finding import Finding
from ringproof.findings.printable import showable
from ringproof.lint.source import FRONTMATTER, DocumentPiece, SourceFile, parsed

MAIN = "SKILL.md"
MAX_BYTES = 1_000_000
MAX_DEPTH = 16
MAX_FILES_PER_SKILL = 5_000
MAX_HEAD_CHARACTERS = 64_000
MAX_HEAD_NESTING = 8
_WIDE = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
"""How text of 16 or 32 bits a character begins, which is not read."""
_SKIPPED = re.compile(
    r"\.git|\.hg|\.svn|node_modules|site-packages|__pycache__|\.?venv|\.tox|\.nox"
    r"|\.mypy_cache|\.pytest_cache|\.ruff_cache|.*\.egg-info"
)


@dataclass(frozen=True)
class Frontmatter:
    """The YAML head of a ``SKILL.md``.

    Attributes:
        lines: Key to its 1-based line.
        problem: Why it cannot be used, and ``problem_line`` where; empty when it can.
    """

    data: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    lines: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    problem: str = ""
    problem_line: int = 1


@dataclass(frozen=True)
class Skill:
    """One skill folder, read.

    Attributes:
        folder: Real path.
        repository: The folder that repository-relative references start from.
        unread: Findings about files that could not be read, and about links that lead outside.
    """

    folder: Path
    repository: Path
    main: SourceFile
    frontmatter: Frontmatter
    texts: tuple[SourceFile, ...]
    names: tuple[str, ...]
    unread: tuple[Finding, ...] = ()

    def fences(self, languages: frozenset[str]) -> Iterator[tuple[SourceFile, DocumentPiece]]:
        """Yield the fenced blocks in some languages, each with the file that it stands in."""
        for source in self.texts:
            found = (fence for fence in source.of("fence") if fence.language in languages)
            yield from ((source, fence) for fence in found)

    def of_key(self, rule: str, key: str, message: str) -> Finding:
        """Return a finding at a key of the frontmatter."""
        return self.main.finding(rule, self.frontmatter.lines.get(key, 1), message)


def parse_frontmatter(text: str) -> Frontmatter:
    """Read the head by the rules of YAML; a problem of it is kept in ``problem``."""
    if text.startswith("\ufeff"):
        return Frontmatter(problem="a byte order mark stands before ---; save without it")
    if not text.startswith("---"):
        return Frontmatter(problem="the file does not start with ---")
    head = FRONTMATTER.match(text)
    if head is None:
        return Frontmatter(problem="the frontmatter is not closed by a line of ---")
    if len(head["yaml"]) > MAX_HEAD_CHARACTERS:
        return Frontmatter(problem=f"longer than {MAX_HEAD_CHARACTERS:,} characters")
    try:
        data, lines = parse_yaml(head["yaml"], max_depth=MAX_HEAD_NESTING, refuse_control=False)
    except YamlProblem as error:
        remedy = f"; {error.remedy}" if error.refused else ""
        why = showable(error.problem) + remedy
        return Frontmatter(problem=why, problem_line=(error.line or 1) + 1)
    if not isinstance(data, dict):
        return Frontmatter(problem="is not a mapping; write `key: value` lines", problem_line=2)
    places = {key: lines[(key,)] + 1 for key in data}
    return Frontmatter(MappingProxyType(data), MappingProxyType(places))


def find_skills(path: Path) -> tuple[tuple[Path, Path], ...]:
    """Return the skills at or below a path, sorted: (real ``SKILL.md``, repository folder).

    Raises:
        InputError: The path does not exist, or holds no skill: nothing checked is not a pass.
    """
    try:
        real = path.resolve(strict=True)
    except (OSError, RuntimeError):
        raise InputError("PATH", f"{shown(path)} does not exist; name a skill") from None
    if real.is_file() and real.name.lower() == MAIN.lower():
        real = real.parent
    repository = _repository(real)
    found = []
    for folder, names, _ in walk_folders(real, _is_skipped, MAX_DEPTH):
        exact = [MAIN] if MAIN in names else []
        for name in exact or [name for name in names if name.lower() == MAIN.lower()]:
            found.append((folder / name, repository))
    if not found:
        problem = f"{shown(path)} holds no {MAIN} (0 files scanned)"
        remedy = "name a skill, a folder of skills or a repository"
        raise InputError("PATH", f"{problem}; {remedy}")
    return tuple(found)


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


def _is_skipped(folder: Path) -> bool:
    return bool(_SKIPPED.fullmatch(folder.name)) or (folder / "pyvenv.cfg").exists()


def read_skill(main: Path, repository: Path) -> Skill:
    """Read one skill: all its text files, except those of skills nested in it.

    The suffix of a file does not matter: text is what can be decoded.

    Raises:
        InputError: It has more files than any skill needs.
    """
    folder = main.parent
    files: list[Path] = []
    unread: list[Finding] = []
    for where, found, linked in walk_folders(folder, _is_skipped, MAX_DEPTH):
        if where == folder or MAIN not in found:
            files += [where / name for name in found]
            for path in linked:
                unread += _leading_out(path, folder, repository)
        if len(files) + len(unread) > MAX_FILES_PER_SKILL:
            problem = f"{shown(folder)} has more than {MAX_FILES_PER_SKILL:,} files"
            raise InputError("PATH", f"{problem}; lint a smaller folder")
    names = tuple(path.relative_to(folder).as_posix() for path in files)
    texts: list[SourceFile] = []
    for name, path in zip(names, files, strict=True):
        leading = list(_leading_out(path, folder, repository))
        unread += leading
        leaves = any(item.rule == "RP209" for item in leading)
        content = None if leaves else _content(path)
        if isinstance(content, Finding):
            unread.append(content)
        elif content is not None:
            texts.append(parsed(name, shown_path(path), content))
    empty = SourceFile(main.name, shown_path(main), "")
    read = next((text for text in texts if text.name == main.name), empty)
    head = parse_frontmatter(read.text)
    return Skill(folder, repository, read, head, tuple(texts), names, tuple(unread))


def _leading_out(path: Path, folder: Path, repository: Path) -> Iterator[Finding]:
    """A link to nowhere, to outside of the repository, or to outside of the skill."""
    if not path.is_symlink():
        return
    shown = shown_path(path)
    try:
        target = path.resolve(strict=True)
    except (OSError, RuntimeError):
        yield Finding("RP209", shown, 1, "is a link that leads nowhere")
        return
    if not target.is_relative_to(repository):
        yield Finding("RP209", shown, 1, f"is a link that leads {out_of(repository, folder)}")
    elif not target.is_relative_to(folder):
        yield Finding("RP211", shown, 1, f"is a link that leads {out_of(folder, folder)}")


def out_of(left: Path, skill: Path) -> str:
    """Say which folder a link leaves, why that is a fault, and what to do."""
    what = "the skill's folder" if left == skill else "the repository"
    why = "what it names is not installed with the skill"
    return f"out of {what}, and {why}; copy it into the skill, or link to its URL"


def _content(path: Path) -> str | Finding | None:
    """Return a file's text, ``None`` for binary data, or a finding for what cannot be checked.

    A device or a pipe is never opened.
    """
    raw = b""
    with suppress(OSError, UnicodeDecodeError):
        if path.is_file():
            with path.open("rb") as stream:
                raw = stream.read(MAX_BYTES + 1)
            if is_opaque(path.name, raw[:64]):
                why = "is a program, a pickle or an archive, which nobody can review"
                return Finding("RP411", shown_path(path), 1, why)
            if len(raw) <= MAX_BYTES:
                return raw.decode("utf-8")
    if b"\0" in raw and looks_binary(raw) and not raw.startswith(_WIDE):
        return None
    why = f"larger than {MAX_BYTES:,} bytes, not UTF-8 or not readable: not checked"
    return Finding("RP208", shown_path(path), 1, why)


_PROGRAM_STARTS = (
    b"\x7fELF", b"MZ", b"\0asm", b"\xca\xfe\xba\xbe", b"\xfe\xed\xfa\xce", b"\xfe\xed\xfa\xcf",
    b"\xce\xfa\xed\xfe", b"\xcf\xfa\xed\xfe",
)  # fmt: skip
_CODE_SUFFIXES = re.compile(
    r"\.(?:py[cod]|so|dll|dylib|exe|class|[jw]ar|whl|egg|pkl|pickle|joblib|pth?|ckpt"
    r"|zip|tar|t?gz|bz2|xz|7z|rar|zst)",
    re.IGNORECASE,
)


def is_opaque(name: str, head: bytes) -> bool:
    """Whether a file is a program, a pickle or an archive, which nobody can review as text."""
    binary = b"\0" in head or not head.isascii()
    named = _CODE_SUFFIXES.fullmatch(PurePosixPath(name).suffix)
    return binary and (named is not None or head.startswith(_PROGRAM_STARTS))


def shown_path(path: Path) -> str:
    """Return a path relative to the working directory, with every character visible."""
    here = Path.cwd().resolve()
    inside = path.is_relative_to(here)
    return showable((path.relative_to(here) if inside else path).as_posix(), 500)
