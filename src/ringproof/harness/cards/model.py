"""The model of ``card.yaml``, from which a skill's tables are generated.

Keys of NVIDIA's cards keep their name and meaning. New are upstreams and anchors, and a ``proof``
for every statement. Cards have no line numbers: an anchor is a symbol and text that must occur
inside it.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
)
from pydantic_core import PydanticCustomError

from ringproof.harness.cards.proof import ProofKind, parse_proof

_PACKAGE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_VERSION = re.compile(r"[0-9][A-Za-z0-9.!+_-]*")
_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]*/[A-Za-z0-9._-]+")
_IDENTIFIER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_WORD = r"[^\W\d]\w*"
_NUMBER = r"(#[1-9][0-9]*)?"
_OPERATOR = rf"operator(\(\)|\[\]|[-+*/%^&|~!=<>,]{{1,3}}| {_WORD}[\w:*& ]*(\[\])?)"
_SYMBOL = re.compile(
    rf"--[A-Za-z0-9][\w-]*{_NUMBER}"  # an option
    rf"|{_WORD}{_NUMBER}(\.{_WORD}{_NUMBER})*"  # Python
    rf"|({_WORD}::)*(~?{_WORD}|{_OPERATOR}){_NUMBER}"  # C++ and CUDA
)


def wrong(problem: str, remedy: str) -> PydanticCustomError:
    """Return a validation error with a remedy for `ringproof.errors.InputError`."""
    return PydanticCustomError("card", "{problem}", {"problem": problem, "remedy": remedy})


def _matching(pattern: re.Pattern[str], what: str, example: str) -> AfterValidator:
    def check(text: str) -> str:
        if pattern.fullmatch(text) is None:
            raise wrong(f"is not {what}", f"write it like {example}")
        return text

    return AfterValidator(check)


def relative_path(text: str) -> str:
    """Check that a POSIX path stays below its root.

    Raises:
        PydanticCustomError: The path is absolute, leaves its root, or is not in plain form.
    """
    parts = text.split("/")
    if text.startswith("/") or "\\" in text or "\0" in text or ":" in parts[0]:
        raise wrong("is not a relative path with forward slashes", "name it from the upstream root")
    if any(part in ("", ".", "..") for part in parts):
        raise wrong("leaves its root or is not in plain form", "remove empty, '.' and '..' parts")
    return text


def _unquoted(text: str) -> str:
    """Remove quotes, since ``"--flag"`` and ``--flag`` are the same option symbol."""
    quoted = len(text) > 2 and text[0] == text[-1] and text[0] in "\"'"
    return text[1:-1] if quoted else text


def _regular_expression(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise wrong(f"is not a regular expression: {error}", "escape it or correct it") from error
    return text


def _as_list(value: object) -> object:
    return (value,) if isinstance(value, str) else value


def _proofs(entries: tuple[str, ...]) -> tuple[str, ...]:
    if not entries:
        raise wrong("names no proof", "name a test or an anchor, or say `unproven: WHY`")
    try:
        kinds = [parse_proof(entry).kind for entry in entries]
    except ValueError as error:
        remedy = "write checks/FILE.py::test, smoke/FILE.py::test, anchor:ID or `unproven: WHY`"
        raise wrong(str(error), remedy) from error
    if ProofKind.UNPROVEN in kinds and len(kinds) > 1:
        raise wrong("is both proven and unproven", "keep `unproven: WHY` alone or remove it")
    if len(set(entries)) != len(entries):
        raise wrong("names the same proof twice", "name it once")
    return entries


Identifier = Annotated[
    str, StringConstraints(max_length=100), _matching(_IDENTIFIER, "an id", "group-ranks")
]
Line = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=500)]
Prose = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=5000)]
Package = Annotated[str, _matching(_PACKAGE, "a package name", "megatron-core")]
Version = Annotated[str, _matching(_VERSION, "an exact version", "'0.16.1'")]
Repository = Annotated[str, _matching(_REPOSITORY, "OWNER/NAME", "NVIDIA/Megatron-LM")]
Commit = Annotated[str, _matching(re.compile("[0-9a-f]{40}"), "a full commit id", "40 hex digits")]
Sha256 = Annotated[str, _matching(re.compile("[0-9a-f]{64}"), "a SHA-256", "64 hex digits")]
Sha256s = Annotated[tuple[Sha256, ...], BeforeValidator(_as_list)]
RelativePath = Annotated[str, StringConstraints(max_length=500), AfterValidator(relative_path)]
Symbol = Annotated[
    str,
    StringConstraints(max_length=300),
    AfterValidator(_unquoted),
    _matching(
        _SYMBOL,
        "a symbol",
        "TransformerConfig.cp_comm_type, function#2, '--option' or, in C++ and CUDA, "
        "Class::method, namespace::function#2 (no template arguments)",
    ),
]
Pattern = Annotated[Line, AfterValidator(_regular_expression)]
Proofs = Annotated[tuple[Line, ...], BeforeValidator(_as_list), AfterValidator(_proofs)]
Lines = Annotated[tuple[Line, ...], BeforeValidator(_as_list)]
Label = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=40)]
ConfigValue = bool | int | float | str | None | tuple[bool | int | float | str | None, ...]


class CardModel(BaseModel):
    """Base of every part of a card: frozen, without other keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class PackageUpstream(CardModel):
    """A release on the package index, which is downloaded as a wheel.

    Attributes:
        file_sha256: SHA-256 of the accepted files: one, or one per Python version. Default: any
            file.
        repo, ref, commit: Repository of its sources, for permalinks.
        label: Name in tables; the version by default.
    """

    package: Package
    version: Version
    file_sha256: Sha256s = ()
    repo: Repository | None = None
    ref: Line | None = None
    commit: Commit | None = None
    label: Label | None = None


class RepositoryUpstream(CardModel):
    """A commit of a repository, with the branch or tag it was read from.

    Attributes:
        label: Name in tables; by default the ref, with the commit if the ref moves.
    """

    repo: Repository
    ref: Line
    commit: Commit
    label: Label | None = None


def _upstream_kind(value: object) -> str:
    is_package = isinstance(value, PackageUpstream) or (
        isinstance(value, Mapping) and "package" in value
    )
    return "package" if is_package else "repository"


Upstream = Annotated[
    Annotated[PackageUpstream, Tag("package")] | Annotated[RepositoryUpstream, Tag("repository")],
    Discriminator(_upstream_kind),
]


class Anchor(CardModel):
    """A reference to upstream code: a symbol, and text that must occur inside it.

    Attributes:
        upstream: Key of the card's ``upstreams``.
        path: Path of the file from the upstream's root.
        symbol: Dotted Python name, or a command-line option such as ``--cp-comm-type``. A name
            defined several times at one level needs ``#2`` (the second).
        role: What the code does, in our own words.
        expects: Identifiers or parts of string literals that must occur inside the symbol.
        short: The role in a few words, for tables.
    """

    id: Identifier
    upstream: Identifier
    path: RelativePath
    symbol: Symbol
    role: Prose
    expects: Lines = ()
    short: Line | None = None


class Probe(CardModel):
    """A fact about code that tells lines of upstream apart.

    Attributes:
        path: Path of a file from the upstream's root.
        symbol: Symbol in it, as an anchor names one; without it the file as a whole.
        expects: Texts that must occur inside the symbol, or the file.
        absent: The symbol, or the file, must not be there.
    """

    path: RelativePath
    symbol: Symbol | None = None
    expects: Lines = ()
    absent: bool = False


class UpstreamLine(CardModel):
    """A line of upstream: commits and releases that behave alike for the feature.

    Attributes:
        repo: The repository; a release belongs to the line of its sources.
        says: What distinguishes this line from others.
        trains: Whether the feature can train on it.
        because: Why it cannot.
        probe: Every entry must hold in a tree of this line. Code decides, not a version or a date.
        upstreams: Keys of the card's upstreams that are on this line.
        unread: Why there are none.
    """

    id: Identifier
    repo: Repository
    says: Prose
    trains: bool
    because: Prose | None = None
    probe: Annotated[tuple[Probe, ...], Field(min_length=1)]
    upstreams: tuple[Identifier, ...] = ()
    unread: Prose | None = None


Scope = Annotated[tuple[Identifier, ...], BeforeValidator(_as_list)] | None
"""``None``: the lines of the upstreams that the statement's anchors name. Empty: it is about
ringproof's own code."""


class Constraint(CardModel):
    """A rule for configurations; ``rule`` names the function that checks it.

    Attributes:
        short: The rule in one line, for lists and tables.
    """

    id: Identifier
    says: Prose
    proof: Proofs
    rule: Line | None = None
    upstream_anchor: Identifier | None = None
    short: Line | None = None
    lines: Scope = None


class ShortPitfall(CardModel):
    """Cells of a pitfall's row in a table. Missing cells are taken from the pitfall."""

    symptom: Line | None = None
    cause: Line | None = None
    remedy: Line | None = None
    affects: Line | None = None


class Pitfall(CardModel):
    """A failure, with symptom, cause and remedy.

    Attributes:
        short: The same in fewer words, for the table of ``SKILL.md``.
    """

    id: Identifier
    symptom: Prose
    cause: Prose
    remedy: Prose
    proof: Proofs
    affects: Lines = ()
    references: Lines = ()
    short: ShortPitfall | None = None
    lines: Scope = None


class Marker(CardModel):
    """A line to look for in a log, as a regular expression."""

    id: Identifier
    pattern: Pattern
    where: Literal["census", "traffic", "NCCL log", "training log"]
    proof: Proofs
    says: Prose | None = None
    lines: Scope = None


class GpuNeed(CardModel):
    """``needs: {gpus: 2}``."""

    gpus: Annotated[int, Field(ge=1)]


class Command(CardModel):
    """A command and what its success looks like. ringproof never executes it."""

    id: Identifier
    run: Prose
    expects: Prose
    needs: Literal["cpu", "upstream checkout"] | GpuNeed
    proof: Proofs
    lines: Scope = None


class Claim(CardModel):
    """Any other statement. ``short`` is its form in tables."""

    id: Identifier
    says: Prose
    proof: Proofs
    short: Line | None = None
    lines: Scope = None


class VersionRow(CardModel):
    """A row of the table of names by upstream version, which is filled from the lock.

    Attributes:
        about: Topic of the row.
        anchors: Ids of the anchors whose names may appear in its cells.
    """

    about: Line
    anchors: Annotated[tuple[Identifier, ...], Field(min_length=1)]


class Card(CardModel):
    """One ``card.yaml``.

    Attributes:
        validation_status: Topic -> ids of the statements that decide it. The label that NVIDIA's
            cards have is derived from the verdicts.
        known_constraints, known_limitations: Ids of statements, or prose; prose has no proof and
            is counted as unproven.
        follow_up_validation: Open work, not statements.
        lines: Lines of upstream that behave differently for the feature.
        version_matrix: Table with a row per entry and a column per upstream version.
    """

    title: Line
    summary: Prose
    validated_on: datetime.date
    upstreams: Mapping[Identifier, Upstream]
    lines: tuple[UpstreamLine, ...] = ()
    validation_status: Mapping[Line, tuple[Identifier, ...]] = Field(default_factory=dict)
    feature_meaning: Mapping[Line, Prose] = Field(default_factory=dict)
    recommended_path: Mapping[Line, ConfigValue] = Field(default_factory=dict)
    known_constraints: tuple[Prose, ...] = ()
    known_limitations: tuple[Prose, ...] = ()
    follow_up_validation: tuple[Prose, ...] = ()
    anchors: tuple[Anchor, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    pitfalls: tuple[Pitfall, ...] = ()
    markers: tuple[Marker, ...] = ()
    commands: tuple[Command, ...] = ()
    claims: tuple[Claim, ...] = ()
    version_matrix: tuple[VersionRow, ...] = ()
