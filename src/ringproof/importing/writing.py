"""Writes the imported card as YAML that is easy to edit."""

from __future__ import annotations

import datetime
import io
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedSeq
from ruamel.yaml.scalarstring import (
    DoubleQuotedScalarString,
    FoldedScalarString,
    LiteralScalarString,
)

WIDTH = 88
"""Where lines are folded, at the next space."""
_LONG = 70
_NEVER = 2_000_000

# Text that some YAML readers take for a number, a date, a boolean or null.
_DOUBTFUL = re.compile(
    r"[-+]?[\d.][\d_.:+-]*([eE][-+]?\d*)?|0[xob][\da-f_]+|~|null|true|false|yes|no|on|off|y|n|",
    re.IGNORECASE,
)
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_FLOW = ("validation_status", "recommended_path")


def card_text(data: Mapping[str, Any], head: Iterable[str], *, plainly: bool = False) -> str:
    """Return a card as YAML with folded long text and a blank line between its keys.

    Args:
        head: Lines of the comment at the top.
        plainly: Whether to quote every text, for text that other styles cannot represent.
    """
    dumper = YAML()
    # Folding a quoted text with tabs would lose some of its white space.
    dumper.width = _NEVER if plainly else WIDTH
    dumper.indent(mapping=2, sequence=4, offset=2)
    dumper.allow_unicode = True
    blocks = ["".join(f"# {line}\n" if line else "#\n" for line in head)]
    simple = ""
    for key, value in data.items():
        stream = io.StringIO()
        dumper.dump({key: _value(key, value, plainly=plainly)}, stream)
        text = stream.getvalue()
        if isinstance(value, (dict, list)) and value:
            blocks += [simple, text]
            simple = ""
        else:
            simple += text
    return "\n".join(block for block in (*blocks, simple) if block)


def _value(key: str, value: object, *, plainly: bool) -> object:
    if key == "validated_on" and isinstance(value, str) and _DATE.fullmatch(value):
        return datetime.date.fromisoformat(value)
    new = styled(value, plainly=plainly)
    for items in new.values() if key in _FLOW and isinstance(new, dict) else ():
        if isinstance(items, CommentedSeq) and sum(len(str(item)) + 2 for item in items) < _LONG:
            items.fa.set_flow_style()
    return new


def styled(value: object, *, plainly: bool) -> object:
    """Return plain data with the style of each text."""
    if isinstance(value, Mapping):
        return {_key(key): styled(item, plainly=plainly) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return CommentedSeq([styled(item, plainly=plainly) for item in value])
    if not isinstance(value, str):
        return value
    if plainly or not value.replace("\n", "").isprintable() or _DOUBTFUL.fullmatch(value):
        return DoubleQuotedScalarString(value)
    tidy = value == value.strip() and not re.search(r"[ \t]\n|\n[ \t]|\n\n|  ", value)
    if "\n" in value:
        solid = value == value.strip() and not re.search(r"[ \t]\n", value)
        return LiteralScalarString(value) if solid else DoubleQuotedScalarString(value)
    return FoldedScalarString(value) if tidy and len(value) > _LONG else value


def _key(key: str) -> str:
    if not key.isprintable() or _DOUBTFUL.fullmatch(key) or len(key) > _LONG:
        return DoubleQuotedScalarString(key)
    return key
