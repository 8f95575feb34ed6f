"""Build values from parsed JSON, and name the first field that is wrong."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from ringproof.errors import InputError, shown

Form = TypeVar("Form")
CLOSED = ConfigDict(extra="forbid")
"""Refuse fields that a dataclass does not have."""
_OF_THE_FORM = MappingProxyType(
    {
        "missing": "is missing",
        "extra_forbidden": "is an unknown field",
        "unexpected_keyword_argument": "is an unknown field",
        "dataclass_type": "is not a JSON object",
        "model_type": "is not a JSON object",
    }
)
_OF_A_VALUE = MappingProxyType(
    {
        "greater_than_equal": "is less than {ge:,}",
        "less_than_equal": "is more than {le:,}",
        "int_from_float": "is not a whole number",
    }
)


def built(form: type[Form], data: Any, what: str, remedy: str) -> Form:
    """Build a value from its JSON.

    Args:
        form: A pydantic model, or a dataclass of pydantic.
        data: The parsed JSON.
        what: Name of the whole, for messages; names of fields follow it after a dot or ``: ``.
        remedy: What to do if the data do not have that form.

    Raises:
        InputError: A field is missing, unknown, of another type or out of range.
    """
    try:
        return TypeAdapter(form).validate_python(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        cause = first.get("ctx", {}).get("error")
        if isinstance(cause, InputError):
            raise cause from None
        parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
        field = (what + "".join(parts)).replace(": .", ": ").removesuffix(": ")
        if first["type"] in _OF_THE_FORM:
            raise InputError(field, f"{_OF_THE_FORM[first['type']]}; {remedy}") from None
        value = first["input"]
        what = "the value" if isinstance(value, (dict, list)) else shown(value)
        problem = first["msg"].replace("Input should be", "is not")
        if first["type"] in _OF_A_VALUE:
            problem = _OF_A_VALUE[first["type"]].format(**first.get("ctx", {}))
        raise InputError(field, f"{what} {problem}; correct it") from None
