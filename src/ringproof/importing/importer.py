"""Converts a skill with a card of NVIDIA's form to a skill with a card of ringproof."""

from __future__ import annotations

import datetime
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringproof.cards.document import MAX_BYTES, read_document
from ringproof.cards.loading import CARD_FILE, load_card
from ringproof.cards.model import Card
from ringproof.cards.proof import ProofKind
from ringproof.cards.statements import cross_check, statements
from ringproof.errors import InputError, printable
from ringproof.files import write_atomically
from ringproof.importing.anchoring import CodeAnchors, add_documents
from ringproof.importing.completeness import lost
from ringproof.importing.draft import CardDraft
from ringproof.importing.mapping import Mapper
from ringproof.importing.roots import Roots
from ringproof.importing.source import SkillSource, read_source
from ringproof.importing.writing import card_text

_DEFECT = "report this as a defect; nothing was written"


@dataclass(frozen=True)
class Imported:
    """A converted skill that is not yet written.

    Attributes:
        skill: Name of its folder.
        text: Its ``card.yaml``.
        card: The loaded card.
        became: Number of entries by key of the source and list of the card.
        evidence: Results for the entries of ``evidence``, by verdict.
        pointers: See `add_documents`.
        statements, unproven: Number of statements of the card, and of those without a proof.
    """

    skill: str
    source: SkillSource
    text: str
    card: Card
    became: Mapping[str, Mapping[str, int]]
    evidence: Mapping[str, int]
    pointers: Mapping[str, Mapping[str, int]]
    statements: int
    unproven: int


def convert(folder: Path, roots: Roots, *, today: datetime.date) -> Imported:
    """Read a skill and build the card, without writing it.

    Args:
        roots: Code to which the skill refers.
        today: Value of ``validated_on`` if the source has no date.

    Raises:
        InputError: The folder is not a skill, its card cannot be read or is already one of
            ringproof, or a statement would be lost, which would be a defect.
    """
    source = read_source(folder)
    skill = folder.resolve().name
    if source.has_card and "upstreams" in source.card and _is_ours(folder / CARD_FILE):
        problem = "is a ringproof card already"
        raise InputError(str(folder / CARD_FILE), None, problem, "edit it instead")
    draft = CardDraft()
    code = CodeAnchors(roots, draft)
    mapper = Mapper(source, draft, code, today)
    mapper.run()
    pointers = add_documents(source, code, draft)
    data = draft.data()
    _refuse_loss(source, data)
    card = _validated(source, data)
    said = statements(card)
    unproven = sum(
        all(proof.kind is ProofKind.UNPROVEN for proof in statement.proofs) for statement in said
    )
    text = _written(source, data, _head(source, len(said), unproven))
    return Imported(
        skill,
        source,
        text,
        card,
        became=mapper.became,
        evidence=mapper.evidence,
        pointers=pointers,
        statements=len(said),
        unproven=unproven,
    )


def write(imported: Imported, output: Path, *, force: bool) -> Path:
    """Copy the skill's other files and write the card last.

    Returns:
        Folder of the new skill, ``output/<skill>``.

    Raises:
        InputError: The folder is inside the skill or around it, already has such files (without
            ``force``), or cannot be written.
    """
    source = imported.source
    target = output / imported.skill
    refuse_overlap(source.folder, target)
    names = (*source.files, CARD_FILE)
    taken = [name for name in names if (target / name).exists() or (target / name).is_symlink()]
    if taken and not force:
        raise InputError("--output", target / taken[0], "exists", "use --force to replace it")
    for name in source.files:
        original = source.folder / name
        try:
            content, mode = original.read_bytes(), original.stat().st_mode & 0o777
        except OSError as error:
            problem = f"cannot be read: {error.strerror}"
            raise InputError("PATH", original, problem, "check its permissions") from error
        _put(target / name, content, mode)
    _put(target / CARD_FILE, imported.text, 0o644)
    return target


def refuse_overlap(folder: Path, target: Path) -> None:
    """Raise `InputError` if one folder is the other or inside it."""
    try:
        inner, outer = folder.resolve(), target.resolve()
    except (OSError, RuntimeError) as error:
        raise InputError("--output", target, "cannot be resolved", "name another") from error
    if inner.is_relative_to(outer) or outer.is_relative_to(inner):
        problem = f"is or overlaps the skill that is read ({folder})"
        raise InputError("--output", target, problem, "name a folder elsewhere")


def _put(file: Path, content: str | bytes, mode: int) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = f"cannot be made: {error.strerror}"
        raise InputError("--output", file.parent, problem, "name a writable place") from error
    write_atomically(file, content, field="--output", mode=mode)


def _is_ours(path: Path) -> bool:
    try:
        load_card(path)
    except InputError:
        return False
    return True


def _refuse_loss(source: SkillSource, data: Mapping[str, Any]) -> None:
    missing = lost(source.card, source.text, data)
    if missing:
        location, text = missing[0]
        where = ".".join(str(part) for part in location)
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        problem = f"would be lost{more} by the import"
        raise InputError(f"{source.folder / CARD_FILE}: {where}", text, problem, _DEFECT)


def _validated(source: SkillSource, data: Mapping[str, Any]) -> Card:
    """Validate the card before it is written as text."""
    try:
        card = Card.model_validate(data)
    except ValueError as error:
        problem = f"cannot be said in a card: {' '.join(str(error).split())[:300]}"
        raise InputError(str(source.folder), None, problem, _DEFECT) from error
    for wrong in cross_check(card):
        raise InputError(str(source.folder), wrong.value, wrong.problem, _DEFECT)
    return card


def _written(source: SkillSource, data: Mapping[str, Any], head: tuple[str, ...]) -> str:
    """Return the text of the card, and use the plain style if reading the text gives other data."""
    problem = ""
    for plainly in (False, True):
        text = card_text(data, head, plainly=plainly)
        size = len(text.encode("utf-8"))
        if size > MAX_BYTES:
            problem = f"becomes larger than a card may be ({MAX_BYTES:,} bytes)"
            remedy = "split the source card in two"
            raise InputError(str(source.folder / CARD_FILE), f"{size:,} bytes", problem, remedy)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, CARD_FILE)
            file.write_text(text, encoding="utf-8", newline="")
            try:
                same = read_document(file).data == data
            except InputError as error:
                problem = error.problem
                continue
        if same:
            return text
        problem = "its text is read back differently"
    raise InputError(str(source.folder), None, f"cannot be written as YAML: {problem}", _DEFECT)


def _head(source: SkillSource, count: int, unproven: int) -> tuple[str, ...]:
    """Return the comment at the top of the file."""
    of = "card.yaml and SKILL.md" if source.has_card else "SKILL.md"
    return (
        f"Imported by `ringproof card import` from {of} of {source.folder.resolve().name}.",
        f"{count} statements: {unproven} unproven, {count - unproven} places in code "
        "that `ringproof anchors check` can look up.",
        "Every text is the source's own. To prove a statement, put a test or an anchor into its",
        "`proof`; until then it is shown as unproven, whatever the source called it.",
    )


def as_json(imported: Sequence[Imported]) -> dict[str, Any]:
    """``{"version": 1, "skills": [...], "total": {...}}``."""
    return {
        "version": 1,
        "skills": [_skill(item) for item in imported],
        "total": {
            "cards": len(imported),
            "statements": sum(item.statements for item in imported),
            "unproven": sum(item.unproven for item in imported),
            "anchors": sum(len(item.card.anchors) for item in imported),
        },
    }


def _skill(item: Imported) -> dict[str, Any]:
    return {
        "skill": item.skill,
        "statements": item.statements,
        "unproven": item.unproven,
        "lists": _lists(item),
        "keys": item.became,
        **item.pointers,
        "evidence": item.evidence,
        "files": item.source.files,
        "left_out": item.source.left_out,
    }


def _lists(item: Imported) -> dict[str, int]:
    names = ("anchors", "constraints", "pitfalls", "claims")
    return {name: len(getattr(item.card, name)) for name in names}


def as_text(item: Imported) -> Iterator[str]:
    """Yield counts, then a line for each key, the documents and what was left out."""
    yield f"{item.skill}: {item.statements} statements, {item.unproven} unproven"
    yield f"  {_counted(_lists(item))}"
    for key, became in item.became.items():
        yield f"  {printable(key)} -> {_counted(became) if became else 'nothing: it is empty'}"
    fences, inline = item.pointers["fences"], item.pointers["inline"]
    if fences["found"] or inline["found"]:
        yield (
            f"  documents -> {fences['anchored']} of {fences['found']} fences and "
            f"{inline['anchored']} of {inline['found']} path:line mentions anchored"
        )
    if item.evidence:
        yield f"  evidence: {_counted(item.evidence)}"
    for name in item.source.left_out:
        yield f"  left out (a link, or not the skill's own): {printable(name)}"


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in counts.items())
