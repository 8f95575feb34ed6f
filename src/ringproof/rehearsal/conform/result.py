"""What became of each case, and of a whole matrix: plain data, the same in memory and as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ringproof.errors import InputError

FORMAT = 1


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
    {
        Status.AGREES: "agrees",
        Status.DIFFERS: "differs",
        Status.OTHER_PATH: "other path",
        Status.RACES: "races",
        Status.STARTS: "starts",
        Status.REFUSED: "refused",
        Status.NOT_OFFERED: "-",
        Status.CANNOT_RUN: "no stand-in",
        Status.HUNG: "hangs",
    }
)
#: Verdicts for which ``ringproof conform`` fails.
WORSE = (Status.DIFFERS, Status.OTHER_PATH, Status.RACES, Status.HUNG)


@dataclass(frozen=True)
class CaseResult:
    """What became of one case.

    Attributes:
        id: Identifier of the case.
        status: Verdict.
        message: Error of upstream, or what parts from the reference; empty where all is well.
        place: ``FILE:LINE`` upstream of an error.
        symbol: Symbol without a stand-in.
        rank: Rank that failed first; -1 for none.
        loss_difference: Largest relative difference of a loss over the steps; ``None`` where
            nothing was compared.
        norm_difference: The same of gradient norms.
        evaluation_difference: The same of losses of evaluations.
        since: First step outside the tolerance; 0 for none.
        tolerance: Limit of the differences.
        path: Attention paths that were seen, as ``TYPE:SIZE``.
        iterations: Training steps of the case.
        seconds: Wall-clock time.
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
        megatron: Origin of Megatron.
        engine: Version of Transformer Engine.
        torch: Version of torch.
        ringproof: Version of this package.
        dtype: Dtype of the programs, unless a case says otherwise.
        iterations: Training steps of each case.
        seconds: Wall-clock time of all cases and references.
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

    def by_id(self) -> dict[str, CaseResult]:
        """Results by case."""
        return {case.id: case for case in self.cases}


def as_json(record: Record) -> dict[str, Any]:
    """Return what `from_json` reads."""
    data = dataclasses.asdict(record)
    for case in data["cases"]:
        case["status"] = case["status"].value
        case["path"] = list(case["path"])
    return {"format": FORMAT, **data}


def from_json(data: Mapping[str, Any]) -> Record:
    """Build a record from what `as_json` made of it."""
    fields = {key: value for key, value in data.items() if key not in ("format", "cases")}
    cases = tuple(
        CaseResult(**{**case, "status": Status(case["status"]), "path": tuple(case["path"])})
        for case in data["cases"]
    )
    return Record(**fields, cases=cases)


def read(path: Path, field: str) -> Record:
    """Read a record.

    Raises:
        InputError: The file is not a record.
    """
    try:
        return from_json(json.loads(path.read_text()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        problem = f"is not a record of ringproof conform ({type(error).__name__})"
        raise InputError(field, path, problem, "write one with --json") from error
