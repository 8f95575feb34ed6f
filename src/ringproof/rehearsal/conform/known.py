"""Results of known upstreams, shipped with the package: made by running the matrix on them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from typing import Any

from ringproof.rehearsal.conform.result import CaseResult, Record, Status

FILE = "known.json"
ORDER = ("megatron-core", "core_r", "main", "dev", "pull request")


@dataclass(frozen=True)
class KnownCase:
    """What is kept of a result.

    Attributes:
        status: Verdict.
        difference: Largest relative difference; ``None`` where nothing was compared.
        message: What upstream said, or which path it took.
        place: ``FILE:LINE`` of an error.
    """

    status: Status
    difference: float | None
    message: str
    place: str


@dataclass(frozen=True)
class Known:
    """Results of one upstream.

    Attributes:
        name: ``dev d48bd6be0a``, with the version of Transformer Engine where several were run.
        engine: Version of Transformer Engine.
        iterations: Training steps of each case.
        cases: By id.
    """

    name: str
    engine: str
    iterations: int
    cases: dict[str, KnownCase]

    @property
    def short(self) -> str:
        """A name for the head of a column."""
        return column_name(self.name, self.engine)


def column_name(name: str, engine: str) -> str:
    """Return a short name for the head of a column: ``dev``, ``0.19``, ``#5618``."""
    words = name.replace("core_r", "").replace("pull request ", "#").split()
    short = words[1] if words[0] == "megatron-core" else words[0].removesuffix(".0")
    return f"{short}, TE {engine}" if ", TE " in name else short


def place_in_table(record: Record) -> tuple[int, str]:
    """Sort key: releases, then branches, then pull requests."""
    start = [number for number, prefix in enumerate(ORDER) if record.name.startswith(prefix)]
    return (start[0] if start else len(ORDER), record.name)


def collect(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Return what is shipped of records, in the order of the table."""
    return [
        {
            "name": record.name,
            "engine": record.engine,
            "iterations": record.iterations,
            "cases": {case.id: _kept(case) for case in record.cases},
        }
        for record in sorted(records, key=place_in_table)
    ]


def _kept(case: CaseResult) -> list[Any]:
    difference = case.largest_difference
    rounded = None if difference is None else float(f"{difference:.1e}")
    return [case.status.value, rounded, case.message, case.place]


def shipped() -> tuple[Known, ...]:
    """Return the results that came with this package, none where it has none."""
    file = resources.files(__package__).joinpath(FILE)
    if not file.is_file():
        return ()
    return tuple(
        Known(
            one["name"],
            one["engine"],
            one["iterations"],
            {name: KnownCase(Status(case[0]), *case[1:]) for name, case in one["cases"].items()},
        )
        for one in json.loads(file.read_text())
    )
