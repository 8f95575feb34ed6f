"""Text from a card as Markdown that shows that text, in a table's cell or a list's line.

A card's text can be anything. It must neither end the cell, the line or the block it stands in,
nor hide anything from the reader; otherwise the source stays as readable as it can, because
assistants read the source. Balanced backticks in it make code, as everywhere in Markdown.
"""

from __future__ import annotations

import re
from urllib.parse import quote

# Printable by Unicode's categories, and yet nothing is seen.
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
# What would start a heading, a list, a quote or a definition inside of a list's line.
_OPENING = re.compile(r"[-#>+=:\[]|(?P<number>\d{1,9})(?=[.)])")
_PUNCTUATION = re.compile(r"[\\`*_\[\]<>|~!&{]")
_BACKSLASH = r"\\\g<0>"
_FOLDED = re.compile(r"\s*[\r\n]\s*")
_BACKTICKS = re.compile("`+")
_URL_SAFE = "/:#@!$'*+,;=~-._%?"


class Safe(str):
    """Finished Markdown; everything else is escaped when a template puts it somewhere."""

    __slots__ = ()


def visible(text: str) -> str:
    """The text on one line, with every character that cannot be seen as ``(U+200B)``."""
    return _shown(" ".join(text.split()))


def _shown(line: str) -> str:
    return "".join(
        letter if letter.isprintable() and not _BLANK.match(letter) else f"(U+{ord(letter):04X})"
        for letter in line
    )


def inline(text: str) -> Safe:
    """Text within a line: what it says is what is shown."""
    line, parts, end = visible(text), [], 0
    for match in _CODE.finditer(line):
        if _COMMENT_ENDS.search(match[1]):
            continue
        parts += [_escaped(line, end, match.start()), code(match[1].strip())]
        end = match.end()
    parts.append(_escaped(line, end, len(line)))
    return Safe("".join(parts))


def opening(text: str) -> Safe:
    """The same as the first thing of a list's line, where more characters have a meaning."""
    safe = inline(text)
    match = _OPENING.match(safe)
    if match is None:
        return safe
    at = match.end() if match["number"] else 0
    return Safe(f"{safe[:at]}\\{safe[at:]}")


def code(text: str) -> Safe:
    """A code span that shows the text, spaces included; in a table, too."""
    line = _shown(_FOLDED.sub(" ", text))
    fence = "`" * (1 + max(map(len, _BACKTICKS.findall(line)), default=0))
    # Markdown takes one space off both ends, where both are spaces.
    padded = "`" in line[:1] + line[-1:] or (line[:1] == line[-1:] == " " and line.strip())
    pad = " " if padded else ""
    return Safe(f"{fence}{pad}{_pipes(line)}{pad}{fence}")


def link(text: str, url: str) -> Safe:
    """A link whose text and target cannot end early."""
    return Safe(f"[{_PUNCTUATION.sub(_BACKSLASH, visible(text))}]({quote(url, safe=_URL_SAFE)})")


def joined(separator: str, parts: list[Safe]) -> Safe:
    """Finished pieces with our own words between them."""
    return Safe(separator.join(parts))


def fence_for(text: str) -> Safe:
    """Backticks that no run inside the text can close."""
    return Safe("`" * max(3, 1 + max(map(len, _BACKTICKS.findall(text)), default=0)))


def _pipes(text: str) -> str:
    return text.replace("|", "\\|")


def _escaped(line: str, start: int, end: int) -> str:
    """A stretch of text outside of code; its neighbours decide what its ends mean."""
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
