"""``ringproof fences``: does the code that documents quote still stand where they say?"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

from ringproof.anchors.mentions import (
    MAX_DOCUMENT_BYTES,
    Kind,
    Mention,
    decoded_document,
    find_mentions,
)
from ringproof.anchors.quotes import (
    Placement,
    Status,
    place_lines,
    place_name,
    place_name_at,
    place_quote,
)
from ringproof.anchors.sources import (
    MARKDOWN_SUFFIXES,
    NOT_ENTERED,
    SourceFiles,
    SourceLines,
    SourceRefused,
)
from ringproof.errors import InputError, shown
from ringproof.files import read_input, walk_files, write_atomically
from ringproof.findings.finding import Finding, Report, Rule
from ringproof.findings.printable import LONGEST, relative_path, showable
from ringproof.upstream.tree import FolderTree, UpstreamTree

_FIELD = "PATH"
_STATUSES = get_args(Status)
_GONE = "The file, the lines or the text that a document points to are not there."
RULE_OF: Mapping[str, Rule] = MappingProxyType({
    "moved": Rule(
        "RF201", "fence-moved", "warning",
        "The code that a document points to stands at other lines.",
        "Run again with `--fix`, which corrects the numbers and nothing else."),
    "changed": Rule(
        "RF202", "fence-changed", "error",
        "The code that a document points to is there in part.",
        "Read the code again and correct the document."),
    "missing": Rule(
        "RF203", "fence-missing", "error", _GONE,
        "Read the code again and correct the document, or name its tree with `--upstream`."),
})  # fmt: skip
"""The rule that each status breaks; a mention that is exact breaks none."""
RULES = tuple(RULE_OF.values())


@dataclass(frozen=True)
class JudgedMention:
    """A mention and the result of checking it.

    Attributes:
        file: Path of the document from the repository root, with slashes.
    """

    file: str
    mention: Mention
    placement: Placement


@dataclass(frozen=True)
class CheckedDocument:
    """A document of a skill, its text with all line ends, and the judged mentions in it."""

    path: Path
    text: str
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
        problem = "cannot be resolved; name a folder of skills or a Markdown file"
        raise InputError(_FIELD, f"{shown(path)} {problem}") from error
    root = repository_root(path)
    places = SourceFiles(FolderTree(root), roots)
    documents = []
    for file in _skill_documents(path, root):
        name = file.relative_to(root).as_posix().encode("utf-8", "backslashreplace").decode()
        text = decoded_document(_read(file), name)
        judged = (judge(mention, name, places) for mention in find_mentions(text, name))
        findings = tuple(item for item in judged if item is not None)
        documents.append(CheckedDocument(file, text, findings))
    return tuple(documents)


def repository_root(path: Path) -> Path:
    """Return the folder to which a skill's paths are relative.

    This is the given folder if it contains ``.git`` or ``skills``, otherwise the nearest parent
    with ``.git``, otherwise the parent of the ``skills`` folder around it, otherwise the given
    folder.
    """
    folder = path if path.is_dir() else path.parent
    if (folder / ".git").exists() or (folder / "skills").is_dir():
        return folder
    for above in folder.parents:
        if (above / ".git").exists():
            return above
    around = (inner for inner in (folder, *folder.parents) if inner.name == "skills")
    return next((inner.parent for inner in around), folder)


def _skill_documents(path: Path, root: Path) -> list[Path]:
    """List the Markdown files of the skills at, in or around a path, or the file itself."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        problem = "does not exist; name a folder of skills or a Markdown file"
        raise InputError(_FIELD, f"{shown(path)} {problem}")
    found = walk_files(path, NOT_ENTERED.__contains__)
    files = [file for file in found if file.suffix.lower() in MARKDOWN_SUFFIXES]
    skills = {file.parent for file in files if file.name == "SKILL.md"}
    above = [folder for folder in (path, *path.parents) if folder.is_relative_to(root)]
    if not any((folder / "SKILL.md").is_file() for folder in above):
        files = [file for file in files if not skills.isdisjoint(file.parents)]
    if not files:
        problem = "holds no skill, which is a folder with a SKILL.md; name a folder of skills"
        raise InputError(_FIELD, f"{shown(path)} {problem}")
    return files


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
    best = min(placements, key=lambda item: _STATUSES.index(item.status))
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


def mended(document: CheckedDocument) -> str:
    """Return the text of the document with corrected line numbers."""
    text = document.text
    edits: list[tuple[tuple[int, int], int]] = []
    for finding in document.findings:
        place, spans = finding.placement, finding.mention.spans
        if place.status == "moved" and place.new_start is not None and place.new_end is not None:
            edits.extend(zip(spans, (place.new_start, place.new_end), strict=False))
    for (start, end), number in sorted(edits, reverse=True):  # the places before stay as they are
        text = f"{text[:start]}{number}{text[end:]}"
    return text


def mend(documents: Sequence[CheckedDocument]) -> int:
    """Write corrected line numbers, and return the number of documents that were rewritten.

    Raises:
        InputError: A document cannot be written, or has changed since it was checked.
    """
    count = 0
    for document in documents:
        path, text = document.path, mended(document)
        if text == document.text:
            continue
        if _read(path) != document.text.encode():
            problem = "changed while its mentions were checked; run the command again"
            raise InputError("--fix", f"{shown(path)} {problem}")
        write_atomically(path, text.encode(), field="--fix")
        count += 1
    return count


def _read(path: Path) -> bytes:
    remedy = "name a readable file, or leave it out of PATH"
    return read_input(path, MAX_DOCUMENT_BYTES, field=_FIELD, remedy=remedy)


def fences_report(documents: Sequence[CheckedDocument]) -> Report:
    """Report the mentions that are not exact, and count those of each kind."""
    findings = [
        _finding(item, relative_path(document.path))
        for document in documents
        for item in document.findings
        if item.placement.status != "exact"
    ]
    judged = [item for document in documents for item in document.findings]
    return Report(RULES, tuple(findings), tuple(_summary(judged)))


def _finding(item: JudgedMention, path: str) -> Finding:
    mention, place = item.mention, item.placement
    target = mention.path
    if mention.start is not None:
        target += f":{mention.start}-{mention.end}"
    elif mention.quote:
        target += f" {mention.quote[0]}"
    text = showable(f"{target}: {place.why}", LONGEST)
    return Finding(RULE_OF[place.status].id, path, mention.line, text)


def _summary(judged: Sequence[JudgedMention]) -> Iterator[str]:
    for kind in get_args(Kind):
        some = [item.placement for item in judged if item.mention.kind == kind]
        counts = Counter[str](placement.status for placement in some)
        if some:
            parts = ", ".join(f"{counts[status]} {status}" for status in _STATUSES)
            bare = sum(not item.quoted and item.status == "exact" for item in some)
            note = f" ({bare} quote nothing: only that the lines exist is known)" if bare else ""
            yield f"{kind}: {len(some)} found: {parts}{note}"
    if not judged:
        yield "no mention of code with lines or symbols found"


def as_json(documents: Sequence[CheckedDocument]) -> dict[str, Any]:
    """``{"anchors": [...]}``; line numbers that do not apply are ``null``."""
    return {
        "anchors": [
            {
                "kind": finding.mention.kind,
                "file": finding.file,
                "path": finding.mention.path,
                "start": finding.mention.start,
                "end": finding.mention.end,
                "status": finding.placement.status,
                "new_start": finding.placement.new_start,
                "new_end": finding.placement.new_end,
            }
            for document in documents
            for finding in document.findings
        ]
    }
