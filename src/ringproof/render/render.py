"""Fills in the generated blocks of documents and leaves the rest unchanged."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ringproof.anchors.lock import LOCK_FILE, Lock, read_lock
from ringproof.cards.card import Card
from ringproof.cards.document import decoded
from ringproof.cards.loading import load_card
from ringproof.errors import InputError
from ringproof.files import read_input, walk_files
from ringproof.markdown import LINE_END
from ringproof.prove.evidence import about_upstream
from ringproof.render.blocks import GeneratedBlock, find_blocks, named
from ringproof.render.kinds import BlockRequest

MAX_BYTES = 1_000_000
MAX_DIFF_LINES = 20
_SUFFIXES = (".md", ".markdown")
_LINES = re.compile(r"[^\r\n]*(?:\r\n?|\n)|[^\r\n]+")


@dataclass(frozen=True)
class RenderedBlock:
    """A block with its current and its rendered lines.

    Attributes:
        before, after: The lines between the markers, without line ends.
    """

    block: GeneratedBlock
    before: tuple[str, ...]
    after: tuple[str, ...]

    @property
    def stale(self) -> bool:
        """Whether the file differs from the card."""
        return self.before != self.after


@dataclass(frozen=True)
class RenderedFile:
    """A document and its blocks, with the original and the rendered content."""

    path: Path
    original: bytes
    content: bytes
    blocks: tuple[RenderedBlock, ...]

    @property
    def stale(self) -> bool:
        """Whether the file has to be written."""
        return self.original != self.content


def render_skill(card_path: Path, folder: Path) -> tuple[RenderedFile, ...]:
    """Render every Markdown file of a skill that has generated blocks, without writing it.

    Args:
        card_path: ``card.yaml`` of the skill, with the lock beside it.
        folder: Folder of the skill, in which files are searched without following links.

    Raises:
        InputError: The card, the lock or a document cannot be used. The message names file and
            line.
    """
    card = load_card(card_path)
    lock = read_lock(card_path.with_name(LOCK_FILE))
    about = about_upstream(folder.resolve().parents[1] / "evidence", folder.name)
    rendered = []
    for path in walk_files(folder, lambda name: name.startswith(".")):
        if path.suffix.lower() not in _SUFFIXES:
            continue
        raw = read_input(path, MAX_BYTES, remedy="check its permissions, or split it")
        rendered.append(render_document(path, raw, card, lock, about))
    return tuple(document for document in rendered if document.blocks)


def render_document(
    path: Path,
    original: bytes,
    card: Card,
    lock: Lock | None,
    about: Mapping[str, int] | None = None,
) -> RenderedFile:
    """Render one document; ``about`` is that of `BlockRequest`.

    Bytes outside of the blocks are kept, including line ends and a byte order mark. Lines inside
    end like the line of the block's first marker.

    Raises:
        InputError: A block cannot be filled, or the file is not text.
    """
    text = decoded(path, original)
    found = find_blocks(text, str(path))
    if not found:
        return RenderedFile(path, original, original, ())
    lines = LINE_END.split(text)
    made = tuple(
        RenderedBlock(
            block,
            tuple(lines[block.begin + 1 : block.end]),
            # Markdown needs an empty line at each end.
            ("", *BlockRequest(card, lock, named(block, card.blocks), about).lines(), ""),
        )
        for block in found
    )
    content = _replaced(text, made)
    _refuse_escape(content, made, str(path))
    return RenderedFile(path, original, content.encode("utf-8"), made)


def _replaced(text: str, made: Sequence[RenderedBlock]) -> str:
    kept = _LINES.findall(text)
    for item in reversed(made):
        begin, end = item.block.begin, item.block.end
        newline = kept[begin][len(kept[begin].rstrip("\r\n")) :]
        kept[begin + 1 : end] = [f"{line}{newline}" for line in item.after]
    return "".join(kept)


def _refuse_escape(content: str, made: Sequence[RenderedBlock], file: str) -> None:
    """Check that the new text has exactly the blocks that were rendered."""
    try:
        again = find_blocks(content, file)
    except InputError:
        again = ()
    lines = LINE_END.split(content)
    inside = [tuple(lines[block.begin + 1 : block.end]) for block in again]
    if inside != [item.after for item in made]:
        problem = "the card holds text that would break out of its block"
        raise made[0].block.refusal(f"{problem}; write that text in other words")


def difference(item: RenderedBlock) -> tuple[str, ...]:
    """Return a short unified diff of a stale block, from the file to the card."""
    lines = list(difflib.unified_diff(item.before, item.after, lineterm="", n=0))[2:]
    lines = [line for line in lines if not line.startswith("@@")]
    left = len(lines) - MAX_DIFF_LINES
    more = (f"... and {left} more lines",) if left > 0 else ()
    return (*lines[:MAX_DIFF_LINES], *more)
