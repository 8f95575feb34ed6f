"""Changes between two versions of a C++ or CUDA definition, and similarity of definitions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

from ringproof.harness.anchors.changes import (
    counted_lines,
    default_lines,
    shortened,
    signature_lines,
)
from ringproof.harness.anchors.native.contents import remark
from ringproof.harness.anchors.native.found import NativeFound
from ringproof.harness.anchors.native.heads import (
    after_brackets,
    outer,
    prefix_length,
    value_at,
)
from ringproof.harness.anchors.native.tokens import Token, code_tokens, spelled, string_value
from ringproof.harness.anchors.similarity import dice, with_names

_CHECK = re.compile(r"[A-Z0-9_]*(?:CHECK|ERROR|ASSERT|REQUIRE)\w*|assert|static_assert")
_LITERALS = frozenset(("string", "char", "number"))
_FUNCTIONS = frozenset(("function", "prototype"))
# Kinds with enough code to be compared by code alone; others also by name and documentation.
_LARGE = frozenset(("function", "prototype", "type", "enum", "registration"))


def summarise(old: NativeFound, new: NativeFound) -> tuple[str, ...]:
    """Summarize the differences that matter to a reader of a card.

    The order is: kind, signature (parameters, result, template parameters; or the members of a
    class or an enumeration), defaults (or the values of members, constants and macros), bases,
    failed checks (``throw`` and the messages of ``..._CHECK``, ``..._ERROR`` and assertions),
    literals of bodies. The result is ``body`` if only other parts differ.
    """
    if old.kind != new.kind:
        return (f"kind: {old.kind} -> {new.kind}",)
    said = [
        *signature_lines(_signature(old), _signature(new)),
        *default_lines(_settings(old), _settings(new)),
        *counted_lines("bases", _bases(old), _bases(new)),
        *counted_lines("raises", *(_checks(found.code())[0] for found in (old, new))),
        *counted_lines("literals", _literals(old), _literals(new)),
    ]
    return tuple(said) or ("body",)


def _signature(found: NativeFound) -> Mapping[str, str]:
    """Return names and types of a function's parameters or a class's members."""
    reading = found.reading
    if found.members:
        return {_member(item): _type(item) for item in found.members}
    if reading is None or found.kind not in (*_FUNCTIONS, "variable", "field", "extern"):
        return {}
    if found.kind not in _FUNCTIONS:
        return {found.name[-1]: reading.before}
    head = found.statement.head
    sides = {"template": spelled(head[: prefix_length(head)]), "after": reading.after}
    parameters = {parameter.name: parameter.type for parameter in reading.parameters}
    named = {name: text for name, text in sides.items() if text}
    return {**parameters, "return": reading.before, **named}


def _member(found: NativeFound) -> str:
    """Return the name of a member. Overloads have the same name."""
    return f"{found.name[-1]}()" if found.kind in _FUNCTIONS else found.name[-1]


def _type(found: NativeFound) -> str:
    return found.reading.before if found.kind == "field" and found.reading is not None else ""


def _settings(found: NativeFound) -> Mapping[str, str]:
    """Return default values of parameters, or values of members and constants."""
    if found.members:
        parts = (item for item in found.members if item.kind not in _FUNCTIONS)
        return {name: text for item in parts for name, text in _settings(item).items()}
    if found.kind in _FUNCTIONS:
        given = found.reading.parameters if found.reading is not None else ()
        return {item.name: item.default for item in given if item.default is not None}
    if found.kind in ("macro", "alias"):
        skipped = 3 if found.kind == "macro" else 0
        return {found.name[-1]: spelled(found.code()[skipped:])}
    values = dict(found.reading.values) if found.reading is not None else {}
    if len(values) > 1:
        return values
    value = _value(found.code())
    return {found.name[-1]: value} if value else {}


def _value(parts: Sequence[Token]) -> str:
    """Return an initializer, ``= 1`` or ``{1}``, without a semicolon."""
    end = len(parts) - (bool(parts) and parts[-1].text == ";")
    equals = value_at(parts[:end])
    if equals is not None:
        return spelled(parts[equals + 1 : end])
    brace = next((at for at in outer(parts[:end]) if parts[at].text == "{"), end)
    return spelled(parts[brace:end])


def _bases(found: NativeFound) -> Counter[str]:
    head = found.statement.head
    if found.kind != "type":
        return Counter()
    colon = next((at for at in outer(head) if head[at].text == ":"), len(head))
    text = spelled(head[colon + 1 :])
    return Counter([shortened(text)]) if text else Counter()


def _checks(parts: Sequence[Token]) -> tuple[Counter[str], frozenset[int]]:
    """Return the failed checks of a body, and the indices of their message literals."""
    counts: Counter[str] = Counter()
    said: set[int] = set()
    past = 0
    for at, token in enumerate(parts[:-1]):
        if token.kind != "word" or at < past:
            continue
        if token.text == "throw":
            end = next((i for i in range(at, len(parts)) if parts[i].text in ("(", ";")), at)
            counts[f"throw {shortened(spelled(parts[at + 1 : end]))}"] += 1
        elif parts[at + 1].text == "(" and _CHECK.fullmatch(token.text):
            past = after_brackets(parts, at + 1)
            inside = [i for i in range(at + 1, past) if parts[i].kind == "string"]
            said.update(inside)
            words = " ".join(string_value(parts[i].text) for i in inside)
            counts[f"{token.text} {shortened(repr(words))}" if words else token.text] += 1
    return counts, frozenset(said)


def _literals(found: NativeFound) -> Counter[str]:
    """Count the literals of function bodies. Those of signatures and values count as defaults."""
    if found.members:
        counts: Counter[str] = Counter()
        for item in found.members:
            counts.update(_literals(item))
        return counts
    body = found.statement.body
    if body is None:
        return Counter()
    parts = code_tokens(found.text.source, *body)
    _, said = _checks(parts)
    kept = (token for at, token in enumerate(parts) if at not in said)
    return Counter(shortened(token.text) for token in kept if token.kind in _LITERALS)


def likeness(first: NativeFound, second: NativeFound) -> float:
    """Return the similarity from 0 (nothing in common) to 1 (equal except for the name).

    Definitions are compared by the Dice coefficient of their tokens and pairs of neighbouring
    tokens. A field, constant or macro has too few tokens for that, so its name and the words of its
    documentation count as much as its code.
    """
    if _family(first) != _family(second):
        return 0.0
    code = dice(_features(first), _features(second))
    if first.kind in _LARGE:
        return code
    words = Counter(remark(first).split()), Counter(remark(second).split())
    return with_names(code, (first.name[-1], second.name[-1]), words)


def _family(found: NativeFound) -> str:
    return "function" if found.kind in _FUNCTIONS else found.kind


def _features(found: NativeFound) -> Counter[str]:
    own = found.name[-1].lstrip("~")
    texts = ["@" if token.text == own else token.text for token in found.code()]
    pairs = (f"{left} {right}" for left, right in pairwise(texts))
    return Counter([*texts, *pairs])
