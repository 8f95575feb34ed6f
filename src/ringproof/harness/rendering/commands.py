"""Formats a card's command as the lines of a code block."""

from __future__ import annotations

import re

from ringproof.harness.rendering.escaping import Safe, visible

WIDTH = 96
_INDENT = "  "
# A word with its quoted parts. A command with an unbalanced quote is not changed.
_WORDS = re.compile(r"(?:[^\s'\"\\]|\\.|'[^']*'|\"(?:[^\"\\]|\\.)*\")+")


def command_lines(run: str) -> tuple[Safe, ...]:
    """Return the lines. A long command of one line is continued with backslashes between words.

    Commands of several lines are not changed. `escaping.fence_for` makes sure that they cannot
    close the code block.
    """
    lines = tuple(_seen(line) for line in run.splitlines())
    if len(lines) != 1 or len(lines[0]) <= WIDTH:
        return tuple(Safe(line) for line in lines)
    words = _WORDS.findall(lines[0])
    rest = _WORDS.sub("", lines[0])
    if rest.strip() or any(word.startswith("#") for word in words):
        return (Safe(lines[0]),)
    return tuple(Safe(line) for line in _wrapped(words))


def _seen(line: str) -> str:
    """Return a line with its indentation, in which every character is visible."""
    indent = line[: len(line) - len(line.lstrip(" "))]
    return indent + visible(line)


def _wrapped(words: list[str]) -> list[str]:
    lines = [words[0]]
    for word in words[1:]:
        if len(lines[-1]) + 1 + len(word) + len(" \\") > WIDTH:
            lines[-1] += " \\"
            lines.append(f"{_INDENT}{word}")
        else:
            lines[-1] += f" {word}"
    return lines
