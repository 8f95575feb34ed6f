"""Converts mentions of code in a skill's documents to anchors or to open claims."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ringproof.errors import InputError
from ringproof.harness.fences.markdown import MAX_DOCUMENT_BYTES, find_mentions
from ringproof.harness.fences.model import Mention
from ringproof.harness.importing.code import CodeAnchors
from ringproof.harness.importing.draft import CardDraft
from ringproof.harness.importing.source import SkillSource


@dataclass(frozen=True)
class Pointers:
    """Numbers of fences and ``path:line`` mentions, and of those that became anchors."""

    fences: int = 0
    fences_anchored: int = 0
    inline: int = 0
    inline_anchored: int = 0


def add_documents(source: SkillSource, code: CodeAnchors, draft: CardDraft) -> Pointers:
    """Convert every ``start:end:path`` fence and ``path:line`` of the Markdown files.

    Each becomes an anchor, or otherwise a claim with path and lines.
    """
    counts = {"fence": [0, 0], "inline": [0, 0]}
    done: set[tuple[str, str, int | None, int | None, tuple[str, ...]]] = set()
    for name, mention, prose in _mentions(source):
        key = (name, mention.path, mention.start, mention.end, mention.quote)
        if key in done:
            continue
        done.add(key)
        outcome = code.add(mention, name, prose)
        counts[mention.kind][0] += 1
        counts[mention.kind][1] += bool(outcome.anchors)
        if not outcome.anchors:
            says = _says(name, mention)
            stem = mention.path.rpartition("/")[2]
            draft.claim("code", f"{stem} {mention.start}", says, f"not anchored: {outcome.why}")
    return Pointers(*counts["fence"], *counts["inline"])


def _mentions(source: SkillSource) -> Iterator[tuple[str, Mention, str]]:
    """Yield document, mention, and the text of its line."""
    for name in source.files:
        if not name.lower().endswith((".md", ".mdx", ".markdown")):
            continue
        data = (source.folder / name).read_bytes()[: MAX_DOCUMENT_BYTES + 1]
        try:
            found = find_mentions(data, name)
        except InputError:
            continue  # lint has a rule for such documents
        lines = data.decode("utf-8", "replace").splitlines()
        for mention in found:
            if mention.kind != "symbol":
                line = lines[mention.line - 1] if mention.line <= len(lines) else ""
                yield name, mention, line


def _says(name: str, mention: Mention) -> str:
    lines = f"{mention.start}"
    if mention.end != mention.start:
        lines += f"-{mention.end}"
    if mention.kind == "fence":
        return f"{name} quotes lines {lines} of {mention.path}."
    named = f" for {mention.quote[0]}" if mention.quote else ""
    return f"{name} points to line {lines} of {mention.path}{named}."
