"""RP203 to RP207: what skills cost while they wait, and whether two of them claim the same work."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ringproof.harness.lint.model import Skill
from ringproof.harness.lint.spec import MAX_DESCRIPTION
from ringproof.harness.reports.model import Finding
from ringproof.harness.reports.printable import showable

MAX_LINES = 500
MAX_TOKENS = 5000
BYTES_PER_TOKEN = 4
NEARLY_THE_SAME = 0.8
FEWEST_WORDS = 6
_WORD = re.compile(r"[\w+-]+")


def approximate_tokens(text: str) -> int:
    """A token per four bytes of UTF-8: near the truth for English with code, for any tokenizer."""
    return -(-len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN)


def check_sizes(skill: Skill) -> Iterator[Finding]:
    """The description's length; the body's lines and tokens."""
    description = skill.frontmatter.data.get("description")
    if isinstance(description, str) and len(description) > MAX_DESCRIPTION:
        message = f"the description has {len(description):,} characters, over {MAX_DESCRIPTION:,}"
        line = skill.frontmatter.line("description")
        yield Finding("RP203", skill.main.shown, line, message)
    body = skill.main.markdown.body if skill.main.markdown else ""
    lines, tokens = len(body.splitlines()), approximate_tokens(body)
    if lines >= MAX_LINES:
        message = f"the body has {lines:,} lines, not under {MAX_LINES}; move parts to references/"
        yield Finding("RP204", skill.main.shown, 1, message)
    if tokens >= MAX_TOKENS:
        message = f"the body has about {tokens:,} tokens, not under {MAX_TOKENS:,}"
        yield Finding("RP205", skill.main.shown, 1, f"{message}; move parts to references/")


def check_duplicates(skills: Iterable[Skill]) -> Iterator[Finding]:
    """Skills of the same name, or with descriptions that an agent can hardly tell apart."""
    seen: list[tuple[Skill, str, frozenset[str]]] = []
    for skill in skills:
        name = str(skill.frontmatter.data.get("name", "")).strip()
        words = frozenset(_words(str(skill.frontmatter.data.get("description", ""))))
        for other, other_name, other_words in seen:
            if name and name == other_name:
                message = f"the name {showable(name, 80)!r} is also that of {other.main.shown}"
                yield Finding("RP206", skill.main.shown, skill.frontmatter.line("name"), message)
            elif _similar(words, other_words):
                message = f"the description is nearly that of {other.main.shown}; say which is when"
                line = skill.frontmatter.line("description")
                yield Finding("RP207", skill.main.shown, line, message)
        seen.append((skill, name, words))


def _words(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text)]


def _similar(one: frozenset[str], other: frozenset[str]) -> bool:
    if min(len(one), len(other)) < FEWEST_WORDS:
        return False
    return len(one & other) >= NEARLY_THE_SAME * len(one | other)
