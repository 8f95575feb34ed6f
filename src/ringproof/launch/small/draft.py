"""A command line in change, with a record of what was changed and what that can hide."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from ringproof.launch.flags import Flags


@dataclass(frozen=True)
class Change:
    """One difference between a launch and its rehearsal.

    Attributes:
        before: Value in the launch; empty where it had none.
        after: Value in the rehearsal; empty where it was left out.
    """

    what: str
    before: str
    after: str
    hides: str


@dataclass
class Draft:
    """A command line and the changes made to it.

    Attributes:
        options: Names of the options that this upstream knows.
    """

    flags: Flags
    options: Collection[str]
    changes: list[Change] = field(default_factory=list)

    def knows(self, name: str) -> bool:
        """Return whether this upstream has an option."""
        return name in self.options

    def number(self, name: str, default: int = 1) -> int:
        """Return an option's value as an integer."""
        return self.flags.integer(name, default)

    def put(self, name: str, value: object, hides: str) -> None:
        """Set an option to one value, and record it where that changes something.

        An option that this upstream does not know is added nowhere; where the launch gives it,
        its value is changed and upstream refuses it.
        """
        self.put_all(name, (str(value),), hides)

    def put_all(self, name: str, values: tuple[str, ...], hides: str) -> None:
        """Set an option to several values; see `put`."""
        before = self.flags.get(name)
        if before == values or (before is None and not self.knows(name)):
            return
        self.flags = self.flags.with_(name, *values)
        self.note(name, " ".join(before or ()), " ".join(values) or "on", hides)

    def drop(self, names: Iterable[str], hides: str) -> None:
        """Leave options out, with one record for all of them.

        An option that this upstream does not know stays, so that upstream refuses it.
        """
        wanted = set(names)
        given = [n for n in dict.fromkeys(self.flags.names()) if n in wanted and self.knows(n)]
        if given:
            self.flags = self.flags.without(*given)
            self.note(", ".join(given), "given", "", hides)

    def note(self, what: str, before: object, after: object, hides: str) -> None:
        """Record a change."""
        self.changes.append(Change(what, str(before), str(after), hides))


def stepped(value: int, unit: int, target: int) -> int:
    """Return a smaller value with the same remainder by ``unit``.

    Args:
        unit: Divisor that the value has, or misses.
        target: Size near which the result lies; values up to it stay as they are.
    >>> stepped(8192, 16, 256), stepped(8200, 16, 256), stepped(100, 16, 256)
    (256, 264, 100)
    """
    if value <= target:
        return value
    whole = max(-(-target // unit), 1) * unit
    return min(value, whole + value % unit)
