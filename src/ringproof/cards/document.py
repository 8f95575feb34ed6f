"""Reads untrusted YAML as plain data, with the line of every value.

The reader uses ruamel.yaml's parse events, so no other objects are constructed. It refuses tags,
anchors and aliases (which allow an alias bomb), duplicate keys, several documents, and files beyond
limits of bytes and depth. Scalars follow the YAML 1.2 core schema; dates stay text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
)

from ringproof.errors import InputError
from ringproof.files import read_input
from ringproof.garbage import no_collection

MAX_BYTES = 1_000_000
MAX_DEPTH = 16

Location = tuple[str | int, ...]
"""Where a value stands: ``("anchors", 2, "path")``."""

_CONSTANTS: Mapping[str, bool | None] = MappingProxyType(
    {
        **dict.fromkeys(("", "~", "null", "Null", "NULL")),
        **dict.fromkeys(("true", "True", "TRUE"), True),
        **dict.fromkeys(("false", "False", "FALSE"), False),
    }
)
# Integers have at most 18 digits; longer ones are kept as text.
_INTEGER = re.compile(r"[-+]?[0-9]{1,18}|0o[0-7]{1,18}|0x[0-9a-fA-F]{1,15}")
# Escape sequences for terminals, and surrogates, which cannot be written to a file.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
# Short enough that a commit id of digits and an "e" is not read as a number.
_FLOAT = re.compile(
    r"[-+]?((\.[0-9]{1,20}|[0-9]{1,20}\.[0-9]{0,20})([eE][-+]?[0-9]{1,3})?"
    r"|[0-9]{1,20}[eE][-+]?[0-9]{1,3})"
)


@dataclass(frozen=True)
class YamlDocument:
    """A parsed YAML file.

    Attributes:
        lines: Line of every value by location, from 1.
    """

    path: Path
    data: object
    lines: Mapping[Location, int]

    def line(self, location: Location) -> int:
        """Return the line of a location, or of its nearest ancestor that has one."""
        for end in range(len(location), -1, -1):
            if location[:end] in self.lines:
                return self.lines[location[:end]]
        return 1


@dataclass(eq=False)
class YamlProblem(ValueError):
    """YAML that cannot be used.

    Attributes:
        line: Line from 1, or ``None``.
        refused: Whether this reader refuses it, although it may be valid YAML.
    """

    line: int | None
    problem: str
    remedy: str
    refused: bool = True


@no_collection()
def parse_yaml(
    text: str, *, max_depth: int = MAX_DEPTH, refuse_control: bool = True, until: Iterable[str] = ()
) -> tuple[object, dict[Location, int]]:
    """Return the data of one YAML document, and the line of every value.

    Args:
        refuse_control: Whether to refuse control characters in text.
        until: Keys of the document after which the rest is not read.

    Raises:
        YamlProblem: The text is not YAML, or uses something that this reader refuses.
    """
    try:
        events = iter(YAML(typ="safe", pure=True).parse(text))
        builder = _Builder(events, max_depth, refuse_control, frozenset(until))
        return builder.document(), builder.lines
    except YAMLError as error:
        line, problem = syntax_error(error)
        remedy = "correct the syntax there"
        raise YamlProblem(line, f"not valid YAML: {problem}", remedy, refused=False) from error


def syntax_error(error: Exception) -> tuple[int, str]:
    """Return the line, from 1, and the problem that ruamel.yaml found."""
    if not isinstance(error, MarkedYAMLError):
        return 1, " ".join(str(error).split())[:200]
    mark = error.problem_mark or error.context_mark
    return 1 if mark is None else mark.line + 1, str(error.problem or error.context)


def read_document(path: Path, until: Iterable[str] = ()) -> YamlDocument:
    """Parse one YAML file within the limits, ``until`` as in `parse_yaml`.

    Raises:
        InputError: The file is missing, not a regular file, too large, not UTF-8, not YAML, or
            uses something that this reader refuses. The message names file and line.
    """
    if not path.is_file():
        problem = "this is not a regular file" if path.exists() else "there is no such file"
        raise InputError(str(path), f"{problem}; name an existing card.yaml")
    raw = read_input(path, MAX_BYTES, remedy="name a readable card below that size")
    try:
        data, lines = parse_yaml(decoded(path, raw), until=until)
    except YamlProblem as error:
        place = f"{path}:{error.line}" if error.line else str(path)
        raise InputError(place, f"{error.problem}; {error.remedy}") from error
    return YamlDocument(path, data, MappingProxyType(lines))


def decoded(path: Path, raw: bytes) -> str:
    """Return the text of a file.

    Raises:
        InputError: It is not UTF-8. The message names file and line.
    """
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path}:{line}", "the file is not UTF-8; save it as UTF-8") from error


@dataclass
class _Builder:
    """Builds data from the parse events of one file."""

    events: Iterator[Event]
    max_depth: int
    refuse_control: bool
    until: frozenset[str]
    lines: dict[Location, int] = field(default_factory=dict)

    def document(self) -> object:
        data: object = None
        documents = 0
        for event in self.events:
            if isinstance(event, StreamEndEvent):
                break
            if isinstance(event, DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise self._refused(
                        event, "a second YAML document begins here", "keep one document"
                    )
            elif isinstance(event, NodeEvent):
                data = self._value(event, ())
                if self.until:
                    break
        if documents == 0:
            raise YamlProblem(None, "the file is empty", "write the card into it")
        return data

    def _value(self, event: Event, location: Location) -> object:
        self._admit(event, location)
        self.lines[location] = event.start_mark.line + 1
        if isinstance(event, MappingStartEvent):
            return self._mapping(location)
        if isinstance(event, SequenceStartEvent):
            return self._sequence(location)
        if not isinstance(event, ScalarEvent):
            raise self._refused(event, "the text ends too early", "correct the syntax there")
        text = self._text(event)
        return _scalar(text) if event.style is None else text

    def _mapping(self, location: Location) -> dict[str, object]:
        result: dict[str, object] = {}
        for event in self.events:
            if isinstance(event, MappingEndEvent):
                break
            self._admit(event, location)
            if not isinstance(event, ScalarEvent):
                raise self._refused(event, "this key is not plain text", "use a word")
            key = self._text(event)
            if key in result:
                problem = f"the key {key[:80]!r} stands here a second time"
                raise self._refused(event, problem, "merge the two entries")
            inner = (*location, key)
            result[key] = None
            result[key] = self._value(next(self.events), inner)
            # A wrong value has the line of its key, and a missing key that of its mapping.
            self.lines[inner] = event.start_mark.line + 1
            if not location and self.until and self.until <= result.keys():
                break
        return result

    def _sequence(self, location: Location) -> list[object]:
        result: list[object] = []
        for event in self.events:
            if isinstance(event, SequenceEndEvent):
                break
            result.append(self._value(event, (*location, len(result))))
        return result

    def _text(self, event: ScalarEvent) -> str:
        text = str(event.value)
        odd = _CONTROL.search(text) if self.refuse_control else None
        if odd is not None:
            problem = f"the text has the control character U+{ord(odd[0]):04X}"
            raise self._refused(event, problem, "remove it")
        return text

    def _admit(self, event: Event, location: Location) -> None:
        """Refuse anchors, aliases, tags and deep nesting."""
        if isinstance(event, AliasEvent) or getattr(event, "anchor", None) is not None:
            raise self._refused(event, "YAML anchors and aliases are refused", "write it out")
        tag = getattr(event, "tag", None)
        if tag is not None:
            raise self._refused(event, f"the tag {str(tag)[:80]} is refused", "remove the tag")
        if len(location) >= self.max_depth:
            problem = f"this is nested deeper than {self.max_depth} levels"
            raise self._refused(event, problem, "flatten it")

    def _refused(self, event: Event, problem: str, remedy: str) -> YamlProblem:
        return YamlProblem(event.start_mark.line + 1, problem, remedy)


def _scalar(text: str) -> object:
    """Return the value of an unquoted scalar under the YAML 1.2 core schema."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INTEGER.fullmatch(text):
        return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text
