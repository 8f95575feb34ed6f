"""Parses Python and YAML of other people within limits, since their cost grows faster than size."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    CollectionStartEvent,
    Event,
    ScalarEvent,
)

MAX_PYTHON = 2_000_000
"""Characters, of which each takes up to 450 bytes; the largest files of upstream have 300,000."""
MAX_DEPTH = 100
"""Levels of YAML. The parser's cost for a bracket grows with the number of open ones."""
MAX_NODES = 1_000_000
"""Values of a YAML file, where those behind an alias count each time."""


def parsed_python(source: str | bytes) -> ast.Module:
    """Parse the source of a module.

    Raises:
        ValueError: It is not Python, too large or nested too deeply.
    """
    if len(source) > MAX_PYTHON:
        raise ValueError(f"larger than {MAX_PYTHON:,} bytes")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(str(error)) from error


def yaml_events(text: str) -> Iterator[Event]:
    """Yield the events of a YAML file; nothing is constructed.

    Raises:
        YAMLError: It is not YAML.
        ValueError: It is nested too deeply.
    """
    depth = 0
    for event in YAML(typ="safe", pure=True).parse(text):
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise ValueError(f"nested more than {MAX_DEPTH} levels deep")
        yield event


def yaml_size(text: str) -> int:
    """Return the number of values that a YAML file stands for, with its aliases followed.

    Raises:
        ValueError: It is not YAML, nested too deeply, or stands for too many values.
    """
    anchored: dict[str, int] = {}
    names: list[str | None] = []
    sizes = [0]
    try:
        for event in yaml_events(text):
            if isinstance(event, AliasEvent):
                sizes[-1] += anchored.get(str(event.anchor), 1)
            elif isinstance(event, ScalarEvent):
                sizes[-1] += 1
            elif isinstance(event, CollectionStartEvent):
                names.append(event.anchor)
                sizes.append(1)
            elif isinstance(event, CollectionEndEvent):
                name, size = names.pop(), sizes.pop()
                anchored |= {name: size} if name else {}
                sizes[-1] += size
            if sizes[-1] > MAX_NODES:
                raise ValueError(f"its aliases stand for more than {MAX_NODES:,} values")
    except YAMLError as error:
        raise ValueError(str(error).splitlines()[0]) from error
    return sizes[0]
