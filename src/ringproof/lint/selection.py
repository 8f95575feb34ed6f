"""Which findings are reported: ``[tool.ringproof.lint]`` of a ``pyproject.toml``, and comments.

A comment says ``ringproof: ignore RP301 because it is a template``. In Markdown it covers its own
block and the next one; in other files its own line and the next. ``ignore-file`` covers the file,
and in ``SKILL.md`` findings about the skill as a whole.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from ringproof.errors import InputError, shown
from ringproof.files import read_input
from ringproof.findings.finding import Finding
from ringproof.findings.printable import showable
from ringproof.lint.rules import IDS
from ringproof.lint.source import DocumentPiece, SourceFile
from ringproof.tables import parsed

MAX_CONFIG_BYTES = 5_000_000
_KEYS = ("select", "ignore", "per-path")


def check_prefix(prefix: str) -> str:
    """Return a prefix that begins the id of at least one rule.

    Raises:
        ValueError: It begins none.
    """
    if not prefix or not any(identifier.startswith(prefix) for identifier in IDS):
        raise ValueError("names no rule")
    return prefix


Prefixes = tuple[Annotated[str, AfterValidator(check_prefix)], ...]


class LintConfig(BaseModel):
    """The table ``[tool.ringproof.lint]``: which rules apply where.

    Attributes:
        per_path: Globs of shown paths, and the prefixes that do not apply there.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    select: Prefixes = ()
    ignore: Prefixes = ()
    per_path: Mapping[str, Prefixes] = Field(default_factory=dict, alias="per-path")

    def applies(self, finding: Finding) -> bool:
        """Whether a finding is to be reported."""
        if self.select and not finding.rule.startswith(self.select):
            return False
        off = self.ignore + tuple(
            prefix
            for pattern, prefixes in self.per_path.items()
            if fnmatch.fnmatchcase(finding.path, pattern)
            for prefix in prefixes
        )
        return not (off and finding.rule.startswith(off))


def read_config(path: Path) -> LintConfig:
    """Read a ``pyproject.toml``; one without the table means the defaults.

    Raises:
        InputError: The file cannot be read or parsed, or the table has a wrong key or value.
    """
    raw = read_input(path, MAX_CONFIG_BYTES, field="--config", remedy="name a pyproject.toml")
    try:
        data: Any = parsed(raw.decode("utf-8"))
    except ValueError as error:  # TOML's and UTF-8's
        raise InputError(str(path), f"{path}: this is not valid TOML ({error})") from error
    for key in ("tool", "ringproof", "lint"):
        data = data.get(key, {}) if isinstance(data, dict) else {}
    try:
        return LintConfig.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(("tool.ringproof.lint", *map(str, first["loc"])))
        problem = f"{shown(first['input'])} cannot be used ({first['msg']})"
        remedy = f'give the keys {", ".join(_KEYS)} lists of rules, such as ["RP202"]'
        raise InputError(f"{path}: {place}", f"{problem}; {remedy}") from error


_SILENCE = re.compile(
    r"ringproof:\s*ignore(?P<file>-file)?\s+(?P<rules>RP\d+(?:[\s,]+RP\d+)*)"
    r"(?:[ \t]+because[ \t]+(?P<reason>\w[^\n]*))?"
)
_UNSILENCEABLE = ("RP001", "RP002")


@dataclass(frozen=True)
class SuppressionComment:
    """One comment."""

    path: str
    line: int
    rules: frozenset[str]
    first: int
    last: int
    reason: str

    def covers(self, finding: Finding) -> bool:
        """Whether it silences a finding."""
        inside = finding.path == self.path and self.first <= finding.line <= self.last
        return inside and finding.rule in self.rules and bool(self.reason)


def silences_of(source: SourceFile) -> Iterator[SuppressionComment]:
    """Every silencing comment of a file."""
    if "ringproof:" not in source.text:
        return
    whole = DocumentPiece("", source.text, 1)
    for piece in (whole,) if source.body is None else source.of("hidden"):
        for match in _SILENCE.finditer(piece.text):
            line = piece.line + piece.text.count("\n", 0, match.start())
            first, last = _range(source, line, whole=bool(match["file"]))
            rules = frozenset(re.findall(r"RP\d+", match["rules"]))
            yield SuppressionComment(
                source.shown, line, rules, first, last, (match["reason"] or "").strip()
            )


def _range(source: SourceFile, line: int, *, whole: bool) -> tuple[int, int]:
    if whole:
        return 1, source.text.count("\n") + 1
    if source.body is None:
        return line, line + 1
    blocks = sorted(source.blocks)
    own = next(((a, b) for a, b in blocks if a <= line <= b), (line, line))
    after = next(((a, b) for a, b in blocks if a > own[1]), own)
    return own[0], after[1]


def apply_silences(
    findings: Iterable[Finding], silences: Iterable[SuppressionComment]
) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """What is left, with what is wrong about the comments themselves; and what was silenced."""
    all_silences = tuple(silences)
    left: list[Finding] = []
    silenced: list[Finding] = []
    used: set[SuppressionComment] = set()
    for finding in findings:
        covering = [item for item in all_silences if item.covers(finding)]
        used.update(covering)
        (silenced if covering and finding.rule not in _UNSILENCEABLE else left).append(finding)
    for silence in all_silences:
        left += _about(silence, silence in used)
    return tuple(left), tuple(silenced)


def _about(silence: SuppressionComment, used: bool) -> Iterator[Finding]:
    unknown = sorted(silence.rules - IDS)
    if not silence.reason:
        message = "write `ringproof: ignore RPnnn because REASON`; without a reason it is ignored"
        yield Finding("RP001", silence.path, silence.line, message)
    elif unknown:
        message = f"there is no rule {showable(unknown[0], 20)}"
        yield Finding("RP002", silence.path, silence.line, message)
    elif not used:
        yield Finding("RP002", silence.path, silence.line, "silences nothing here; remove it")
