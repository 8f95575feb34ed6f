"""Reads a skill folder for import: the card with spellings and comments, and the documents."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from ruamel.yaml import YAML
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from ringproof.errors import InputError
from ringproof.files import looks_binary, read_input
from ringproof.harness.cards.document import Location, YamlDocument, read_document
from ringproof.harness.cards.loading import CARD_FILE
from ringproof.harness.fences.check import NOT_ENTERED
from ringproof.harness.lint.skill import parse_frontmatter

SKILL_FILE = "SKILL.md"
MAX_FILES = 1_000
MAX_FOLDER_BYTES = 50_000_000

_FIELD = "PATH"
_COMMENT = re.compile(r"(?m)(?:^|(?<=\s))#(.*)$")


@dataclass(frozen=True)
class Comment:
    """A comment in the card.

    Attributes:
        line: First line of the comment, from 1.
        location: Location of the value beside or below it; ``()`` at the end of the file.
    """

    line: int
    text: str
    location: Location


@dataclass(frozen=True)
class SkillSource:
    """Content of a skill folder.

    Attributes:
        card: Data of the card; empty if the skill has none.
        has_card: Whether there is a card.
        spelling: Every scalar of the card as written, by location.
        files: Paths of all other files, relative to the folder, sorted.
        left_out: Paths of links and of other things that are neither files nor folders.
        name, description: Values in the frontmatter of ``SKILL.md``; empty if they are missing.
    """

    folder: Path
    card: Mapping[str, object]
    has_card: bool
    spelling: Mapping[Location, str]
    comments: tuple[Comment, ...]
    files: tuple[str, ...]
    left_out: tuple[str, ...]
    name: str
    description: str

    def text(self, location: Location, value: object) -> str:
        """Return a scalar as the card spells it, without quotes."""
        if value is None:
            return "null"
        return value.strip() if isinstance(value, str) else self.spelling.get(location, str(value))


def read_source(folder: Path) -> SkillSource:
    """Read a skill without following links or building objects.

    Raises:
        InputError: The folder is not a skill, its card cannot be read, or it is too large.
    """
    if not folder.is_dir():
        problem = "is a file" if folder.exists() else "no such folder"
        raise InputError(_FIELD, folder, problem, "name the folder of a skill")
    files, left_out = _files(folder)
    if SKILL_FILE not in files:
        raise InputError(
            _FIELD, folder, f"is not a skill: it has no {SKILL_FILE}", "name a skill's folder"
        )
    name, description = _head(folder / SKILL_FILE)
    has_card = CARD_FILE in files
    if (folder / CARD_FILE).is_dir():
        problem = "is a folder"
        raise InputError(str(folder / CARD_FILE), None, problem, "remove it or write a card")
    document = read_document(folder / CARD_FILE) if has_card else None
    card: Mapping[str, object] = MappingProxyType({})
    spelling: Mapping[Location, str] = MappingProxyType({})
    comments: tuple[Comment, ...] = ()
    if document is not None:
        if not isinstance(document.data, dict):
            problem, remedy = "is not a mapping", "write `key: value` lines"
            raise InputError(f"{document.path}:1", None, problem, remedy)
        text = document.path.read_text(encoding="utf-8")
        card = MappingProxyType(document.data)
        spelling = MappingProxyType(dict(_spelled(text)))
        comments = tuple(_comments(text, document))
    others = tuple(file for file in files if file != CARD_FILE)
    return SkillSource(
        folder, card, has_card, spelling, comments, others, left_out, name, description
    )


def _files(folder: Path) -> tuple[list[str], tuple[str, ...]]:
    """List regular files and those that are left out, relative and sorted."""
    files: list[str] = []
    left_out: list[str] = []
    size = 0
    pending = [folder]
    while pending:
        for entry in _entries(pending.pop()):
            name = entry.relative_to(folder).as_posix()
            if entry.is_symlink() or entry.name in NOT_ENTERED:
                left_out.append(name)
            elif entry.is_dir():
                pending.append(entry)
            elif entry.is_file():
                files.append(name)
                size += entry.stat().st_size
            else:
                left_out.append(name)
            if len(files) > MAX_FILES or size > MAX_FOLDER_BYTES:
                problem = f"holds more than {MAX_FILES:,} files or {MAX_FOLDER_BYTES:,} bytes"
                raise InputError(_FIELD, folder, problem, "name the folder of one skill")
    return sorted(files), tuple(sorted(left_out))


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
        raise InputError(_FIELD, folder, problem, "check its permissions") from error


def _head(file: Path) -> tuple[str, str]:
    text = _text(file)
    data = parse_frontmatter(text.removeprefix("\ufeff").replace("\r\n", "\n")).data
    name, description = data.get("name"), data.get("description")
    return (
        name if isinstance(name, str) else "",
        description if isinstance(description, str) else "",
    )


def _text(file: Path) -> str:
    raw = read_input(file, MAX_FOLDER_BYTES, field=_FIELD, remedy="check its permissions")
    if not raw.strip():
        raise InputError(str(file), None, "is empty", "write the skill into it")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InputError(f"{file}:{line}", None, "not UTF-8 text", "save it as UTF-8") from error
    if looks_binary(raw):
        raise InputError(str(file), None, "is binary, not text", "write the skill into it")
    return text


def _spelled(text: str) -> Iterator[tuple[Location, str]]:
    """Yield scalars by location from text that `read_document` accepted."""
    root = YAML(typ="safe", pure=True).compose(text)
    if root is not None:
        yield from _below(root, ())


def _below(node: Node, location: Location) -> Iterator[tuple[Location, str]]:
    if isinstance(node, ScalarNode):
        yield location, str(node.value)
    elif isinstance(node, SequenceNode):
        for index, item in enumerate(node.value):
            yield from _below(item, (*location, index))
    elif isinstance(node, MappingNode):
        for key, item in node.value:
            yield from _below(item, (*location, str(key.value)))


def _comments(text: str, document: YamlDocument) -> Iterator[Comment]:
    """Yield the card's comments. Comments on consecutive lines of their own are joined."""
    pending: Comment | None = None
    last = 0
    for line, said, beside in _raw_comments(text):
        if pending is not None and not beside and line == last + 1:
            pending = Comment(pending.line, f"{pending.text} {said}", pending.location)
        else:
            if pending is not None:
                yield pending
            pending = Comment(line, said, _place(document, line, beside))
        last = line if not beside else -1
    if pending is not None:
        yield pending


def _raw_comments(text: str) -> Iterator[tuple[int, str, bool]]:
    """Yield line, text, and whether a value is before the comment on the line."""
    lines = text.split("\n")
    for start, end in _gaps(text):
        for match in _COMMENT.finditer(text, start, end):
            number = text.count("\n", 0, match.start())
            said = match[1].strip().lstrip("#").strip()
            if any(map(str.isalnum, said)):
                yield number + 1, said, not lines[number].lstrip().startswith("#")


def _gaps(text: str) -> Iterator[tuple[int, int]]:
    """Yield the ranges between tokens, in which a ``#`` begins a comment."""
    end = 0
    for token in YAML(typ="safe", pure=True).scan(text):
        if token.start_mark.index > end:
            yield end, token.start_mark.index
        end = max(end, token.end_mark.index)


def _place(document: YamlDocument, line: int, beside: bool) -> Location:
    if beside:
        here = [place for place, number in document.lines.items() if number == line]
        return max(here, key=len, default=())
    below = [(number, len(place), place) for place, number in document.lines.items()]
    later = [item for item in below if item[0] > line and item[2]]
    return min(later, key=lambda item: item[:2])[2] if later else ()
