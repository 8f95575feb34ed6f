"""Checks references to code in skills, and corrects their line numbers."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ringproof.errors import InputError
from ringproof.files import read_input, write_atomically
from ringproof.harness.fences.documents import FIELD, repository_root, skill_documents
from ringproof.harness.fences.markdown import MAX_DOCUMENT_BYTES, find_mentions
from ringproof.harness.fences.matching import place_lines, place_quote
from ringproof.harness.fences.model import ByteSpan, JudgedMention, Mention, Placement
from ringproof.harness.fences.names import place_name, place_name_at
from ringproof.harness.fences.source import SourceLines, SourceRefused
from ringproof.harness.fences.source_files import SourceFiles
from ringproof.harness.upstreams.tree import FolderTree, UpstreamTree

_ORDER = ("exact", "moved", "changed", "missing")


@dataclass(frozen=True)
class CheckedDocument:
    """A document of a skill, its content, and the judged mentions in it."""

    path: Path
    data: bytes
    findings: tuple[JudgedMention, ...]


def check_documents(path: Path, roots: Mapping[str, UpstreamTree]) -> tuple[CheckedDocument, ...]:
    """Check every mention of code in the skills at a path.

    Args:
        path: Repository, folder of skills, skill, folder in a skill, or Markdown file.
        roots: Tree for each path prefix, for example for submodules. ``.`` replaces the repository
            of the skills.

    Raises:
        InputError: There is no skill, a document cannot be read, or a submodule has no root.
    """
    try:
        path = path.resolve()
        path.exists()  # raises for a name that is too long
    except (OSError, RuntimeError) as error:
        raise InputError(FIELD, path, "cannot be resolved", "name skills or a file") from error
    root = repository_root(path)
    places = SourceFiles(FolderTree(root), roots)
    documents = []
    for file in skill_documents(path, root):
        name = file.relative_to(root).as_posix().encode("utf-8", "backslashreplace").decode()
        data = _read(file)
        mentions = find_mentions(data, name)
        found = (judge(mention, name, places) for mention in mentions)
        documents.append(
            CheckedDocument(file, data, tuple(item for item in found if item is not None))
        )
    return tuple(documents)


def judge(mention: Mention, file: str, places: SourceFiles) -> JudgedMention | None:
    """Check one mention; return ``None`` for a symbol after a bare name that no file has."""
    folder = posixpath.dirname(file)
    try:
        sources = places.find(mention.path, folder, anywhere=mention.kind != "fence")
    except SourceRefused as error:
        return JudgedMention(file, mention, Placement("missing", why=f"{mention.path} {error}"))
    if not sources:
        if mention.kind == "symbol" and "/" not in mention.path:
            return None  # `config.yaml` and `key` mean a file of the reader, not of the repository
        return JudgedMention(file, mention, Placement("missing", why="there is no such file"))
    placements = [_place(mention, source) for source in sources]
    best = min(placements, key=lambda item: _ORDER.index(item.status))
    same = [item for item in placements if item.status == best.status]
    if best.status == "moved" and len(same) > 1:
        best = Placement("changed", why=f"{len(same)} files of that name could be meant")
    return JudgedMention(file, mention, best)


def _place(mention: Mention, source: SourceLines) -> Placement:
    if mention.start is None or mention.end is None:
        return place_name(mention.quote[0], source)
    if mention.kind == "fence":
        return place_quote(mention.quote, source, mention.start, mention.end)
    if mention.quote:
        return place_name_at(mention.quote[0], source, mention.start, mention.end)
    return place_lines(source, mention.start, mention.end)


def mended(document: CheckedDocument) -> bytes:
    """Return the document with corrected line numbers and otherwise the same bytes."""
    data = document.data
    edits: list[tuple[ByteSpan, int]] = []
    for finding in document.findings:
        place, spans = finding.placement, finding.mention.spans
        if place.status == "moved" and place.new_start is not None and place.new_end is not None:
            edits.extend(zip(spans, (place.new_start, place.new_end), strict=False))
    for span, number in sorted(edits, key=lambda edit: edit[0].start, reverse=True):
        data = data[: span.start] + str(number).encode() + data[span.end :]
    return data


def mend(documents: Sequence[CheckedDocument]) -> int:
    """Write corrected line numbers, and return the number of documents that were rewritten.

    Raises:
        InputError: A document cannot be written, or has changed since it was checked.
    """
    count = 0
    for document in documents:
        data = mended(document)
        if data != document.data:
            _replace(document.path, document.data, data)
            count += 1
    return count


def _read(path: Path) -> bytes:
    remedy = "name a readable file, or leave it out of PATH"
    return read_input(path, MAX_DOCUMENT_BYTES, field=FIELD, remedy=remedy)


def _replace(path: Path, old: bytes, new: bytes) -> None:
    if _read(path) != old:
        raise InputError("--fix", path, "the file changed meanwhile", "run it again")
    write_atomically(path, new, field="--fix", mode=path.stat().st_mode & 0o7777)
