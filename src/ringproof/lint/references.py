"""RP201, RP202, RP209: what a skill's texts point to, and what nothing points to."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from ringproof.findings.finding import Finding
from ringproof.findings.printable import showable
from ringproof.lint.skill import Skill, out_of
from ringproof.lint.source import SourceFile

_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:|//|#|\?")
_PLACEHOLDER = re.compile(r"[<>{}$*|\s]|\.\.\.|…|%7B|%3C", re.IGNORECASE)
_SKILL_PATH = re.compile(r"(?:\./)?(references|scripts|assets)/[\w./-]*\.\w{1,5}")
_AT_PATH = re.compile(r"(?<![\w@`/.])@((?:[\w.-]+/)+[\w-]+\.(?:md|ya?ml|json|py|sh|txt|toml))\b")
_WORD = re.compile(r"[\w.-]+")
_PART = re.compile(r"\w+")
# A folder as a whole: `fonts/`, ./fonts, `fonts`, the fonts folder; not the one in fonts/a.ttf.
_FOLDER = re.compile(
    r"(?<![\w.-])([\w.-]{1,100})(?:/(?![\w-]|\.\w)| (?:folder|directory)\b)"
    r"|\./([\w.-]{1,100})(?![\w./-])|`([\w.-]{1,100})`"
)
_QUOTED = re.compile(r"[\"']([\w.-]+)[\"']")
_CODE = (".py", ".js", ".ts", ".sh", ".mjs", ".cjs", ".rb", ".go")

# Read by tools and registries, not by the agent that follows the skill.
_KNOWN = re.compile(
    r"(?:.*/)?(?:LICEN[CS]E[^/]*|NOTICE[^/]*|README(?:\.md)?|CHANGELOG(?:\.md)?|__init__\.py|\..*)"
    r"|SKILL\.md|card\.yaml|anchors\.lock|skill-card\.md|BENCHMARK\.md|skill\.oms\.sig"
    r"|requirements[^/]*\.txt|package(?:-lock)?\.json|pyproject\.toml|uv\.lock"
    r"|evals?/.*|tests?/.*|agents/[^/]*\.yaml",
    re.IGNORECASE,
)


def check_references(skill: Skill) -> Iterator[Finding]:
    """Links, `references/…` code spans and ``@path`` mentions that lead nowhere or outside."""
    for source in skill.texts:
        for piece in source.of("link"):
            yield from _check(skill, source, piece.line, _target(piece.text))
        for piece in source.of("code"):
            match = _SKILL_PATH.fullmatch(piece.text)
            if match and (match[1] == "references" or (skill.folder / match[1]).is_dir()):
                yield from _check(skill, source, piece.line, piece.text)
        for piece in source.of("text"):
            for match in _AT_PATH.finditer(piece.text):
                yield from _check(skill, source, piece.line, match[1])


def _target(href: str) -> str:
    """The path in a link; empty when it is none, or a placeholder to be filled in."""
    if _SCHEME.match(href):
        return ""
    path = re.split(r"[#?]", unquote(href), maxsplit=1)[0]
    # Without a dot or slash it is a word in an example, such as [text](url).
    return "" if _PLACEHOLDER.search(href) or not re.search(r"[./]", path) else path


def _check(skill: Skill, source: SourceFile, line: int, target: str) -> Iterator[Finding]:
    if not target or "\x00" in target:
        return
    bases = (skill.folder / PurePosixPath(source.name).parent, skill.folder, skill.repository)
    paths = [Path(posixpath.normpath(base / target)) for base in bases]
    inside = [path for path in paths if path.is_relative_to(skill.repository)]
    found = [path for path in inside if _exists(path)]
    if target.startswith("/"):
        rule, problem = "RP209", "is an absolute path; make it relative to the skill"
    elif not inside:
        rule, problem = "RP209", f"leads {out_of(skill.repository, skill.folder)}"
    elif not found:
        rule, problem = "RP201", "leads nowhere; correct the path or remove the reference"
    elif not any(path.is_relative_to(skill.folder) for path in found):
        rule, problem = "RP211", f"leads {out_of(skill.folder, skill.folder)}"
    else:
        return
    yield source.finding(rule, line, f"{showable(target, 120)} {problem}")


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def check_unreferenced(skill: Skill) -> Iterator[Finding]:
    """Files that no chain of mentions from ``SKILL.md`` reaches; one finding per folder."""
    reached = _reached(skill)
    lost: dict[str, list[str]] = {}
    for name in skill.names:
        if name not in reached and name != skill.main.name and not _KNOWN.fullmatch(name):
            lost.setdefault(posixpath.dirname(name), []).append(name)
    for names in lost.values():
        more = f" and {len(names) - 1} more in its folder" if len(names) > 1 else ""
        shown = posixpath.join(posixpath.dirname(skill.main.shown), showable(names[0], 300))
        message = f"nothing leads here from {skill.main.name}{more}; name it where it is needed"
        yield Finding("RP202", shown, 1, message)


def _reached(skill: Skill) -> frozenset[str]:
    """The files that are mentioned, starting with ``SKILL.md`` and its metadata files."""
    by_name = {source.name: source for source in skill.texts}
    reached = {skill.main.name} | {name for name in by_name if _KNOWN.fullmatch(name)}
    queue = sorted(reached)
    while queue:
        source = by_name.get(queue.pop())
        found = _mentioned(source, skill.names) - reached if source else frozenset()
        reached |= found
        queue += sorted(found)
    return frozenset(reached)


def _mentioned(source: SourceFile, names: tuple[str, ...]) -> frozenset[str]:
    text = source.text
    words = {word.strip(".-") for word in _WORD.findall(text)}
    folders = {"".join(groups).strip(".") for groups in _FOLDER.findall(text)}
    is_code = source.name.endswith(_CODE)
    if is_code:
        folders |= set(_QUOTED.findall(text))
        words |= folders
    modules = set(_PART.findall(text)) if is_code or "python" in words else set()
    return frozenset(
        name
        for name, path in zip(names, map(PurePosixPath, names), strict=True)
        if path.name.strip(".-") in words
        or (path.suffix in _CODE and path.stem in modules)
        or not folders.isdisjoint(path.parts[:-1])
    )
