"""Loads cards. Errors name file, line, field and remedy."""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from ringproof.cards.card import Card, CardLines, CardModel
from ringproof.cards.document import MAX_BYTES, Location, YamlDocument, read_document
from ringproof.cards.statements import CardProblem, cross_check
from ringproof.errors import InputError, shown
from ringproof.files import read_bounded

_Model = TypeVar("_Model", bound=CardModel)
CARD_FILE = "card.yaml"
CARDS_FOLDER = "cards"
"""Beside the folder of the skills. An installed skill is small without its card and lock."""

_UPSTREAMS = re.compile(rb"^upstreams:", re.MULTILINE)
_REMEDIES: Mapping[str, str] = MappingProxyType(
    {
        "missing": "add it",
        "string_type": "write text, in quotes if it looks like a number",
        "tuple_type": "write a list",
        "too_short": "name at least one",
        "dict_type": "write `key: value` lines",
        "mapping_type": "write `key: value` lines",
        "model_type": "write `key: value` lines",
        "model_attributes_type": "write `key: value` lines",
        "string_too_short": "write something or remove the key",
        "string_too_long": "shorten it or move it to references/",
    }
)


@dataclass(frozen=True)
class LocatedCard:
    """A card and its document, which has the line of every value."""

    card: Card
    document: YamlDocument

    def anchor_lines(self) -> Mapping[str, tuple[int, int]]:
        """Return the line of each anchor, by id, and the line on which its last value begins."""
        found: dict[str, tuple[int, int]] = {}
        for place, line in self.document.lines.items():
            if place[:1] == ("anchors",) and len(place) > 1:
                name = self.card.anchors[int(place[1])].id
                first, last = found.get(name, (line, line))
                found[name] = min(first, line), max(last, line)
        return found


def load_card(path: Path) -> Card:
    """Read, parse and check one card.

    Raises:
        InputError: The card has a problem. The message has the first one and the number of others.
    """
    return locate_card(path).card


def locate_card(path: Path) -> LocatedCard:
    """Load a card together with the lines of its values.

    Raises:
        InputError: As `load_card`.
    """
    document = read_document(path)
    return LocatedCard(_validated(Card, document, cross_check), document)


def load_lines(path: Path) -> CardLines:
    """Read the upstreams and lines of a card, which stand first; the errors are `load_card`'s."""
    wanted = CardLines.model_fields
    document = read_document(path, until=wanted)
    data = document.data if isinstance(document.data, dict) else {}
    found = {key: value for key, value in data.items() if key in wanted}
    return _validated(CardLines, replace(document, data=found))


def _validated(
    kind: type[_Model],
    document: YamlDocument,
    check: Callable[[_Model], Iterable[CardProblem]] = lambda _: (),
) -> _Model:
    """Return a document as a model, or raise an error with the first problem, and count others."""
    if not isinstance(document.data, dict):
        raise InputError(f"{document.path}:1", "this is not a mapping; write `key: value` lines")
    try:
        card = kind.model_validate(document.data)
        problems = list(check(card))
        if not problems:
            return card
    except ValidationError as error:
        problems = [_problem(detail, document) for detail in error.errors(include_url=False)]
    first, more = problems[0], f" (and {len(problems) - 1} more)" if problems[1:] else ""
    field = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in first.location)
    shown = " ".join(field.split()).lstrip(".")[:200]
    where = f"{document.path}:{document.line(first.location)}" + (f": {shown}" if shown else "")
    raise InputError(where, first.sentence + more)


def find_cards(skills: Path, names: tuple[str, ...] = ()) -> Mapping[str, Path]:
    """Find the card of each skill below a folder, sorted by skill name.

    The card of ``skills/NAME`` is ``cards/NAME/card.yaml`` if that exists, and otherwise
    ``skills/NAME/card.yaml``.

    Args:
        names: Skills to find; all if empty.

    Raises:
        InputError: The folder or a skill does not exist, a skill has no card or is outside the
            folder, or there is no skill.
    """
    if not _is_folder(skills):
        raise InputError("--skills", f"no such folder {shown(skills)}; name that of the skills")
    known = {
        folder.name: folder
        for folder in sorted(skills.iterdir())
        if (folder / "SKILL.md").exists() or (folder / CARD_FILE).exists()
    }
    for name in names:
        if name not in known:
            choice = ", ".join(known) or "none there"
            raise InputError(
                "SKILL", f"no such skill {shown(name)} in {skills}; choose from: {choice}"
            )
    if not known:
        raise InputError("--skills", f"{shown(skills)} holds no skill; name another folder")
    found = {}
    for name in sorted(set(names)) or known:
        card = find_card(known[name])
        if card is None:
            remedy = "write it, as docs/how-to/prove-in-ci.md of ringproof shows"
            place = str(known[name] / CARD_FILE)
            raise InputError(place, f"the skill {name} has no card, which is this file; {remedy}")
        refuse_link_outside(card)
        found[name] = card
    return MappingProxyType(found)


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # the name is too long, or a folder above it cannot be entered
        return False


def find_card(folder: Path) -> Path | None:
    """Return the path of the card of a skill's folder, see `find_cards`; ``None`` without one."""
    apart = folder.parent.parent / CARDS_FOLDER / folder.name / CARD_FILE
    return next((card for card in (apart, folder / CARD_FILE) if card.exists()), None)


def has_card(skills: Path) -> bool:
    """Return whether a folder of skills has a card of this form: only these name upstreams.

    A card that cannot be read, or is larger than cards are, is none.
    """
    with contextlib.suppress(OSError):
        return any(map(_names_upstreams, filter(None, map(find_card, skills.iterdir()))))
    return False


def _names_upstreams(card: Path) -> bool:
    with contextlib.suppress(OSError):
        return _UPSTREAMS.search(read_bounded(card, MAX_BYTES)) is not None
    return False


def refuse_link_outside(card: Path) -> None:
    """Raise `InputError` for a card that is a link out of the folder of all cards or skills."""
    root = card.parent.parent
    if not card.resolve().is_relative_to(root.resolve()):
        raise InputError(str(card), f"the card lies outside the {root.name} folder; copy it there")


def _problem(detail: ErrorDetails, document: YamlDocument) -> CardProblem:
    """Return an error of pydantic in our words."""
    kind, text, value = detail["type"], detail["msg"], detail["input"]
    problem = text[:1].lower() + text[1:]
    remedy = _REMEDIES.get(kind, "see the schema in ringproof.cards.card")
    if kind == "card":
        remedy = detail["ctx"]["remedy"]
    elif kind == "missing":
        problem, value = "the key is missing", None
    elif kind == "extra_forbidden":
        known = [name for model in CardModel.__subclasses__() for name in model.model_fields]
        near = difflib.get_close_matches(str(detail["loc"][-1]), known, n=1)
        problem, value = f"{shown(detail['loc'][-1])} is not a key of a card", None
        remedy = f"did you mean `{near[0]}`?" if near else "remove it"
    if isinstance(value, (dict, list, tuple)):
        value = type(value).__name__
    if value is not None:
        problem = (
            f"{shown(value)} {problem}" if kind == "card" else f"{problem}, not {shown(value)}"
        )
    location: Location = ()
    for part in detail["loc"][:-1]:  # without the names of union branches
        location = (*location, part) if (*location, part) in document.lines else location
    return CardProblem((*location, *detail["loc"][-1:]), f"{problem}; {remedy}")
