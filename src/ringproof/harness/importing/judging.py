"""Classifies values of a foreign card: dates, failures, paths and mentions of code."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping

from ringproof.errors import InputError
from ringproof.harness.fences.markdown import find_mentions
from ringproof.harness.fences.model import Mention
from ringproof.harness.importing.draft import MAX_LINE, MAX_PROSE
from ringproof.harness.importing.flatten import Said
from ringproof.harness.importing.roots import Roots

NOT_SAID = "Not said upstream."

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_PATH = re.compile(r"(?:[\w.@+-]+/)+[\w.@+-]*|[\w@+-]+\.[A-Za-z]{1,5}")
_FIELDS = (
    ("symptom", ("symptom",)),
    ("cause", ("likely_cause", "cause")),
    ("remedy", ("fix", "remedy")),
)
FAILURE_KEYS = ("name", "symptom", "likely_cause", "cause", "fix", "remedy")
"""The keys of a failure mode that a pitfall has fields for."""


def date_of(value: object) -> datetime.date | None:
    """Return a date as ``YYYY-MM-DD``, or nothing."""
    if not isinstance(value, str) or _DATE.fullmatch(value.strip()) is None:
        return None
    try:
        return datetime.date.fromisoformat(value.strip())
    except ValueError:
        return None


def is_key(name: str) -> bool:
    """Return whether a name can be a key of a card without being stripped."""
    return name == name.strip() and 0 < len(name) <= MAX_LINE


def plain(value: object) -> str:
    """Return a number or a boolean as the card spells it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def without(said: Said, prefix: str) -> str:
    """Remove the label of a statement that its list already expresses."""
    deeper = said.label.removeprefix(prefix).removeprefix(".")
    return f"{deeper}: {said.text}" if deeper else said.text


def failure_of(item: Mapping[str, object]) -> tuple[dict[str, str], tuple[str, ...]] | None:
    """Return name, symptom, cause and remedy of a failure mode, and its other keys.

    Returns:
        ``None`` if it has no symptom, or if one of them is not plain text.
    """
    found: dict[str, str] = {"name": ""}
    taken: set[str] = set()
    for ours, (field, names) in enumerate((("name", ("name",)), *_FIELDS)):
        given = next((name for name in names if name in item), None)
        value = NOT_SAID if given is None else item[given]
        text = value.strip() if isinstance(value, str) else ""
        if given is None and ours == 0:
            continue
        if not 0 < len(text) <= MAX_PROSE - MAX_LINE:
            return None
        found[field] = text
        taken.update(() if given is None else (given,))
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
