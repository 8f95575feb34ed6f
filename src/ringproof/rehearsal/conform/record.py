"""Verdicts on the cases of a matrix, as values and as JSON, and those of known upstreams."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, replace
from enum import Enum
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from ringproof.errors import InputError, shown
from ringproof.files import read_bounded
from ringproof.rehearsal.locate.result import Culprit
from ringproof.styles import ASIDE, BAD, GOOD
from ringproof.upstream.sources import RELEASE

FORMAT = 1
MOST_BYTES = 50_000_000
"""Of a record, far above those of the whole matrix."""
FILE = "known.json"  # results of known upstreams, which are shipped with the package


class Status(str, Enum):
    """Verdict on a case.

    Attributes:
        meaning: What the verdict says.
        label: Text of a cell in a table.
        style: Style of that text on a terminal; empty for none.
        bad: Whether ``ringproof conform`` fails for it.
    """

    meaning: str
    label: str
    style: str
    bad: bool

    def __new__(
        cls, value: str, meaning: str = "", label: str = "", style: str = "", bad: bool = False
    ) -> Status:
        """Make a member with its attributes."""
        member = str.__new__(cls, value)
        member._value_, member.meaning, member.label = value, meaning, label or value
        member.style, member.bad = style, bad
        return member

    AGREES = (
        "agrees",
        "runs, takes the path asked for, and equals its reference within tolerance",
        "", GOOD,
    )  # fmt: skip
    DIFFERS = (
        "differs", "runs, but losses or gradient norms part from the reference",
        "", BAD, True,
    )  # fmt: skip
    OTHER_PATH = (
        "other path", "runs, but attention did not take the path asked for",
        "", BAD, True,
    )  # fmt: skip
    RACES = (
        "races", "runs and agrees, but releases or overwrites a tensor that is being sent",
        "", BAD, True,
    )  # fmt: skip
    STARTS = "starts", "runs, but its reference does not, so nothing can be compared"
    REFUSED = "refused", "ends with an error of upstream"
    NOT_OFFERED = "not offered", "this version has no such option, script or data", "-", ASIDE
    CANNOT_RUN = (
        "cannot run here", "needs a symbol or package for which there is no stand-in",
        "no stand-in",
    )  # fmt: skip
    HUNG = "hung", "stands still or does not end in time", "hangs", BAD, True


@dataclass(frozen=True)
class CaseResult:
    """What became of one case.

    Attributes:
        message: Error of upstream, difference from the reference, or metrics that differ although
            the training agrees; empty where all is well.
        place: ``FILE:LINE`` upstream of an error.
        symbol: Symbol without a stand-in.
        rank: Rank that failed first; -1 for none.
        loss_difference: Largest relative difference of a loss over the steps; ``None`` where
            nothing was compared. The other differences are those of gradient norms and evaluations.
        since: First step outside the tolerance; 0 for none.
        tolerance: Relative difference of a loss that counts as equal; see `Tolerance`.
        path: Attention paths that were seen, as ``TYPE:SIZE``.
        located: Sentence on the first wrong tensor of a case that differs, or on why none is named;
            empty where none was looked for.
        culprit: The same as values; ``None`` where none is named.
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
    located: str = ""
    culprit: Culprit | None = None

    @property
    def largest_difference(self) -> float | None:
        """The largest of the differences that were measured."""
        found = [self.loss_difference, self.norm_difference, self.evaluation_difference]
        return max((value for value in found if value is not None), default=None)


@dataclass(frozen=True)
class ConformanceRecord:
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

    @property
    def short(self) -> str:
        """A name for the head of a column: ``dev``, ``0.19``, ``#5618``."""
        if self.name.startswith("verl "):
            return self.name
        words = self.name.replace("core_r", "").replace("pull request ", "#").split()
        short = words[1] if words[0] == "megatron-core" else words[0].removesuffix(".0")
        return f"{short}, TE {self.engine}" if ", TE " in self.name else short

    @property
    def by_id(self) -> dict[str, CaseResult]:
        """Results by the identifier of their case."""
        return {case.id: case for case in self.cases}


def as_json(record: ConformanceRecord) -> dict[str, Any]:
    """Return what `from_json` reads."""
    return {"format": FORMAT, **dataclasses.asdict(record)}


def from_json(data: object) -> ConformanceRecord:
    """Build a record from what `as_json` made of it."""
    return TypeAdapter(ConformanceRecord).validate_python(data)


def check_lasting(record: ConformanceRecord, engine: str | None) -> None:
    """Check that the names of what was run say at a later time whether it is still the same.

    Args:
        engine: Spec of Transformer Engine, of which the record has the version alone.

    Raises:
        InputError: A folder was run, whose files may change, or a commit of Transformer Engine.
    """
    changing = [one for one in record.megatron.split(", ") if one.startswith("dir:")]
    if engine and not (engine.endswith(".whl") or RELEASE.fullmatch(engine)):
        changing.append(f"--te {engine}")
    if changing:
        remedy = "write git:PATH@REF for a folder, and take a release of Transformer Engine"
        sentence = f"a record cannot say later whether {shown(changing[0])} is the same; {remedy}"
        raise InputError("--append", sentence)


def joined(old: ConformanceRecord, new: ConformanceRecord, field: str) -> ConformanceRecord:
    """Return a record with the cases of both, and the name of the old one.

    Args:
        field: Option that an error names.

    Raises:
        InputError: They were run on or by other versions, or with other numbers of steps.
    """
    for what in ("megatron", "engine", "torch", "ringproof", "dtype", "iterations"):
        values = [str(getattr(one, what)) for one in (old, new)]
        # The same commit has several names, such as git:PATH@REF.
        kept, mine = ([at.partition("#")[2] or at for at in one.split(", ")] for one in values)
        if kept != mine:
            sentence = "the record has {} {}, and this run {}; name another file with --json"
            raise InputError(field, sentence.format(what, *map(shown, values)))
    seconds = round(old.seconds + new.seconds, 1)
    return replace(old, seconds=seconds, cases=(*old.cases, *new.cases))


def read(path: Path, field: str) -> ConformanceRecord:
    """Read a record.

    Raises:
        InputError: The file is not a record.
    """
    try:
        return from_json(json.loads(read_bounded(path, MOST_BYTES)))
    except (OSError, ValueError, RecursionError) as error:
        sentence = f"{shown(path)} is not a record of ringproof conform; write one with --json"
        raise InputError(field, sentence) from error


def shipped() -> tuple[ConformanceRecord, ...]:
    """Return the results that came with this package, none where it has none.

    Of each case they have the verdict, the largest difference, the message and its place.
    """
    file = resources.files(__package__).joinpath(FILE)
    return tuple(
        ConformanceRecord(
            name=one["name"],
            megatron="",
            engine=one["engine"],
            torch="",
            ringproof="",
            dtype="float32",
            iterations=one["iterations"],
            seconds=0.0,
            cases=tuple(
                CaseResult(name, Status(status), message, place, loss_difference=difference)
                for name, (status, difference, message, place) in one["cases"].items()
            ),
        )
        for one in (json.loads(file.read_text()) if file.is_file() else ())
    )
