"""Maps the keys of a foreign card to a draft. Unknown keys become claims."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType

from ringproof.cards.document import Location
from ringproof.errors import InputError
from ringproof.fences.mentions import Mention, find_mentions
from ringproof.importing.anchoring import CodeAnchors
from ringproof.importing.draft import IDENTIFIER, MAX_LINE, MAX_PROSE, CardDraft
from ringproof.importing.roots import Roots
from ringproof.importing.source import Comment, SkillSource

SHORT_ITEM = 24
"""Characters of a list's longest item up to which the list stays on one line of its record."""

Spell = Callable[[Location, object], str]
"""The text of a scalar at a location."""
NOT_SAID = "Not said upstream."

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_PATH = re.compile(r"(?:[\w.@+-]+/)+[\w.@+-]*|[\w@+-]+\.[A-Za-z]{1,5}")
_FIELDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "name": ("name",),
        "symptom": ("symptom",),
        "cause": ("likely_cause", "cause"),
        "remedy": ("fix", "remedy"),
    }
)
FAILURE_KEYS = tuple(key for keys in _FIELDS.values() for key in keys)
"""The keys of a failure mode that a pitfall has fields for."""
_MEASURED = "measured upstream, linked to no log and no run"
_OTHERWISE = "stated upstream, linked to nothing"
_REASONS = MappingProxyType(
    {
        "failure_modes": "described upstream, linked to nothing that reproduces it",
        "expected_metric_change": "expected upstream, linked to no measurement",
        "measured_result": _MEASURED,
        "measured_results": _MEASURED,
        "best_measured_configs": _MEASURED,
        "profile_result": _MEASURED,
        "comment": "a comment of the upstream card, linked to nothing",
    }
)


@dataclass
class Mapper:
    """Converts one card to a draft.

    Attributes:
        today: Value of ``validated_on`` if the source has no date.
        became: Number of entries by key and list of the card.
        evidence: Results for the entries of ``evidence``.
    """

    source: SkillSource
    draft: CardDraft
    code: CodeAnchors
    today: datetime.date
    became: dict[str, dict[str, int]] = field(default_factory=dict)
    evidence: dict[str, int] = field(default_factory=dict)
    _used: set[Comment] = field(default_factory=set)

    def run(self) -> None:
        """Convert all keys in the card's order, then the comments that belong to no statement."""
        self._head()
        for key, value in self.source.card.items():
            if self.became.get(key):
                continue  # title, summary and date
            self.became[key] = {}
            if value not in (None, "", [], {}):
                _OWN.get(key, Mapper._others)(self, key, value)
        for comment in self.source.comments:
            if comment not in self._used:
                near = ".".join(str(part) for part in comment.location)
                label = f"comment at {near}" if near else "comment"
                said = SourceStatement(comment.location, label, comment.text)
                self._claim("comment", said, hint=f"{near} {comment.text}")

    def _head(self) -> None:
        """Set title, summary and date, which a card must have, and the upstreams."""
        source, head = self.source, self.draft.head
        name = source.name.strip() or source.folder.resolve().name
        self._required("title", name[:MAX_LINE], MAX_LINE)
        self._required("summary", source.description.strip()[:MAX_PROSE] or NOT_SAID, MAX_PROSE)
        date = date_of(source.card.get("validated_on"))
        head["validated_on"] = (date or self.today).isoformat()
        if date is not None:
            self._count("validated_on", "validated_on")
        head["upstreams"] = {root.name: dict(root.upstream) for root in self.code.roots.roots}

    def _required(self, key: str, fallback: str, limit: int) -> None:
        value = self.source.card.get(key)
        text = value.strip() if isinstance(value, str) else ""
        fits = 0 < len(text) <= limit
        self.draft.head[key] = text if fits else fallback
        if fits:
            self._count(key, key)

    def _statuses(self, key: str, value: object) -> None:
        if not isinstance(value, Mapping):
            self._others(key, value)
            return
        for topic, labels in value.items():
            said = flatten(labels, (key, topic), self.source.text)
            named = "; ".join(without(item, f"{key}.{topic}") for item in said)
            reason = f"labelled '{named[:200]}' upstream, linked to nothing"
            beside = [item for item in self.source.comments if item.location[:2] == (key, topic)]
            self._used.update(beside)
            notes = "".join(f" (comment: {comment.text})" for comment in beside)
            status = SourceStatement((key, topic), f"{key}.{topic}", f"{named}{notes}")
            ids = self._claim(key, status, hint=topic, prefix="status", reason=reason)
            if is_key(topic):
                self.draft.validation_status[topic] = ids
                self._count(key, key)

    def _settings(self, key: str, value: object) -> None:
        """Keep the entries of a mapping that a card can have as they are."""
        if not isinstance(value, Mapping):
            self._others(key, value)
            return
        kept = getattr(self.draft, key)
        for name, item in value.items():
            if key == "recommended_path":
                stays = self._stays(item, (key, name))
            else:
                item = item.strip() if isinstance(item, str) else item
                stays = isinstance(item, str) and 0 < len(item) <= MAX_PROSE
            if is_key(name) and stays:
                kept[name] = item
                self._count(key, key)
            else:
                self._others(key, item, name)

    def _stays(self, value: object, location: Location) -> bool:
        """Return whether a setting can be kept unchanged. Numbers must not lose digits."""
        if not isinstance(value, list):
            return self._is_exact(value, location)
        inside = enumerate(value)
        return bool(value) and all(self._is_exact(item, (*location, at)) for at, item in inside)

    def _is_exact(self, value: object, location: Location) -> bool:
        if isinstance(value, str):
            return value == value.strip()
        if isinstance(value, (list, Mapping)):
            return False
        return value is None or self.source.text(location, value) == plain(value)

    def _known(self, key: str, value: object) -> None:
        """Convert constraints or limitations to statements that their list names by id."""
        if key == "known_constraints":
            name, prefix = "constraints", "constraint"
        else:
            name, prefix = "claims", "limitation"
        for said in flatten(value, (key,), self.source.text):
            text = without(said, key)
            to = getattr(self.draft, name)
            ids = self.draft.say(to, prefix, text, text, self._reason(key, said))
            getattr(self.draft, key).extend(ids)
            self._count(key, name, len(ids))

    def _open_work(self, key: str, value: object) -> None:
        for said in flatten(value, (key,), self.source.text):
            text = without(said, key)
            if len(text) <= MAX_PROSE:
                self.draft.follow_up_validation.append(text)
                self._count(key, key)
            else:
                self._claim(key, said)

    def _failures(self, key: str, value: object) -> None:
        for index, item in enumerate(value if isinstance(value, list) else [value]):
            place: Location = (key, index) if isinstance(value, list) else (key,)
            if not isinstance(item, Mapping) or (found := failure_of(item)) is None:
                self._flat(key, item, place)
                continue
            fields, rest = found
            said = SourceStatement(place, key, " ".join(fields.values()))
            name = fields.pop("name")
            if name and IDENTIFIER.fullmatch(name) is None:
                fields["symptom"] = f"{name}: {fields['symptom']}"
            new = self.draft.pitfall(name, fields, self._reason(key, said))
            self._count(key, "pitfalls")
            for other in rest:
                self._flat(key, item[other], (*place, other), under=f"{key}.{new}.{other}")

    def _evidence(self, key: str, value: object) -> None:
        for said in flatten(value, (key,), self.source.text):
            verdict, reason = evidence_of(said.text, self.code.roots)
            self.evidence[verdict] = self.evidence.get(verdict, 0) + 1
            self._claim(key, said, hint=said.text, reason=reason)

    def _others(self, key: str, value: object, *below: str) -> None:
        self._flat(key, value, (key, *below))

    def _flat(self, key: str, value: object, place: Location, *, under: str = "") -> None:
        for said in flatten(value, place, self.source.text):
            label = said.label
            if under:  # the name of the entry instead of its position in the list
                label = f"{under}{label.removeprefix(f'{key}.{place[-1]}')}"
            self._claim(key, SourceStatement(said.location, label, said.text))

    def _claim(
        self, key: str, said: SourceStatement, *, hint: str = "", prefix: str = "", reason: str = ""
    ) -> list[str]:
        words = hint or said.label.removeprefix(key).strip(".") or said.text
        reason = self._reason(key, said, reason)
        ids = self.draft.say(self.draft.claims, prefix or key, words, said.says, reason)
        self._count(key, "claims", len(ids))
        return ids

    def _reason(self, key: str, said: SourceStatement, reason: str = "") -> str:
        """Return why a statement is unproven, and the result for the code that it names."""
        notes = [reason or _REASONS.get(key, _OTHERWISE)]
        for mention in mentions_in(said.text):
            anchors, why = self.code.add(mention, f"{key} of card.yaml", said.text)
            outcome = f"is anchor {', '.join(anchors)}" if anchors else why
            notes.append(f"{mention.path}:{mention.start} {outcome}")
        return "; ".join(notes)

    def _count(self, key: str, to: str, number: int = 1) -> None:
        counts = self.became.setdefault(key, {})
        counts[to] = counts.get(to, 0) + number


_Rule = Callable[[Mapper, str, object], None]
_OWN: Mapping[str, _Rule] = MappingProxyType(
    {
        "validation_status": Mapper._statuses,
        "feature_meaning": Mapper._settings,
        "recommended_path": Mapper._settings,
        "known_constraints": Mapper._known,
        "known_limitations": Mapper._known,
        "follow_up_validation": Mapper._open_work,
        "failure_modes": Mapper._failures,
        "evidence": Mapper._evidence,
    }
)


def date_of(value: object) -> datetime.date | None:
    """Return a date as ``YYYY-MM-DD``, or nothing."""
    with suppress(ValueError):
        if isinstance(value, str) and _DATE.fullmatch(value.strip()):
            return datetime.date.fromisoformat(value.strip())
    return None


def is_key(name: str) -> bool:
    """Return whether a name can be a key of a card without being stripped."""
    return name == name.strip() and 0 < len(name) <= MAX_LINE


def plain(value: object) -> str:
    """Return a number or a boolean as the card spells it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def without(said: SourceStatement, prefix: str) -> str:
    """Remove the label of a statement that its list already expresses."""
    deeper = said.label.removeprefix(prefix).removeprefix(".")
    return f"{deeper}: {said.text}" if deeper else said.text


def failure_of(item: Mapping[str, object]) -> tuple[dict[str, str], tuple[str, ...]] | None:
    """Return name, symptom, cause and remedy of a failure mode, and its other keys.

    Returns:
        ``None`` if it has no symptom, or if one of them is not plain text.
    """
    found = {"name": ""}
    taken = set()
    for field_name, keys in _FIELDS.items():
        given = next((key for key in keys if key in item), None)
        if given is None and field_name == "name":
            continue
        value = NOT_SAID if given is None else item[given]
        text = value.strip() if isinstance(value, str) else ""
        if not 0 < len(text) <= MAX_PROSE - MAX_LINE:
            return None
        found[field_name] = text
        taken.add(given)
    if "symptom" not in item or len(found["name"]) > MAX_LINE // 2:
        return None
    return found, tuple(key for key in item if key not in taken)


def mentions_in(text: str) -> tuple[Mention, ...]:
    """Return every ``path:line`` of a sentence; none if it cannot be read as Markdown."""
    try:
        found = find_mentions(text.encode("utf-8", "replace"), "card.yaml")
    except InputError:
        return ()
    return tuple(mention for mention in found if mention.kind == "inline")


def evidence_of(text: str, roots: Roots) -> tuple[str, str]:
    """Return the result for an entry of ``evidence``: a word, and the reason of its claim."""
    said = "named upstream as evidence"
    if _PATH.fullmatch(text) is None:
        return "prose", f"{said}; it is not a path"
    if not roots.roots:
        return "not looked up", f"{said}; no --upstream was given to look it up in"
    root = roots.holds(text)
    if root is not None:
        what = f"the path exists in {root.name}; what it shows is not said"
        return "exists", f"{said}; {what}"
    lacking = roots.lacking(text)
    if lacking:
        return "not looked up", f"{said}; no --upstream {lacking}=SPEC was given"
    return "missing", f"{said}; no root given has that path"


@dataclass(frozen=True)
class SourceStatement:
    """One statement of the source.

    Attributes:
        location: Location in the source.
        label: Keys of the location, without list positions.
        text: Value in words: a scalar, or ``key = value`` pairs.
    """

    location: Location
    label: str
    text: str

    @property
    def says(self) -> str:
        """Return label and text. A text of several lines begins on its own line."""
        if not self.label:
            return self.text
        return f"{self.label}:\n{self.text}" if "\n" in self.text else f"{self.label}: {self.text}"


def flatten(value: object, location: Location, spell: Spell) -> Iterator[SourceStatement]:
    """Yield the statements in a value.

    Each scalar and each item of a list is a statement. The scalars of a mapping, together with its
    short lists, are one statement. Deeper values follow in order.
    """
    if isinstance(value, Mapping) and value:
        yield from _mapping(value, location, spell)
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            yield from flatten(item, (*location, index), spell)
    else:
        none = isinstance(value, (list, Mapping))
        text = "(none)" if none else spell(location, value) or "(empty)"
        yield SourceStatement(location, label(location), text)


def label(location: Location) -> str:
    """Return ``best_configs.h100`` for ``("best_configs", 3, "h100")``."""
    return ".".join(part for part in location if isinstance(part, str))


def _mapping(
    value: Mapping[str, object], location: Location, spell: Spell
) -> Iterator[SourceStatement]:
    flat = {key: item for key, item in value.items() if _is_flat(item)}
    if flat:
        pairs = (f"{key} = {_inline(item, (*location, key), spell)}" for key, item in flat.items())
        yield SourceStatement(location, label(location), "; ".join(pairs))
    for key, item in value.items():
        if key not in flat:
            yield from flatten(item, (*location, key), spell)


def _is_flat(value: object) -> bool:
    if isinstance(value, list):
        plain = not any(isinstance(item, (list, dict)) for item in value)
        return bool(value) and plain and all(len(str(item)) <= SHORT_ITEM for item in value)
    return not isinstance(value, Mapping)


def _inline(value: object, location: Location, spell: Spell) -> str:
    if isinstance(value, list):
        items = (spell((*location, index), item) for index, item in enumerate(value))
        return ", ".join(items)
    return spell(location, value) or "(empty)"
