"""Decides which error of a run was the first cause, and which ones follow from it.

Exceptions, faults of a device and refused arguments come before numbers that are not finite, these
before timeouts, and these before lost connections: a rank that waits for another one fails later,
whatever its clock says. Among equals the launcher's word counts, then the time where all lines
have one, then the order in the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import Any, BinaryIO

from ringproof.logs.diagnosis.errors import CUT, TIMEOUT, LogReader, RankError
from ringproof.logs.diagnosis.recorder import DumpedGroup, is_dump, read_dump, stuck_groups
from ringproof.logs.diagnosis.symptoms import Index, Symptom, load_index
from ringproof.logs.lines import OpenLog, opened
from ringproof.logs.parsing import EngineLine, RunSetup, engine_text
from ringproof.logs.training.curves import CurveFinding

MOST_FINDINGS = 500
MOST_SEEN = 4096
MOST_EVIDENCE = 3
_MOST_LINES = 8
HIERARCHICAL = "a2a+p2p"
_WORKER = re.compile(r"Caught \w+ in DataLoader worker process")
_ORDER = ("exception", "nan", "hang", "follow-up")
_GOES_ON = 3  # iterations after an error that other ranks may still finish
_RECOVERS = 10  # iterations without NaN after which one is past


@dataclass
class SharedError:
    """Errors of one kind on any number of ranks.

    Attributes:
        symptom: Entry of the index, or ``None`` for an error that it does not know.
        who: Ranks that have it; ``waits`` are the ranks by what they wait in, for timeouts.
    """

    symptom: Symptom | None
    evidence: list[RankError] = field(default_factory=list)
    who: set[str] = field(default_factory=set)
    waits: dict[str, set[str]] = field(default_factory=dict)
    count: int = 0
    last: RankError | None = None

    @property
    def first(self) -> RankError:
        """The first of its errors."""
        return self.evidence[0]

    @property
    def kind(self) -> str:
        """Kind, with all that stops a rank by itself as ``exception``."""
        kind = self.symptom.kind if self.symptom else "exception"
        return kind if kind in _ORDER else "exception"

    def add(self, event: RankError) -> None:
        """Take an error; those with a traceback are better evidence than those without."""
        if self.evidence and self.first.weak and not event.weak:
            self.evidence.clear()
        alike = not self.evidence or self.first.weak == event.weak
        if len(self.evidence) < MOST_EVIDENCE and alike:
            self.evidence.append(event)
        self.count += 1
        self.last = event
        self.who.add(event.who)
        if event.error == TIMEOUT:
            self.waits.setdefault(event.message, set()).add(event.who)


@dataclass(frozen=True)
class Diagnosis:
    """What the logs and dumps of one run say about its failure.

    Attributes:
        cause: The first cause, or ``None``.
        others: Further causes that do not follow from it.
        earlier: Errors after which training went on.
        silent: Faults of a run without an error.
        missing: Ranks without a timeout, where all others have one.
        engine: Variants of attention that Transformer Engine ran, in words, and ``engine_lines``
            the first line of each.
        stuck: Groups that wait, by the dumps of the flight recorder.
        hang: What the first of these groups suggests.
        curves: What is conspicuous in the curves of loss and gradient norm.
        logs, dumps, lines: Number of files of each kind, and of lines in logs.
    """

    cause: SharedError | None
    others: tuple[SharedError, ...]
    follow_ups: tuple[SharedError, ...]
    earlier: tuple[SharedError, ...]
    silent: tuple[Symptom, ...]
    missing: tuple[int, ...]
    engine: str
    engine_lines: tuple[str, ...]
    stuck: tuple[DumpedGroup, ...]
    hang: Symptom | None
    curves: tuple[CurveFinding, ...]
    logs: int
    dumps: int
    lines: int
    notes: tuple[str, ...]

    @property
    def found(self) -> bool:
        """Whether anything explains a failure."""
        live = [one for one in self.curves if not one.past]
        return bool(self.cause or self.follow_ups or self.silent or self.stuck or live)


def diagnose(
    paths: Sequence[str], *, stdin: BinaryIO | None = None, index: Index | None = None
) -> Diagnosis:
    """Read the logs and flight-recorder dumps of one run, each in one pass.

    Args:
        stdin: What ``-`` names.
        index: Symptoms to look for; by default those that come with the package.

    Raises:
        InputError: A file is missing, unreadable or not a file, or a dump is damaged.
    """
    table = ErrorTable(load_index() if index is None else index)
    for path in dict.fromkeys(paths):
        with opened("LOG", path, what="log of a run", stdin=stdin) as log:
            table.read(log)
    return table.judge()


class ErrorTable:
    """All errors of all logs, merged by kind; it does not grow with the length of the logs."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._lines = 0
        self._notes: list[str] = []
        self._dumps: dict[int, dict[str, Any]] = {}  # by rank
        self._findings: dict[tuple[str, ...], SharedError] = {}
        self._files: list[str] = []
        self._final: dict[str, int] = {}  # the last iteration of each file
        self._setup = RunSetup()
        self._engine_lines: dict[EngineLine, str] = {}
        self._roots: set[str] = set()
        self._unknown: dict[str, tuple[str, ...]] = {}  # the last unknown exception of each rank
        self._curves: dict[CurveFinding, None] = {}  # logs of several ranks may show the same
        self._known = lru_cache(MOST_SEEN)(self._identified)

    def read(self, log: OpenLog) -> None:
        """Read a dump, or a log and what it says of errors, the configuration and attention."""
        blocks = log.blocks()
        first = next(blocks, b"")
        if is_dump(first):
            rank, dump = read_dump(log, chain((first,), blocks))
            if rank in self._dumps:
                another = f"another dump is of rank {rank}, too; the later one counts"
                self._notes.append(f"{log.path}: {another}")
            self._dumps[rank] = dump
            return
        reader = LogReader(log.path, filter(None, chain((first,), blocks)), self._setup)
        self._files.append(log.path)
        for error in reader.errors():
            self.add(error)
        self._engine_lines = {**reader.engine_lines, **self._engine_lines}
        self._curves.update(dict.fromkeys(reader.curves.findings()))
        if reader.iteration is not None:
            self._final[log.path] = reader.iteration
        self._lines += reader.lines
        self._notes += log.notes()

    def add(self, event: RankError) -> None:
        """Take an error."""
        if event.root:
            self._roots.add(event.who)
            if not event.error.startswith("exit code -"):
                return
        symptom, key = self._known(event.error, event.message, event.functions, event.code)
        if symptom is None and (event.weak or _WORKER.match(event.message)):
            return
        before = self._unknown.pop(event.who, key)
        handled = self._findings.get(before)
        if event.after and before != key and handled and handled.who == {event.who}:
            del self._findings[before]  # the code that handled it raised this one
        if symptom is None:
            self._unknown[event.who] = key
        if key in self._findings or len(self._findings) < MOST_FINDINGS:
            self._findings.setdefault(key, SharedError(symptom)).add(event)

    def _identified(
        self, error: str, message: str, functions: tuple[str, ...], code: str
    ) -> tuple[Symptom | None, tuple[str, ...]]:
        """Return the symptom that an error is, and what errors of its kind have in common."""
        symptom = self._index.find(error, message, functions, code)
        if symptom is not None:
            return symptom, (symptom.id,)
        said = re.sub(r"0x[0-9a-f]+|\d+", "N", message[:200])
        return None, ("?", error, said, *functions[-1:])

    def judge(self) -> Diagnosis:
        """Return the first cause and what follows from it."""
        found = list(self._findings.values())
        earlier = [one for one in found if self._went_on(one)]
        live = [one for one in found if one not in earlier]
        causes = [one for one in live if one.kind == "exception"]
        strong = [one for one in causes if not one.first.weak and one.first.error != CUT]
        ordered = self._ordered(strong or causes)
        rest = [one for kind in _ORDER[1:] for one in live if one.kind == kind]
        if not ordered:
            ordered = [one for one in rest if one.kind != "follow-up"][:1]
        if len(self._findings) == MOST_FINDINGS:
            self._notes.append(f"later kinds of errors than the first {MOST_FINDINGS} are left out")
        stuck = stuck_groups(self._dumps)
        return Diagnosis(
            cause=ordered[0] if ordered else None,
            others=tuple(ordered[1:]),
            follow_ups=tuple(one for one in rest if one not in ordered),
            earlier=tuple(one for one in earlier if not one.first.weak),
            silent=tuple(self._silent()),
            missing=tuple(self._missing(ordered[0])) if ordered else (),
            engine=engine_text(self._setup.engine),
            engine_lines=tuple(sorted(self._engine_lines.values())[:_MOST_LINES]),
            stuck=tuple(stuck),
            hang=self._index.find(TIMEOUT, stuck[0].description) if stuck else None,
            curves=tuple(self._curves),
            logs=len(self._files),
            dumps=len(self._dumps),
            lines=self._lines,
            notes=tuple(self._notes),
        )

    def _went_on(self, finding: SharedError) -> bool:
        """Whether training went on after the last of these errors."""
        last = finding.last or finding.first
        final = self._final.get(last.file)
        if final is None:
            return False
        margin = _RECOVERS if finding.kind == "nan" else _GOES_ON
        return last.iteration is None or final - last.iteration >= margin

    def _ordered(self, causes: Sequence[SharedError]) -> list[SharedError]:
        timed = all(one.first.time for one in causes)
        together = len({one.first.file for one in causes}) == 1

        def key(one: SharedError) -> tuple[object, ...]:
            first = one.first
            place = (self._files.index(first.file), first.line)
            root = self._roots.isdisjoint(one.who)
            general = one.symptom is None or not one.symptom.statements
            order = (first.time,) if timed and not together else (0 if together else general,)
            return root, *order, *place

        return sorted(causes, key=key)

    def _silent(self) -> list[Symptom]:
        """Return what Transformer Engine's lines show to be wrong with context parallelism."""
        told, engine = self._setup.configuration, [line for line, _ in self._setup.engine]
        size = told.context_parallel_size or 0
        levels = told.hierarchical_context_parallel_sizes or ()
        ran = {line.cp_comm_type for line in engine if line.context_parallel}
        without = any(not line.context_parallel for line in engine)
        sizes = {line.cp_size for line in engine if line.context_parallel}
        error = ""
        if without and not ran and (size > 1 or levels):
            levelled = HIERARCHICAL in (told.cp_comm_type or ())
            error = "levels missing" if levelled else "never parallel"
        elif without and ran and not self._setup.dynamic and len(sizes) == 1:
            error = "layer without"
        elif ran and HIERARCHICAL not in ran and len(levels) > 1:
            error = "idle levels"
        symptom = self._index.find(error, "") if error else None
        return [symptom] if symptom else []

    def _missing(self, cause: SharedError) -> Iterator[int]:
        """Return the ranks without a timeout, where all others have one."""
        world = self._setup.configuration.world_size
        named = {who for one in self._findings.values() if one.kind == "hang" for who in one.who}
        if cause.kind != "hang" or not world or not all(who.startswith("rank ") for who in named):
            return
        absent = [rank for rank in range(world) if f"rank {rank}" not in named]
        if len(absent) <= world // 2:
            yield from absent
