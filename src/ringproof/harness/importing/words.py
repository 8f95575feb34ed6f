"""Finds identifiers and literals, in quoted code and in prose, that an anchor can expect."""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Iterable, Sequence

from ringproof.harness.code.definitions import Definition

MAX_EXPECTED = 6

_NAME = re.compile(r"[A-Za-z_]\w{2,}(?:\.[A-Za-z_]\w*)*")
_STRING = re.compile(
    r"(?P<long>\"\"\"|''')(?P<text>.*?)(?:(?P=long)|\Z)"
    r"|#[^\n]*|\"(?P<double>(?:\\.|[^\"\\\n])*)\"|'(?P<single>(?:\\.|[^'\\\n])*)'",
    re.DOTALL,
)
_FIELD = re.compile(r"\{[^}]*\}|\\.|\n")
_LITERAL_LENGTHS = range(4, 101)
_OPTION = re.compile(r"(?<![\w-])--[A-Za-z][\w-]+")
_FILE = re.compile(r"\S+\.(?:py|md|yaml|yml|sh|json|toml)\b(?::\d+(?:-\d+)?)?")
_TELLING = re.compile(r"\w_\w|[a-z][A-Z]|\d[A-Z]|[A-Z]{2}.*[a-z]")
_COMMON = frozenset((*keyword.kwlist, *dir(builtins), "self", "cls", "args", "kwargs"))


def of_code(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the longest literal part of each string, then names, without comments."""
    text = "\n".join(lines)
    strings = [
        "".join(match.group("text", "double", "single")[at] or "" for at in range(3))
        for match in _STRING.finditer(text)
    ]
    literals = [_telling(max(_FIELD.split(string), key=len)) for string in strings]
    names = [name for name in _NAME.findall(_STRING.sub(" ", text)) if name not in _COMMON]
    kept = [literal for literal in literals if len(literal) in _LITERAL_LENGTHS]
    return tuple(dict.fromkeys((*kept, *names)))


def _telling(text: str) -> str:
    """Return the beginning of a literal: its first sentence, or as many words as fit."""
    first = " ".join(text.split()).partition(". ")[0]
    if len(first) <= _LITERAL_LENGTHS[-1]:
        return first
    return first[: _LITERAL_LENGTHS[-1]].rpartition(" ")[0]


def of_prose(text: str) -> tuple[str, ...]:
    """Return words that can only be code: ``snake_case``, ``CamelCase``, ``--option``."""
    plain = _FILE.sub(" ", text)
    names = [name for name in _NAME.findall(plain) if _TELLING.search(name)]
    last = [name.rsplit(".", 1)[-1] for name in names]
    return tuple(dict.fromkeys((*_OPTION.findall(plain), *names, *last)))


def inside(symbol: Definition, wanted: Iterable[str], source: str) -> tuple[str, ...]:
    """Return the rarest words that occur inside a symbol, in their order."""
    candidates = [word for word in wanted if len(word.split()) and len(word) <= 200]
    lacking = set(symbol.missing(candidates))
    there = [word for word in candidates if word not in lacking]
    rare = sorted(there, key=lambda word: (source.count(word), -len(word)))[:MAX_EXPECTED]
    return tuple(word for word in there if word in rare)
