"""The model of ``card.yaml``, from which a skill's tables are generated.

Keys of NVIDIA's cards keep their name and meaning. New are upstreams and anchors, and a ``proof``
for every statement. Cards have no line numbers: an anchor is a symbol and text that must occur
inside it. The docstring below a field is also its description in the JSON Schema.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    StringConstraints,
    Tag,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from ringproof.cards.proof import PROOF_NODE, ProofKind, parse_proof

_WORD = r"[^\W\d]\w*"
_NUMBER = r"(#[1-9][0-9]*)?"
_SYMBOL = (
    rf"--[A-Za-z0-9][\w-]*{_NUMBER}"  # an option
    rf"|{_WORD}{_NUMBER}(\.{_WORD}{_NUMBER})*"  # a dotted name
)
# The patterns of JSON Schema are those of ECMAScript.
_PATH = r"^(?![^/]*:)(?!(?:.*/)?\.{0,2}(?:/|$))[^\\\x00]+$"
_PROOF = (
    r"^\s*(?:(?:anchor|unproven):\s*\S[\s\S]*|(?![^:\[]*/\.{1,2}/)"
    rf"{PROOF_NODE.pattern.replace('?P<file>', '?:')})\s*$"
)


def wrong(problem: str, remedy: str) -> PydanticCustomError:
    """Return a validation error with a remedy for `ringproof.errors.InputError`."""
    return PydanticCustomError("card", "{problem}", {"problem": problem, "remedy": remedy})


@dataclass(frozen=True, eq=False)
class _Form:
    """A check of a value that has the right type, and the same check in JSON Schema."""

    check: Callable[[Any], Any]
    schema: Mapping[str, Any]

    def __get_pydantic_core_schema__(self, kind: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(kind))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {**handler(schema), **self.schema}


class OneOrMany:
    """A list of which a single item may be written without brackets."""

    def __get_pydantic_core_schema__(self, kind: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(
            lambda value: (value,) if isinstance(value, str) else value, handler(kind)
        )

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        several = handler(schema)
        return {"anyOf": [several["items"], several]}


def _matching(pattern: str, what: str, example: str, *, quotable: bool = False) -> _Form:
    """Require text that a pattern matches as a whole; remove quotes around it if ``quotable``."""

    def check(text: str) -> str:
        quoted = quotable and len(text) > 2 and text[0] == text[-1] and text[0] in "\"'"
        bare = text[1:-1] if quoted else text
        if re.fullmatch(pattern, bare) is None:
            raise wrong(f"is not {what}", f"write it like {example}")
        return bare

    forms = (pattern, f'"(?:{pattern})"', f"'(?:{pattern})'") if quotable else (pattern,)
    return _Form(check, {"pattern": f"^(?:{'|'.join(forms)})$"})


def _relative_path(text: str) -> str:
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


def _regular_expression(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise wrong(f"is not a regular expression: {error}", "escape it or correct it") from error
    return text


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


def _text(longest: int) -> StringConstraints:
    return StringConstraints(strip_whitespace=True, min_length=1, max_length=longest)


_VISIBLE = Field(json_schema_extra={"pattern": r"\S"})
Identifier = Annotated[
    str,
    StringConstraints(max_length=100),
    _matching("[A-Za-z0-9][A-Za-z0-9._-]*", "an id", "group-ranks"),
]
Label = Annotated[str, _text(40), _VISIBLE]
Line = Annotated[str, _text(500), _VISIBLE]
Prose = Annotated[str, _text(5000), _VISIBLE]
Lines = Annotated[tuple[Line, ...], OneOrMany()]
Package = Annotated[
    str,
    _matching("[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", "a package name", "megatron-core"),
]
Version = Annotated[str, _matching("[0-9][A-Za-z0-9.!+_-]*", "an exact version", "'0.16.1'")]
Repository = Annotated[
    str, _matching("[A-Za-z0-9][A-Za-z0-9-]*/[A-Za-z0-9._-]+", "OWNER/NAME", "NVIDIA/Megatron-LM")
]
Commit = Annotated[str, _matching("[0-9a-f]{40}", "a full commit id", "40 hex digits")]
Sha256 = Annotated[str, _matching("[0-9a-f]{64}", "a SHA-256", "64 hex digits")]
RelativePath = Annotated[
    str, StringConstraints(max_length=500), _Form(_relative_path, {"pattern": _PATH})
]
Symbol = Annotated[
    str,
    StringConstraints(max_length=300),
    _matching(
        _SYMBOL,
        "a symbol",
        "TransformerConfig.cp_comm_type, function#2 or '--option'; in other languages than Python, "
        "leave it out",
        quotable=True,
    ),
]
Pattern = Annotated[Line, _Form(_regular_expression, {"format": "regex"})]
Day = Annotated[datetime.date, Field(json_schema_extra={"pattern": r"^\d{4}-\d{2}-\d{2}$"})]
ConfigValue = bool | int | float | str | None | tuple[bool | int | float | str | None, ...]

# Fields that several parts of a card have.
Id = Annotated[Identifier, Field(description="Unique in the card; proofs and lists refer to it.")]
Says = Annotated[Prose, Field(description="The statement, in words.")]
Proofs = Annotated[
    tuple[Annotated[Line, Field(json_schema_extra={"pattern": _PROOF})], ...],
    _Form(_proofs, {"minItems": 1, "uniqueItems": True}),
    OneOrMany(),
    Field(description="checks/FILE.py::test, smoke/FILE.py::test, anchor:ID, or `unproven: WHY`."),
]
Scope = Annotated[
    Annotated[tuple[Identifier, ...], OneOrMany()] | None,
    Field(description="Ids of the lines of upstream that the statement is about."),
]
"""``None``: the lines of the upstreams that the statement's anchors name. Empty: it is about
ringproof's own code."""


class CardModel(BaseModel):
    """Base of every part of a card: frozen, without other keys."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )


class PackageUpstream(CardModel):
    """A release on the package index, which is downloaded as a wheel."""

    package: Package
    """Name on the package index."""
    version: Version
    """One exact version, in quotes if it looks like a number."""
    file_sha256: Annotated[tuple[Sha256, ...], OneOrMany()] = ()
    """SHA-256 of the accepted files: one, or one per Python version. Default: any file."""
    repo: Repository | None = None
    """Repository of its sources, for permalinks."""
    ref: Line | None = None
    """The branch or tag that the commit was read from."""
    commit: Commit | None = None
    """The commit of its sources, for permalinks."""
    label: Label | None = None
    """Name in tables; the version by default."""


class RepositoryUpstream(CardModel):
    """A commit of a repository, with the branch or tag it was read from."""

    repo: Repository
    """OWNER/NAME of the repository."""
    ref: Line
    """The branch or tag that the commit was read from."""
    commit: Commit
    """All 40 digits of the commit id."""
    label: Label | None = None
    """Name in tables; by default the ref, with the commit if the ref moves."""


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
    """A reference to upstream code: a symbol or a file, and text that must occur inside it."""

    model_config = ConfigDict(
        json_schema_extra={"anyOf": [{"required": ["symbol"]}, {"required": ["expects"]}]}
    )

    id: Id
    upstream: Identifier
    """Key of the card's `upstreams`."""
    path: RelativePath
    """Path of the file from the upstream's root."""
    symbol: Symbol | None = None
    """Dotted Python name, or a command-line option such as `--cp-comm-type`. A name defined several
    times at one level needs `#2` (the second). Without it the file as a whole, in any language."""
    role: Prose
    """What the code does, in our own words."""
    expects: Lines = ()
    """Identifiers or parts of string literals that must occur inside the symbol, or texts that must
    occur in lines of the file."""
    short: Line | None = None
    """The role in a few words, for tables."""

    @model_validator(mode="after")
    def _names_something(self) -> Anchor:
        if self.symbol is None and not self.expects:
            raise wrong("names neither a symbol nor what must occur", "add symbol or expects")
        return self


class Probe(CardModel):
    """A fact about code that tells lines of upstream apart."""

    path: RelativePath
    """Path of a file from the upstream's root."""
    symbol: Symbol | None = None
    """Symbol in it, as an anchor names one; without it the file as a whole."""
    expects: Lines = ()
    """Texts that must occur inside the symbol, or the file."""
    absent: bool = False
    """The symbol, or the file, must not be there."""


class UpstreamLine(CardModel):
    """A line of upstream: commits and releases that behave alike for the feature."""

    id: Id
    repo: Repository
    """The repository; a release belongs to the line of its sources."""
    says: Prose
    """What distinguishes this line from others."""
    trains: bool
    """Whether the feature can train on it."""
    because: Prose | None = None
    """Why it cannot."""
    probe: Annotated[tuple[Probe, ...], Field(min_length=1)]
    """Every entry must hold in a tree of this line. Code decides, not a version or a date."""
    upstreams: tuple[Identifier, ...] = ()
    """Keys of the card's upstreams that are on this line."""
    unread: Prose | None = None
    """Why there are none."""


class Constraint(CardModel):
    """A rule for configurations."""

    id: Id
    says: Says
    proof: Proofs
    rule: Line | None = None
    """The function that decides it."""
    upstream_anchor: Identifier | None = None
    """The anchor of upstream's own check of it."""
    short: Line | None = None
    """The rule in one line, for lists and tables."""
    lines: Scope = None


class ShortPitfall(CardModel):
    """Cells of a pitfall's row in a table. Missing cells are taken from the pitfall."""

    symptom: Line | None = None
    """How it shows."""
    cause: Line | None = None
    """Why it happens."""
    remedy: Line | None = None
    """The way out."""
    affects: Line | None = None
    """Versions, paths or configurations it concerns."""


class Pitfall(CardModel):
    """A failure, with symptom, cause and remedy."""

    id: Id
    symptom: Prose
    """How it shows."""
    cause: Prose
    """Why it happens."""
    remedy: Prose
    """The way out."""
    proof: Proofs
    affects: Lines = ()
    """Versions, paths or configurations it concerns."""
    references: Lines = ()
    """Issues and pages about it."""
    short: ShortPitfall | None = None
    """The same in fewer words, for the table of `SKILL.md`."""
    lines: Scope = None


class Marker(CardModel):
    """A line to look for in a log, as a regular expression."""

    id: Id
    pattern: Pattern
    """A regular expression, sought in each line."""
    where: Literal["census", "traffic", "NCCL log", "training log"]
    """The log it is sought in."""
    proof: Proofs
    says: Prose | None = None
    """The statement, in words."""
    lines: Scope = None


class GpuNeed(CardModel):
    """``needs: {gpus: 2}``."""

    gpus: Annotated[int, Field(ge=1)]
    """How many GPUs, at least 1."""


class Command(CardModel):
    """A command and what its success looks like. ringproof never executes it."""

    id: Id
    run: Prose
    """The command; it is never executed from here."""
    expects: Prose
    """What its success looks like."""
    needs: Literal["cpu", "upstream checkout"] | GpuNeed
    """cpu, upstream checkout, or {gpus: N}."""
    proof: Proofs
    lines: Scope = None


class Claim(CardModel):
    """Any other statement."""

    id: Id
    says: Says
    proof: Proofs
    short: Line | None = None
    """The same in fewer words, for tables."""
    lines: Scope = None


class VersionRow(CardModel):
    """A row of the table of names by upstream version, which is filled from the lock."""

    about: Line
    """Topic of the row."""
    anchors: Annotated[tuple[Identifier, ...], Field(min_length=1)]
    """Ids of the anchors whose names may appear in its cells."""


class CardLines(CardModel):
    """The code that a card is about; the part of ``card.yaml`` that says which upstream this is."""

    upstreams: Mapping[Identifier, Upstream]
    """The code that anchors point into, by a name of your choice."""
    lines: tuple[UpstreamLine, ...] = ()
    """Lines of upstream that behave differently for the feature."""


class Card(CardLines):
    """One ``card.yaml``."""

    title: Line
    """The feature, in snake_case."""
    summary: Prose
    """What it is, in a few sentences."""
    validated_on: Day
    """The day on which the statements were last looked at: YYYY-MM-DD."""
    newest_commit: Day | None = None
    """The day of the newest commit among the upstreams: YYYY-MM-DD."""
    validation_status: Mapping[Line, tuple[Identifier, ...]] = Field(default_factory=dict)
    """Topic -> ids of the statements that decide it. The label that NVIDIA's cards have is derived
    from the verdicts."""
    feature_meaning: Mapping[Line, Prose] = Field(default_factory=dict)
    """Term -> what it means here."""
    recommended_path: Mapping[Line, ConfigValue] = Field(default_factory=dict)
    """Configuration key -> value to start with."""
    known_constraints: tuple[Prose, ...] = ()
    """Ids of statements, or prose; prose has no proof and is counted as unproven."""
    known_limitations: tuple[Prose, ...] = ()
    """Ids of statements, or prose; prose has no proof and is counted as unproven."""
    follow_up_validation: tuple[Prose, ...] = ()
    """Open work, not statements."""
    anchors: tuple[Anchor, ...] = ()
    """Places in upstream's code."""
    constraints: tuple[Constraint, ...] = ()
    """Rules that a configuration must obey."""
    pitfalls: tuple[Pitfall, ...] = ()
    """What goes wrong, how it shows, and the way out."""
    markers: tuple[Marker, ...] = ()
    """Lines to look for in logs."""
    commands: tuple[Command, ...] = ()
    """Commands, and what their success looks like."""
    claims: tuple[Claim, ...] = ()
    """All other statements."""
    blocks: Mapping[Identifier, Line] = Field(default_factory=dict)
    """Name -> ``KIND key=value``: generated blocks that documents ask for by this name."""
    version_matrix: tuple[VersionRow, ...] = ()
    """Table with a row per entry and a column per upstream version."""
