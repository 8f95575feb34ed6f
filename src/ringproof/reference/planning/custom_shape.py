"""A model of one's own, from JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from ringproof.errors import InputError
from ringproof.reference.planning.shapes import ModelShape


def shape_from_json(data: Any) -> ModelShape:
    """A model from the fields of `ModelShape`; what has a default there may be left out.

    Raises:
        InputError: No object, or a field that is missing, unknown or out of range.
    """
    known = [item.name for item in fields(ModelShape)]
    if not isinstance(data, Mapping):
        remedy = f"write an object with {', '.join(known)}"
        raise InputError("model", type(data).__name__, "is no JSON object", remedy)
    for name in data:
        if name not in known:
            raise InputError(f"model.{name}", None, "unknown field", f"use {', '.join(known)}")
    for item in fields(ModelShape):
        if item.name not in ("name", *data) and item.default is MISSING:
            raise InputError(f"model.{item.name}", None, "is missing", "give it")
    return ModelShape(**{"name": "custom", **data})
