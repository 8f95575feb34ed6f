"""RP302: ringproof commands that do not exist, by the command table that the caller hands in."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from ringproof.harness.lint.markdown import Piece
from ringproof.harness.lint.model import Skill
from ringproof.harness.lint.shell import LANGUAGES
from ringproof.harness.reports.model import Finding
from ringproof.harness.reports.printable import showable

_CONTINUATION = re.compile(r"\\\n[ \t]*")
_SEPARATOR = re.compile(r"[;&|()]+")
_WRAPPERS = frozenset(
    ("do", "then", "else", "{", "!", "if", "while", "until", "time", "exec", "env", "uv", "run")
)
_LITERAL = re.compile(r"--?[a-z][a-z0-9-]*")
_WORD = re.compile(r"[a-z][a-z0-9-]*")


@dataclass(frozen=True)
class CommandTable:
    """A command, its options and its subcommands.

    Attributes:
        options: Every spelling: ``--json``, ``-q``.
        subcommands: By name; empty for a command that does the work itself.
    """

    options: frozenset[str] = frozenset()
    subcommands: Mapping[str, CommandTable] = field(default_factory=lambda: MappingProxyType({}))


def check_commands(skill: Skill, table: CommandTable) -> Iterator[Finding]:
    """Every ringproof command in the shell fences."""
    for source, fence in skill.fences(LANGUAGES):
        for line, problem in command_problems(fence, table):
            yield Finding("RP302", source.shown, line, problem)


def command_problems(fence: Piece, table: CommandTable) -> Iterator[tuple[int, str]]:
    """Line and problem of each wrong command."""
    joined = _CONTINUATION.sub(lambda match: " \x00", fence.text)  # \x00 keeps count of lines
    line = fence.line
    for row in joined.split("\n"):
        for words in _commands(row.replace("\x00", "")):
            problem = _problem(words, table)
            if problem:
                yield line, problem
        line += 1 + row.count("\x00")


def _commands(row: str) -> Iterator[list[str]]:
    """The words after each ``ringproof`` (or ``python -m ringproof``) in command position."""
    lexer = shlex.shlex(row.removeprefix("$ "), posix=True, punctuation_chars=";&|()")
    lexer.whitespace_split = True
    try:
        tokens = list(lexer)
    except ValueError:  # not our question: RP301
        return
    commands: list[list[str]] = [[]]
    for token in tokens:
        if _SEPARATOR.fullmatch(token):
            commands.append([])
        else:
            commands[-1].append(token)
    for words in commands:
        start = _start(words)
        if start is not None:
            yield words[start:]


def _start(words: list[str]) -> int | None:
    for index, word in enumerate(words[:12]):
        before = words[:index]
        if word.rsplit("/", 1)[-1] != "ringproof":
            continue
        if before[-1:] == ["-m"] or all("=" in item or item in _WRAPPERS for item in before):
            return index + 1
    return None


def _problem(words: list[str], table: CommandTable) -> str:
    name = "ringproof"
    for word in words:
        option = word.split("=", 1)[0]
        if word == "--":
            break
        if _LITERAL.fullmatch(option) and option not in table.options and option != "--help":
            return f"`{name}` has no option {showable(option, 60)}"
        if option.startswith("-") or not table.subcommands:
            continue
        if word in table.subcommands:
            table, name = table.subcommands[word], f"{name} {word}"
        elif _WORD.fullmatch(word):
            return f"`{name}` has no command {showable(word, 60)!r}"
        else:
            break
    return ""
