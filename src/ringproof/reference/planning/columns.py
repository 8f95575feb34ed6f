"""Which column of a table holds the lengths."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ringproof.errors import InputError
from ringproof.reference.planning.lengths import plain

_NAMES = ("length", "lengths")


def choose_column(
    names: Sequence[str], is_numeric: Callable[[int], bool], source: str, column: str
) -> int:
    """The column that was named, or the only one with numbers.

    Raises:
        InputError: No such column, or several that could be meant.
    """
    shown = ", ".join(plain(name, 40) for name in names[:20])
    if column:
        if column not in names:
            problem = f"is no column of {plain(source)}"
            raise InputError("--column", plain(column), problem, f"choose from: {shown}")
        return list(names).index(column)
    found = [index for index in range(len(names)) if is_numeric(index)]
    called = [index for index in found if names[index].lower() in _NAMES]
    if len(called) == 1:
        return called[0]
    if len(found) != 1:
        problem = f"{'several columns have' if found else 'no column has'} numbers"
        raise InputError(plain(source), None, problem, f"choose with --column from: {shown}")
    return found[0]
