"""Reads a skill folder for import: the card with spellings and comments, and the documents."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ruamel.yaml import YAML

from ringproof.cards.document import Location, YamlDocument, decoded, read_document
from ringproof.cards.loading import CARD_FILE
from ringproof.errors import InputError
from ringproof.fences.check import NOT_ENTERED
from ringproof.files import looks_binary, read_input
from ringproof.lint.skill import parse_frontmatter

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
    main = _text(folder / SKILL_FILE).removeprefix("\ufeff").replace("\r\n", "\n")
    head = parse_frontmatter(main).data
    name, description = (
        value if isinstance(value := head.get(key), str) else "" for key in ("name", "description")
    )
    if (folder / CARD_FILE).is_dir():
        problem = "is a folder"
        raise InputError(str(folder / CARD_FILE), None, problem, "remove it or write a card")
    others = tuple(file for file in files if file != CARD_FILE)
    if len(others) == len(files):
        return SkillSource(folder, {}, False, {}, (), others, left_out, name, description)
    document = read_document(folder / CARD_FILE)
    if not isinstance(document.data, dict):
        problem, remedy = "is not a mapping", "write `key: value` lines"
        raise InputError(f"{document.path}:1", None, problem, remedy)
    comments = _comments(document.path.read_text(encoding="utf-8"), document)
    card, spelling = document.data, document.spelling
    return SkillSource(folder, card, True, spelling, comments, others, left_out, name, description)


def _files(folder: Path) -> tuple[list[str], tuple[str, ...]]:
    """List regular files and those that are left out, relative and sorted."""
    files: list[str] = []
    left_out: list[str] = []
    size = 0
    pending = [folder]
    while pending:
        place = pending.pop()
        try:
            entries = list(place.iterdir())
        except OSError as error:
            problem = f"cannot be read: {error.strerror}"
            raise InputError(_FIELD, place, problem, "check its permissions") from error
        for entry in entries:
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


def _text(file: Path) -> str:
    raw = read_input(file, MAX_FOLDER_BYTES, field=_FIELD, remedy="check its permissions")
    if not raw.strip():
        raise InputError(str(file), None, "is empty", "write the skill into it")
    text = decoded(file, raw)
    if looks_binary(raw):
        raise InputError(str(file), None, "is binary, not text", "write the skill into it")
    return text


def _comments(text: str, document: YamlDocument) -> tuple[Comment, ...]:
    """Return the card's comments. Comments on consecutive lines of their own are joined."""
    found: list[Comment] = []
    last = 0
    for line, said, beside in _raw_comments(text):
        if found and not beside and line == last + 1:
            found[-1] = replace(found[-1], text=f"{found[-1].text} {said}")
        else:
            found.append(Comment(line, said, _place(document, line, beside)))
        last = -1 if beside else line
    return tuple(found)


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
