"""RP401 to RP404: characters that a reader does not see, or takes for others."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from ringproof.harness.lint.model import Skill, SourceFile
from ringproof.harness.reports.model import Finding

_INVISIBLE = re.compile(
    "[\xad\u115f\u1160\u180e\u200b-\u200d\u2060-\u2065\u206a-\u206f\u3164\ufeff\uffa0]+"
)
_BIDIRECTIONAL = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]+")
_TAGS = re.compile(
    "[\U000e0000-\U000e007f]+|[\ufe00-\ufe0f\U000e0100-\U000e01ef]{2,}|[\U000e0100-\U000e01ef]"
)
_FLAG_END = "\U000e007f"
_BLACK_FLAG = "\U0001f3f4"
_JOINERS = "\u200c\u200d"

# Cyrillic, Greek, Armenian and full-width letters that look like Latin ones.
_LOOK_ALIKES = (
    "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0456\u0458\u0455\u0501\u051b\u051d\u04bb"
    "\u0410\u0412\u0415\u041a\u041c\u041d\u041e\u0420\u0421\u0422\u0423\u0425\u0406\u0408\u0405"
    "\u0391\u0392\u0395\u0396\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a5\u03a7\u03bf"
    "\u0570\u0578\u057d\u0585\uff21-\uff3a\uff41-\uff5a"
)
_MIXED = re.compile(rf"\b(?=\w*[A-Za-z])\w*[{_LOOK_ALIKES}]\w*\b")


def check_characters(skill: Skill) -> Iterator[Finding]:
    """Every text file, character by character; one finding per rule and line."""
    for source in skill.texts:
        if not source.text.isascii():
            yield from _once_per_line(_of_file(source))


def _once_per_line(findings: Iterator[Finding]) -> Iterator[Finding]:
    seen = set()
    for finding in findings:
        if (finding.rule, finding.line) not in seen:
            seen.add((finding.rule, finding.line))
            yield finding


def _of_file(source: SourceFile) -> Iterator[Finding]:
    text = source.text
    for match in _INVISIBLE.finditer(text):
        # A byte order mark at the start of a file is a matter of its encoding, not hidden text.
        if not (match.start() == 0 and match[0] == "\ufeff") and not _joins(text, match):
            yield _found(source, match, "RP401", "the invisible")
    for match in _BIDIRECTIONAL.finditer(text):
        yield _found(source, match, "RP402", "the direction-changing")
    for match in _TAGS.finditer(text):
        if not _is_flag(text, match):
            yield _found(source, match, "RP403", f"{len(match[0])} times the hidden")
    for match in _MIXED.finditer(text):
        odd = next(letter for letter in match[0] if re.match(f"[{_LOOK_ALIKES}]", letter))
        name = unicodedata.name(odd, "unnamed")
        message = f"a Latin word contains U+{ord(odd):04X} ({name}); type it with Latin letters"
        yield Finding("RP404", source.shown, source.line_of(match.start()), message)


def _joins(text: str, match: re.Match[str]) -> bool:
    """A joiner between emoji, or between letters of a script that needs it."""
    neighbours = text[match.start() - 1 : match.start()] + text[match.end() : match.end() + 1]
    return len(match[0]) == 1 and match[0] in _JOINERS and _needs_joiner(neighbours)


def _needs_joiner(neighbours: str) -> bool:
    return len(neighbours) == 2 and all(
        unicodedata.category(letter) in ("So", "Sk", "Mn", "Mc", "Lo") for letter in neighbours
    )


def _is_flag(text: str, match: re.Match[str]) -> bool:
    """England, Scotland, Wales: a black flag, at most six tags, the end tag."""
    tags = match[0]
    return text[match.start() - 1 : match.start()] == _BLACK_FLAG and (
        len(tags) <= 7 and tags.endswith(_FLAG_END)
    )


def _found(source: SourceFile, match: re.Match[str], rule: str, kind: str) -> Finding:
    code = ord(match[0][0])
    name = unicodedata.name(match[0][0], "unnamed")
    message = f"{kind} character U+{code:04X} ({name}); remove it"
    return Finding(rule, source.shown, source.line_of(match.start()), message)
