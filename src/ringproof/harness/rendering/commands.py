"""A card's command as the lines of a code block: readable, and still the same command."""

from __future__ import annotations

import re

from ringproof.harness.rendering.escaping import Safe, visible

WIDTH = 96
_INDENT = "  "
# A word with its quoted parts; a lone quote makes the command one that is left as it is.
_WORDS = re.compile(r"(?:[^\s'\"\\]|\\.|'[^']*'|\"(?:[^\"\\]|\\.)*\")+")


def command_lines(run: str) -> tuple[Safe, ...]:
    """The lines; a long command of one line is continued with backslashes between its words.

    What the author has laid out in lines stays so. Nothing of it can close the code block: see
    `escaping.fence_for`.
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
    """A line with its indentation, and nothing in it that cannot be seen."""
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
