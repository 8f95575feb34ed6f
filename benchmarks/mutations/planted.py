"""The planted mistakes of ``planted.toml``."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringproof.errors import InputError, shown

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LIST = Path(__file__).with_name("planted.toml")
REMEDY = "correct benchmarks/mutations/planted.toml"


@dataclass(frozen=True)
class Mutation:
    """One mistake.

    Args:
        id: Name of the mistake.
        area: Part of ringproof that it breaks.
        breaks: What goes wrong, as a sentence.
        file: Changed file, relative to the repository.
        text: Replaced text, which the file holds exactly once.
        replacement: Text in its place.
        tests: Files, folders or node ids of the tests that should fail.
    """

    id: str
    area: str
    breaks: str
    file: str
    text: str
    replacement: str
    tests: tuple[str, ...]

    def applied(self, source: str) -> str:
        """Return the source with the mistake in it.

        Raises:
            InputError: The source does not hold the text exactly once.
        """
        count = source.count(self.text)
        if count != 1:
            found = f"{shown(self.file)} holds the text {count} times, and not once"
            raise InputError(self.id, f"{found}; {REMEDY}")
        return source.replace(self.text, self.replacement)


def read_mutations(wanted: tuple[str, ...] = ()) -> tuple[Mutation, ...]:
    """Read the list.

    Args:
        wanted: Ids or areas of the mistakes to read; all of them if empty.

    Raises:
        InputError: An id occurs twice, or nothing is called like one of the wanted.
    """
    entries: list[dict[str, Any]] = tomllib.loads(LIST.read_text("utf-8"))["mutation"]
    found = [Mutation(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]
    ids = [mutation.id for mutation in found]
    if len(set(ids)) < len(ids):
        raise InputError("id", f"an id occurs twice; {REMEDY}")
    for name in wanted:
        if not any(name in (mutation.id, mutation.area) for mutation in found):
            problem = f"{shown(name)} is neither an id nor an area of a mistake"
            raise InputError("--only", f"{problem}; benchmarks/mutations/planted.toml lists them")
    return tuple(m for m in found if not wanted or m.id in wanted or m.area in wanted)
