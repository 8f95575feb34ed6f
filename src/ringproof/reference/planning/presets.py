"""Look up a model or a machine by name, or read one from JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, Protocol, TypeVar, cast

from ringproof.errors import InputError


class _Named(Protocol):
    @property
    def name(self) -> str: ...


Preset = TypeVar("Preset", bound=_Named)


def named(presets: Sequence[Preset], name: str, what: str, remedy: str) -> Preset:
    """The preset of that name.

    Raises:
        InputError: There is none; ``remedy`` says what can be given instead of a name.
    """
    for preset in presets:
        if preset.name == name:
            return preset
    known = ", ".join(preset.name for preset in presets)
    raise InputError(what, name, f"unknown {what}", f"use one of {known}, or {remedy}")


def from_fields(kind: type[Preset], data: Any, what: str) -> Preset:
    """Build a dataclass from its fields in JSON; the name may be left out, and is ``custom`` then.

    Raises:
        InputError: Not an object, or a field that is missing, unknown or out of range.
    """
    known = {item.name: item.default is MISSING for item in fields(cast("Any", kind))}
    listed = ", ".join(name for name in known if name != "name")
    if not isinstance(data, Mapping):
        remedy = f"write an object with {listed}"
        raise InputError(what, type(data).__name__, "is not a JSON object", remedy)
    for name in data:
        if name not in known:
            raise InputError(f"{what}.{name}", None, "unknown field", f"use {listed}")
    for name, needed in known.items():
        if needed and name not in ("name", *data):
            raise InputError(f"{what}.{name}", None, "is missing", "give it")
    return kind(**{"name": "custom", **data})
