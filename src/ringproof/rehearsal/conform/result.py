"""Verdicts on the cases of a matrix, as values and as JSON, and those of known upstreams."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import TypeAdapter

from ringproof.errors import InputError

FORMAT = 1
FILE = "known.json"  # results of known upstreams, which are shipped with the package
ORDER = ("megatron-core", "core_r", "main", "dev", "pull request")


class Status(str, Enum):
    """Verdict on a case."""

    AGREES = "agrees"
    DIFFERS = "differs"
    OTHER_PATH = "other path"
    RACES = "races"
    STARTS = "starts"
    REFUSED = "refused"
    NOT_OFFERED = "not offered"
    CANNOT_RUN = "cannot run here"
    HUNG = "hung"


MEANINGS = MappingProxyType(
    {
        Status.AGREES: "runs, takes the path asked for, and equals its reference within tolerance",
        Status.DIFFERS: "runs, but losses or gradient norms part from the reference",
        Status.OTHER_PATH: "runs and agrees, but attention did not take the path asked for",
        Status.RACES: "runs and agrees, but releases or overwrites a tensor that is being sent",
        Status.STARTS: "runs, but its reference does not, so nothing can be compared",
        Status.REFUSED: "ends with an error of upstream",
        Status.NOT_OFFERED: "this version has no such option, script or data",
        Status.CANNOT_RUN: "needs a symbol or package for which there is no stand-in",
        Status.HUNG: "stands still or does not end in time",
    }
)

#: What a table says in a cell.
LABELS = MappingProxyType(
    {status: status.value for status in Status}
    | {Status.NOT_OFFERED: "-", Status.CANNOT_RUN: "no stand-in", Status.HUNG: "hangs"}
)
#: Verdicts for which ``ringproof conform`` fails.
WORSE = (Status.DIFFERS, Status.OTHER_PATH, Status.RACES, Status.HUNG)


@dataclass(frozen=True)
class CaseResult:
    """What became of one case.

    Attributes:
        message: Error of upstream, or the difference from the reference; empty where all is well.
        place: ``FILE:LINE`` upstream of an error.
        symbol: Symbol without a stand-in.
        rank: Rank that failed first; -1 for none.
        loss_difference: Largest relative difference of a loss over the steps; ``None`` where
            nothing was compared. The other differences are those of gradient norms and evaluations.
        since: First step outside the tolerance; 0 for none.
        tolerance: Relative difference of a loss that counts as equal; see `Tolerance`.
        path: Attention paths that were seen, as ``TYPE:SIZE``.
    """

    id: str
    status: Status
    message: str = ""
    place: str = ""
    symbol: str = ""
    rank: int = -1
    loss_difference: float | None = None
    norm_difference: float | None = None
    evaluation_difference: float | None = None
    since: int = 0
    tolerance: float = 0.0
    path: tuple[str, ...] = ()
    iterations: int = 0
    seconds: float = 0.0

    @property
    def largest_difference(self) -> float | None:
        """The largest of the differences that were measured."""
        found = [self.loss_difference, self.norm_difference, self.evaluation_difference]
        return max((value for value in found if value is not None), default=None)


@dataclass(frozen=True)
class Record:
    """One run of the matrix.

    Attributes:
        name: Short name of the upstream: ``dev d48bd6be0a``.
        dtype: Dtype of the programs, unless a case says otherwise.
        cases: Results in the order of the matrix.
    """

    name: str
    megatron: str
    engine: str
    torch: str
    ringproof: str
    dtype: str
    iterations: int
    seconds: float
    cases: tuple[CaseResult, ...]


@dataclass(frozen=True)
class Known:
    """Results of one upstream that are shipped with the package.

    Attributes:
        name: ``dev d48bd6be0a``, with the version of Transformer Engine where several were run.
        cases: By id, with the verdict, the largest difference, the message and its place.
    """

    name: str
    engine: str
    iterations: int
    cases: Mapping[str, CaseResult]

    @property
    def short(self) -> str:
        """A name for the head of a column."""
        return column_name(self.name, self.engine)


def as_json(record: Record) -> dict[str, Any]:
    """Return what `from_json` reads."""
    return {"format": FORMAT, **dataclasses.asdict(record)}


def from_json(data: object) -> Record:
    """Build a record from what `as_json` made of it."""
    return TypeAdapter(Record).validate_python(data)


def read(path: Path, field: str) -> Record:
    """Read a record.

    Raises:
        InputError: The file is not a record.
    """
    try:
        return from_json(json.loads(path.read_text()))
    except (OSError, ValueError) as error:
        problem = f"is not a record of ringproof conform ({type(error).__name__})"
        raise InputError(field, path, problem, "write one with --json") from error


def column_name(name: str, engine: str) -> str:
    """Return a short name for the head of a column: ``dev``, ``0.19``, ``#5618``."""
    words = name.replace("core_r", "").replace("pull request ", "#").split()
    short = words[1] if words[0] == "megatron-core" else words[0].removesuffix(".0")
    return f"{short}, TE {engine}" if ", TE " in name else short


def place_in_table(record: Record) -> tuple[int, str]:
    """Sort key: releases, then branches, then pull requests."""
    start = [number for number, prefix in enumerate(ORDER) if record.name.startswith(prefix)]
    return (start[0] if start else len(ORDER), record.name)


def shipped_text(records: Iterable[Record]) -> str:
    """Return the JSON that is shipped of records, with one case on each line."""
    parts = []
    for record in records:
        head = {"name": record.name, "engine": record.engine, "iterations": record.iterations}
        cases = (f"{json.dumps(case.id)}: {json.dumps(_kept(case))}" for case in record.cases)
        parts.append(f'{json.dumps(head)[:-1]}, "cases": {{\n' + ",\n".join(cases) + "\n}}")
    return "[\n" + ",\n".join(parts) + "\n]\n"


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
            **{**one, "cases": {name: _known(name, *kept) for name, kept in one["cases"].items()}}
        )
        for one in json.loads(file.read_text())
    )


def _known(
    name: str, status: str, difference: float | None, message: str, place: str
) -> CaseResult:
    return CaseResult(name, Status(status), message, place, loss_difference=difference)
