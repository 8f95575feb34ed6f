"""Fields of frozen dataclasses that are options of the command line.

A field that `option` declares says all that the command line has to know of it: default, help
text, placeholder, and which values it takes. `ringproof.cli.options` makes a command of such a
dataclass. `check_options` checks the values, and is called by the dataclass itself, so that they
are checked in the same way for those who build it in Python.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from types import MappingProxyType
from typing import Any, get_type_hints

from ringproof.errors import InputError, check_name, shown

LONGEST_SECONDS = 1_000_000
"""A wait on a file descriptor takes at most 2**31 ms, which is 25 days."""


@dataclass(frozen=True, kw_only=True)
class OptionField:
    """What the command line knows of a field.

    Attributes:
        help: Whole sentences about the option; its choices and its default are printed anyway.
        names: Spellings with dashes. Without one, the option is the field's name with dashes.
        metavar: Placeholder of the value in the help, such as ``N``.
        choices: The values that a text may have; any value for none.
        least, most: Limits of a number, ``None`` for none; ``most`` only with ``least``.
        seconds: Whether the number is a time to wait.
        needs: Field of the same dataclass without which this one has no effect, or several with
            spaces between them, any of which will do.
        argument: Whether it is an argument, which has a placeholder in place of a spelling.
        callback: Changes the value of the command line, as typer's callbacks do.
    """

    help: str
    names: tuple[str, ...] = ()
    metavar: str = ""
    choices: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    seconds: bool = False
    needs: str = ""
    argument: bool = False
    callback: Callable[..., Any] | None = None


def option(default: Any, help: str, *names: str, choices: Iterable[str] = (), **other: Any) -> Any:
    """Declare a field that is an option; the arguments are the attributes of `OptionField`.

    The default ``...`` means that the command line has to give it.
    """
    told = OptionField(help=help, names=names, choices=tuple(choices), **other)
    return field(default=default, metadata={"option": told})


def seconds(default: float | None, help: str) -> Any:
    """Declare a field that is a time to wait in seconds."""
    return option(default, help, metavar="SECONDS", seconds=True)


def told(one: Field[Any]) -> OptionField:
    """Return what `option` says of a field."""
    found = one.metadata["option"]
    assert isinstance(found, OptionField)
    return found


def spelled(one: Field[Any]) -> str:
    """Return the option of a field as the user writes it, such as ``--max-length``."""
    names = told(one).names
    if told(one).argument:
        return told(one).metavar
    return names[0].split("/")[0] if names else f"--{one.name.replace('_', '-')}"


def option_fields(kind: type) -> Iterator[tuple[Field[Any], Any]]:
    """Yield the fields that are options, with their types, also those of nested dataclasses."""
    hints = get_type_hints(kind)
    for one in fields(kind):
        if "option" in one.metadata:
            yield one, hints[one.name]
        else:
            yield from option_fields(hints[one.name])


def given_options(values: Any) -> tuple[str, ...]:
    """Return the options that do not have their default, in the order of the fields."""
    found: list[str] = []
    for one in fields(values):
        value = getattr(values, one.name)
        if "option" not in one.metadata:
            found += given_options(value)
        elif value != one.default:
            found.append(spelled(one))
    return tuple(found)


@contextlib.contextmanager
def named_by_option(kind: type, others: Mapping[str, str] = MappingProxyType({})) -> Iterator[None]:
    """Name the option instead of the field in refusals.

    Args:
        kind: A dataclass of options.
        others: Options of what has another name where it is refused.
    """
    try:
        yield
    except InputError as error:
        options = {one.name: spelled(one) for one, _ in option_fields(kind)}
        options |= {name.replace("_", "-"): option for name, option in options.items()}
        option = {**options, **others}.get(error.field)
        if option is None:
            raise
        raise InputError(option, error.sentence) from None


def check_options(values: Any) -> None:
    """Check the values of all fields that are options.

    Args:
        values: A dataclass; fields without `option` are left out.

    Raises:
        InputError: A value is not among the choices or not within the limits, or a field lacks
            the one that it needs. It names the option.
    """
    for one in fields(values):
        if "option" in one.metadata:
            value, limits = getattr(values, one.name), told(one)
            check_value(spelled(one), value, limits)
            needed = [other for other in fields(values) if other.name in limits.needs.split()]
            there = not needed or any(getattr(values, other.name) for other in needed)
            if value != one.default and not there:
                names = " or ".join(map(spelled, needed))
                raise InputError(spelled(one), f"{spelled(one)} needs {names}")


def require(values: Any, *names: str) -> None:
    """Refuse options that were not given; ``names`` are their fields.

    Raises:
        InputError: One is empty or ``None``.
    """
    for one in fields(values):
        if one.name in names and getattr(values, one.name) in ("", None, ()):
            raise InputError(spelled(one), f"{spelled(one)} is missing; see --help")


def check_value(name: str, value: Any, limits: OptionField) -> None:
    """Check one value by the choices and limits of its field; ``None`` or ``""`` was not given.

    Raises:
        InputError: It is not among the choices, or not within the limits.
    """
    if value is None or value == "":
        return
    if limits.choices:
        check_name(name, value, limits.choices)
    if limits.seconds and not 0 < value <= LONGEST_SECONDS:
        remedy = f"give a number above 0, and at most {LONGEST_SECONDS:,}"
        raise InputError(name, f"{shown(value)} is not a time in seconds; {remedy}")
    if limits.least is None:
        return
    if not math.isfinite(value):
        raise InputError(name, f"{value} is not a finite number; give {limits.least:,} or more")
    if limits.most is not None and not limits.least <= value <= limits.most:
        within = f"between {limits.least:,} and {limits.most:,}"
        raise InputError(name, f"{value} is not {within}; give a number between them")
    if value < limits.least:
        raise InputError(
            name, f"{value} is less than {limits.least:,}; give {limits.least:,} or more"
        )
