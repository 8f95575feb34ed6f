"""A small checkout with skills, and shorthands for what is found in them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from checks.anchors.texts import TextTree
from ringproof.anchors.fences import JudgedMention, check_documents
from ringproof.anchors.mentions import find_mentions
from ringproof.anchors.quotes import Placement, place_quote
from ringproof.anchors.sources import read_source

CODE = "\n".join(
    [
        "import os",  # 1
        "",
        "class Config:",
        "    size: int = 1",
        "    name: str = 'ring'",
        "",
        "def check(config, *,",  # 7
        "          strict=True):",
        "    if config.size < 1:",
        "        raise ValueError('size must be positive')",
        "    if strict and not config.name:",
        "        raise ValueError('name must be given')",
        "    return config",
        "",
        "TAIL = os.sep",  # 15
        "",
    ]
)


def place(quote: str, start: int, end: int, code: str = CODE, path: str = "a.py") -> Placement:
    return place_quote(quote.split("\n"), read_source(path, code.encode()), start, end)


def outcome(found: Placement) -> tuple[str, int | None, int | None]:
    return found.status, found.new_start, found.new_end


def mentions(text: str) -> list[tuple[str, str, int | None, int | None, tuple[str, ...]]]:
    return [
        (item.kind, item.path, item.start, item.end, item.quote)
        for item in find_mentions(text, "SKILL.md")
    ]


def fence(start: int, end: int, path: str, quote: str) -> str:
    return f"```{start}:{end}:{path}\n{quote}\n```\n"


def checkout(root: Path, files: Mapping[str, str | bytes]) -> Path:
    """Write files below a folder; parents are made."""
    for name, content in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


def findings(path: Path, **roots: TextTree) -> list[JudgedMention]:
    return [item for document in check_documents(path, roots) for item in document.findings]


def statuses(path: Path, **roots: TextTree) -> list[str]:
    return [item.placement.status for item in findings(path, **roots)]
