"""Which upstream code a test executed or read.

`collecting` gathers what is noted by the code that runs inside it; outside of it, notes are
dropped. The recorder collects around fixtures and tests, so that no test says by hand what it
proves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from enum import Enum

from ringproof.prove.listening import LONGEST, Listener


class Evidence(str, Enum):
    """Kind of a proof, strongest first.

    Upstream executed: a function of upstream's own code ran. Read: upstream's text was looked up,
    or its modules were imported. Reference executed: ringproof's code ran. Derived: arithmetic from
    stated premises.
    """

    UPSTREAM = "upstream executed"
    READ = "read"
    REFERENCE = "reference executed"
    DERIVED = "derived"


@dataclass(frozen=True, order=True)
class Touch:
    """Upstream code that a test touched.

    Attributes:
        executed: Whether functions of it ran; otherwise its text was read.
        repo: Repository of its sources.
        name: Its version or commit.
        root: Folder that held it; empty if none did.
        functions: Some of those that ran, as ``FILE:FUNCTION``.
    """

    executed: bool
    repo: str
    name: str
    root: str = ""
    functions: tuple[str, ...] = ()

    def ran(self, functions: Iterable[str]) -> Touch:
        """Return the touch with the functions that ran; without any, the code was only read."""
        told = tuple(dict.fromkeys(functions))[:LONGEST]
        return replace(self, executed=self.executed or bool(told), functions=told)


def merged(touches: Iterable[Touch]) -> tuple[Touch, ...]:
    """Return each code that was touched once, with functions of all touches."""
    ran: dict[Touch, list[str]] = {}
    for touch in touches:
        ran.setdefault(replace(touch, functions=()), []).extend(touch.functions)
    return tuple(code.ran(ran[code]) for code in sorted(ran))


@dataclass
class _Collection:
    found: list[Touch] = field(default_factory=list)
    watched: dict[str, Touch] = field(default_factory=dict)
    listener: Listener = field(default_factory=Listener)


_OPEN: ContextVar[_Collection | None] = ContextVar("ringproof_touches", default=None)


def is_collecting() -> bool:
    """Return whether anything collects notes, so that it is worth while to listen."""
    return _OPEN.get() is not None


def note(touch: Touch) -> None:
    """Record that upstream code was touched, if anything collects."""
    collection = _OPEN.get()
    if collection is not None:
        collection.found.append(touch)


def watch(folder: str, touch: Touch) -> None:
    """Record which functions below a folder run from now on, if anything collects.

    Args:
        touch: What is noted, executed if any function ran, and otherwise read.
    """
    collection = _OPEN.get()
    if collection is not None and folder not in collection.watched:
        collection.watched[folder] = touch
        collection.listener.listen(folder)


@contextmanager
def collecting(*, apart: bool = False) -> Iterator[list[Touch]]:
    """Collect the notes of what runs inside, complete at the end, when what is watched is noted.

    Args:
        apart: Whether an outer collection does not get them.
    """
    inner, outer = _Collection(), _OPEN.get()
    token = _OPEN.set(inner)
    try:
        yield inner.found
    finally:
        _OPEN.reset(token)
        inner.listener.close()
        for folder, touch in inner.watched.items():
            inner.found.append(touch.ran(inner.listener.functions(folder)))
        if outer is not None and not apart:
            outer.found.extend(inner.found)
