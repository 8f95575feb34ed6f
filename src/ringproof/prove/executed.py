"""Which upstream code a test executed or read, noted by the code that does it.

`collecting` gathers the notes of what runs inside it; outside of it, they are dropped. The recorder
collects around fixtures and tests, so that no test says by hand what it proves.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum


class Evidence(str, Enum):
    """Kind of a proof, strongest first.

    Upstream executed: upstream's own code ran. Read: upstream's text was looked up. Reference
    executed: ringproof's code ran. Derived: arithmetic from stated premises.
    """

    UPSTREAM = "upstream executed"
    READ = "read"
    REFERENCE = "reference executed"
    DERIVED = "derived"


@dataclass(frozen=True, order=True)
class Touch:
    """Upstream code that a test touched.

    Attributes:
        executed: Whether the code ran; otherwise its text was read.
        repo: Repository of its sources.
        name: Its version or commit.
        root: Folder that held it; empty if none did.
    """

    executed: bool
    repo: str
    name: str
    root: str = ""


_OPEN: ContextVar[list[Touch] | None] = ContextVar("ringproof_touches", default=None)


def note(touch: Touch) -> None:
    """Record that upstream code was touched, if anything collects."""
    found = _OPEN.get()
    if found is not None:
        found.append(touch)


@contextmanager
def collecting() -> Iterator[list[Touch]]:
    """Collect the notes of what runs inside; an outer collection gets them as well."""
    found: list[Touch] = []
    outer = _OPEN.get()
    token = _OPEN.set(found)
    try:
        yield found
    finally:
        _OPEN.reset(token)
        if outer is not None:
            outer.extend(found)
