"""Types of text in a card, with validators whose errors have a remedy."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, StringConstraints
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
