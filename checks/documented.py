"""The commands that the README, the pages of the site and the skills show to a reader."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = tuple(
    sorted(
        path.relative_to(ROOT).as_posix()
        for pattern in (
            "*.md",
            "docs/*.md",
            "docs/how-to/*.md",
            "docs/concepts/*.md",
            "skills/**/*.md",
        )
        for path in ROOT.glob(pattern)
        if path.name != "CHANGELOG.md"
    )
)
_PLAIN = re.compile(r"[\w./=:,@%+~*>-]+")
"""Words that a shell does not quote; globs and redirections stay what they are."""
_BLOCK = re.compile(r"^ *```bash\n(.*?)^ *```", re.DOTALL | re.MULTILINE)


def documented(page: str) -> Iterator[str]:
    """The commands of a page in order, each on one line without its comment."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for block in _BLOCK.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            if words := shlex.split(line, comments=True):
                yield " ".join(
                    word if _PLAIN.fullmatch(word) else shlex.quote(word) for word in words
                )
