"""Escapes text of a card for Markdown: in a cell of a table, a line of a list or a code block.

The text can be anything. It must not end its cell, line or block, and must not hide anything from
the reader. Apart from that, the source stays as readable as possible, because assistants read it.
Balanced backticks make code as usual.
"""

from __future__ import annotations

import re
from urllib.parse import quote

WIDTH = 96
"""Length at which a command is continued on the next line."""

# Characters that are printable according to Unicode but invisible.
_BLANK = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
_CODE = re.compile(r"(?<!`)`([^`]*[^`\s][^`]*)`(?!`)")
_COMMENT_ENDS = re.compile("<!--|--!?>")
_SPECIAL = re.compile(
    r"(?P<always>[\\`|~])"
    r"|(?P<tag><(?=[A-Za-z/!?]))"
    r"|(?P<arrow>(?<=--)>|(?<=--!)>)"
    r"|(?P<entity>&(?=#?\w+;))"
    r"|(?P<star>\*)"
    r"|(?P<underscores>_+)"
    r"|(?P<link>\](?=[(\[:])|!(?=\[)|\[(?=\^)|\{(?=:))"
)
# Text that would start a heading, a list, a quote or a definition in a list's line.
_OPENING = re.compile(r"[-#>+=:\[]|(?P<number>\d{1,9})(?=[.)])")
_PUNCTUATION = re.compile(r"[\\`*_\[\]<>|~!&{]")
_BACKSLASH = r"\\\g<0>"
_FOLDED = re.compile(r"\s*[\r\n]\s*")
_BACKTICKS = re.compile("`+")
# A word with its quoted parts. A command with an unbalanced quote is not changed.
_WORDS = re.compile(r"(?:[^\s'\"\\]|\\.|'[^']*'|\"(?:[^\"\\]|\\.)*\")+")
_URL_SAFE = "/:#@!$'*+,;=~-._%?"


class SafeMarkdown(str):
    """Finished Markdown. Templates escape everything else."""

    __slots__ = ()


def visible(text: str) -> str:
    """Return text on one line, with invisible characters written as ``(U+200B)``."""
    return _shown(" ".join(text.split()))


def _shown(line: str) -> str:
    return "".join(
        letter if letter.isprintable() and not _BLANK.match(letter) else f"(U+{ord(letter):04X})"
        for letter in line
    )


def inline(text: str) -> SafeMarkdown:
    """Escape text within a line."""
    line, parts, end = visible(text), [], 0
    for match in _CODE.finditer(line):
        if _COMMENT_ENDS.search(match[1]):
            continue
        parts += [_escaped(line, end, match.start()), code(match[1].strip())]
        end = match.end()
    parts.append(_escaped(line, end, len(line)))
    return SafeMarkdown("".join(parts))


def opening(text: str) -> SafeMarkdown:
    """Escape text at the start of a list's line, where more characters have a meaning."""
    safe = inline(text)
    match = _OPENING.match(safe)
    if match is None:
        return safe
    at = match.end() if match["number"] else 0
    return SafeMarkdown(f"{safe[:at]}\\{safe[at:]}")


def code(text: str) -> SafeMarkdown:
    """Return a code span that shows the text including spaces, also in a table."""
    line = _shown(_FOLDED.sub(" ", text))
    fence = "`" * (1 + max(map(len, _BACKTICKS.findall(line)), default=0))
    # Markdown removes one space from both ends if both are spaces.
    padded = "`" in line[:1] + line[-1:] or (line[:1] == line[-1:] == " " and line.strip())
    pad = " " if padded else ""
    piped = line.replace("|", "\\|")
    return SafeMarkdown(f"{fence}{pad}{piped}{pad}{fence}")


def link(text: str, url: str) -> SafeMarkdown:
    """Return a link with escaped text and target."""
    return SafeMarkdown(
        f"[{_PUNCTUATION.sub(_BACKSLASH, visible(text))}]({quote(url, safe=_URL_SAFE)})"
    )


def finished(value: object) -> SafeMarkdown:
    """Return finished Markdown as it is, and anything else escaped within a line."""
    return value if isinstance(value, SafeMarkdown) else inline(str(value))


def fence(run: str) -> SafeMarkdown:
    """Return a code block, which the command cannot close."""
    ticks = "`" * max(3, 1 + max(map(len, _BACKTICKS.findall(run)), default=0))
    return SafeMarkdown("\n".join((f"{ticks}bash", *command_lines(run), ticks)))


def command_lines(run: str) -> tuple[str, ...]:
    """Return the lines. A long command of one line is continued with backslashes between words.

    Commands of several lines are not changed.
    """
    indents = [line[: len(line) - len(line.lstrip(" "))] for line in run.splitlines()]
    lines = [a + visible(line) for a, line in zip(indents, run.splitlines(), strict=True)]
    if len(lines) != 1 or len(lines[0]) <= WIDTH:
        return tuple(lines)
    words = _WORDS.findall(lines[0])
    if _WORDS.sub("", lines[0]).strip() or any(word.startswith("#") for word in words):
        return tuple(lines)
    made = [words[0]]
    for word in words[1:]:
        if len(made[-1]) + 1 + len(word) + len(" \\") > WIDTH:
            made[-1] += " \\"
            made.append(f"  {word}")
        else:
            made[-1] += f" {word}"
    return tuple(made)


def _escaped(line: str, start: int, end: int) -> str:
    """Escape a range of text outside of code, considering the characters around it."""
    return _SPECIAL.sub(lambda match: _replacement(match, line, start), line[start:end])


def _replacement(match: re.Match[str], line: str, start: int) -> str:
    found = match[0]
    if match["tag"]:
        return "&lt;"
    if match["arrow"]:
        return "&gt;"
    if match["entity"]:
        return "&amp;"
    before = (
        line[start + match.start() - 1 : start + match.start()] if start + match.start() else ""
    )
    after = line[start + match.end() : start + match.end() + 1]
    if match["star"] and before == after == " ":
        return found
    if match["underscores"] and before.isalnum() and after.isalnum():
        return found
    return "".join(f"\\{letter}" for letter in found)
