"""Escapes text of a card for Markdown, in a cell of a table or a line of a list.

The text can be anything. It must not end its cell, line or block, and must not hide anything from
the reader. Apart from that, the source stays as readable as possible, because assistants read it.
Balanced backticks make code as usual.
"""

from __future__ import annotations

import re
from urllib.parse import quote

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
_URL_SAFE = "/:#@!$'*+,;=~-._%?"


class Safe(str):
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


def inline(text: str) -> Safe:
    """Escape text within a line."""
    line, parts, end = visible(text), [], 0
    for match in _CODE.finditer(line):
        if _COMMENT_ENDS.search(match[1]):
            continue
        parts += [_escaped(line, end, match.start()), code(match[1].strip())]
        end = match.end()
    parts.append(_escaped(line, end, len(line)))
    return Safe("".join(parts))


def opening(text: str) -> Safe:
    """Escape text at the start of a list's line, where more characters have a meaning."""
    safe = inline(text)
    match = _OPENING.match(safe)
    if match is None:
        return safe
    at = match.end() if match["number"] else 0
    return Safe(f"{safe[:at]}\\{safe[at:]}")


def code(text: str) -> Safe:
    """Return a code span that shows the text including spaces, also in a table."""
    line = _shown(_FOLDED.sub(" ", text))
    fence = "`" * (1 + max(map(len, _BACKTICKS.findall(line)), default=0))
    # Markdown removes one space from both ends if both are spaces.
    padded = "`" in line[:1] + line[-1:] or (line[:1] == line[-1:] == " " and line.strip())
    pad = " " if padded else ""
    piped = line.replace("|", "\\|")
    return Safe(f"{fence}{pad}{piped}{pad}{fence}")


def link(text: str, url: str) -> Safe:
    """Return a link with escaped text and target."""
    return Safe(f"[{_PUNCTUATION.sub(_BACKSLASH, visible(text))}]({quote(url, safe=_URL_SAFE)})")


def joined(separator: str, parts: list[Safe]) -> Safe:
    """Join finished pieces with a separator."""
    return Safe(separator.join(parts))


def fence_for(text: str) -> Safe:
    """Return more backticks than the text has in a row."""
    return Safe("`" * max(3, 1 + max(map(len, _BACKTICKS.findall(text)), default=0)))


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
