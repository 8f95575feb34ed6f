"""The text of a skill as pages: SKILL.md and its references, with links to statements and files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from ringproof.markdown import split_lines, without_frontmatter

_CODE = re.compile(r"(?<!\[)`([^`\n]+)`(?!\])")
_FENCE = re.compile(r"\s*(```|~~~)")


def body(text: str) -> str:
    """Return a document of a skill without its frontmatter."""
    return "\n".join(without_frontmatter(split_lines(text))).lstrip("\n")


def linked(text: str, targets: Mapping[str, str]) -> str:
    """Make links of the words in backticks that have a target, headings and code blocks left out.

    Args:
        targets: Addresses by word, such as ``{"references/pitfalls.md": "demo/references/..."}``.
    """
    return "\n".join(_lines(text.split("\n"), targets))


def _lines(lines: Sequence[str], targets: Mapping[str, str]) -> Iterator[str]:
    inside = False
    for line in lines:
        fence = _FENCE.match(line) is not None
        inside = inside != fence
        if inside or fence or line.startswith("#"):
            yield line
        else:
            yield _CODE.sub(lambda found: _link(found[0], targets.get(found[1])), line)


def _link(code: str, target: str | None) -> str:
    return f"[{code}]({target})" if target else code
