"""Text from people we do not know, made safe to show, and the names of files."""

from __future__ import annotations

import json
import re
from pathlib import Path

# What a terminal, a log viewer or a reader would not show as itself.
UNSHOWABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ud800-\udfff\ufeff\uffa0\U000e0000-\U000e01ef]"
)

_STEERING = re.compile(f"(?![\n\t]){UNSHOWABLE.pattern}")
LONGEST = 1_000
"""Characters of a finding's message."""


def harmless(text: str) -> str:
    """Return a text in which characters that cannot be seen are escaped, except line ends and tabs.

    >>> print(harmless("one\\x1b[2J"))
    one\\u001b[2J
    """
    return _STEERING.sub(lambda match: json.dumps(match[0])[1:-1], text)


def showable(text: str, limit: int = 200) -> str:
    """One line of text in which every character can be seen, cut at ``limit``."""
    cut = text if len(text) <= limit else f"{text[:limit]}…"
    return UNSHOWABLE.sub(lambda match: f"<U+{ord(match[0]):04X}>", " ".join(cut.split()))


def relative_path(path: Path) -> str:
    """A file as findings name it: from the working directory where it lies inside, with slashes."""
    real, here = path.resolve(), Path.cwd()
    return (real.relative_to(here) if real.is_relative_to(here) else real).as_posix()
