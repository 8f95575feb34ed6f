"""Options of a command for the fields of a case: names in refusals, and lists of integers."""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterator, Mapping

from ringproof.errors import InputError


@contextlib.contextmanager
def named_by_option(options: Mapping[str, str], given: Container[str]) -> Iterator[None]:
    """Name the option instead of the field in refusals.

    Args:
        options: Option of each field whose option is not its name with dashes.
        given: Parameters of the command. A field that is neither keeps its name.
    """
    try:
        yield
    except InputError as error:
        name = options.get(error.field, error.field)
        if name in given:
            name = f"--{name.replace('_', '-')}"
        raise InputError(name, error.value, error.problem, error.remedy) from None


def integers(option: str, text: str, example: str) -> tuple[int, ...]:
    """Return the integers of a comma-separated list; an empty text has none.

    Raises:
        InputError: A part is not an integer.
    """
    try:
        return tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise InputError(option, text, "not a list of integers", f"write it as {example}") from None
