"""The model of ``card.yaml``, from which a skill's tables are generated.

Keys of NVIDIA's cards keep their name and meaning. New are upstreams and anchors, and a ``proof``
for every statement. Cards have no line numbers: an anchor is a symbol and text that must occur
inside it.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, StringConstraints, Tag

from ringproof.harness.cards.fields import (
    Commit,
    Identifier,
    Line,
    Lines,
    Package,
    Pattern,
    Proofs,
    Prose,
    RelativePath,
    Repository,
    Sha256s,
    Symbol,
    Version,
)

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


class Marker(CardModel):
    """A line to look for in a log, as a regular expression."""

    id: Identifier
    pattern: Pattern
    where: Literal["census", "traffic", "NCCL log", "training log"]
    proof: Proofs
    says: Prose | None = None


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


class Claim(CardModel):
    """Any other statement. ``short`` is its form in tables."""

    id: Identifier
    says: Prose
    proof: Proofs
    short: Line | None = None


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
        version_matrix: Table with a row per entry and a column per upstream version.
    """

    title: Line
    summary: Prose
    validated_on: datetime.date
    upstreams: Mapping[Identifier, Upstream]
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
