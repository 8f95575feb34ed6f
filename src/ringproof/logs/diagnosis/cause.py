"""Decides which error of a run was the first cause, and which ones follow from it.

Exceptions, faults of a device and refused arguments come before numbers that are not finite, these
before timeouts, and these before lost connections: a rank that waits for another one fails later,
whatever its clock says. Among equals the launcher's word counts, then the time where all lines
have one, then the order in the file.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, BinaryIO

from ringproof.logs.diagnosis.errors import CUT, TIMEOUT, LogReader, RankError
from ringproof.logs.diagnosis.recorder import (
    HEAD_BYTES,
    DumpedGroup,
    is_dump,
    read_dump,
    stuck_groups,
)
from ringproof.logs.diagnosis.symptoms import Index, Symptom, load_index
from ringproof.logs.lines import Line, OpenLog, opened
from ringproof.logs.parsing import (
    Configuration,
    EngineLine,
    engine_text,
    parse_configuration,
    parse_engine,
)
from ringproof.logs.training.curves import CurveFinding

MOST_FINDINGS = 500
MOST_SEEN = 4096
MOST_RANKS = 200_000
MOST_EVIDENCE = 3
_MOST_LINES = 8
HIERARCHICAL = "a2a+p2p"
_DYNAMIC = re.compile(r"\b(?:dynamic|hybrid)_context_parallel \.{2,} True")
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
    evidence: list[RankError]
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
            head = log.read(HEAD_BYTES)
            if log.damage:
                raise log.refused("is damaged gzip data; copy the log again")
            table.read(log, head)
    return table.judge()


class ErrorTable:
    """All errors of all logs, merged by kind; it does not grow with the length of the logs."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self._lines = 0
        self._notes: list[str] = []
        self._dumps: dict[int, dict[str, Any]] = {}  # by rank
        self._findings: dict[tuple[str, ...], SharedError] = {}
        self._files: list[str] = []
        self._final: dict[str, int] = {}  # the last iteration of each file
        self._engine: Counter[EngineLine] = Counter()
        self._engine_lines: dict[EngineLine, str] = {}
        self._configuration = Configuration()
        self._dynamic = False
        self._roots: set[str] = set()
        self._unknown: dict[str, tuple[str, ...]] = {}
        self._full = False
        self._curves: dict[CurveFinding, None] = {}  # logs of several ranks may show the same
        self._known = lru_cache(MOST_SEEN)(self._identified)

    def read(self, log: OpenLog, head: bytes) -> None:
        """Read a dump, or a log and what it says of errors, the configuration and attention."""
        if is_dump(head):
            rank, dump = read_dump(log, head)
            if rank in self._dumps:
                another = f"another dump is of rank {rank}, too; the later one counts"
                self._notes.append(f"{log.path}: {another}")
            self._dumps[rank] = dump
        else:
            self._read_log(LogReader(log, head), log.path)
            self._notes += log.notes()

    def _read_log(self, log: LogReader, path: str) -> None:
        self._files.append(path)
        for read in log.errors():
            if isinstance(read, RankError):
                self.add(read)
            else:
                self._line(path, read)
        for tail, count in log.repeated.items():  # of which only the first was returned
            engine = parse_engine(tail.decode("utf-8", errors="replace"))
            if engine is not None:
                self._engine[engine] += count - 1
        self._curves.update(dict.fromkeys(log.curves.findings()))
        if log.iteration is not None:
            self._final[path] = log.iteration
        self._lines += log.lines

    def _line(self, file: str, line: Line) -> None:
        engine = parse_engine(line.text)
        if engine is not None:
            self._engine[engine] += 1
            self._engine_lines.setdefault(engine, f"{file}:{line.number}")
        else:
            self._dynamic |= _DYNAMIC.search(line.text) is not None
            self._configuration = replace(self._configuration, **parse_configuration(line.text))

    def add(self, event: RankError) -> None:
        """Take an error."""
        if event.root:
            self._roots.add(event.who)
            if not event.error.startswith("exit code -"):
                return
        symptom, key = self._known(event.error, event.message, event.functions, event.code)
        if symptom is None and (event.weak or _WORKER.match(event.message)):
            return
        before = self._unknown.pop(event.who, None)
        if event.after and before is not None and before != key:
            self._forget(before, event.who)
        if symptom is None and len(self._unknown) < MOST_RANKS:
            self._unknown[event.who] = key
        known = self._findings.get(key)
        if known is None:
            if len(self._findings) >= MOST_FINDINGS:
                self._full = True
                return
            known = self._findings[key] = SharedError(symptom, [])
        self._merge(known, event)

    def _identified(
        self, error: str, message: str, functions: tuple[str, ...], code: str
    ) -> tuple[Symptom | None, tuple[str, ...]]:
        """Return the symptom that an error is, and what errors of its kind have in common."""
        symptom = self.index.find(error, message, functions, code)
        if symptom is not None:
            return symptom, (symptom.id,)
        said = re.sub(r"0x[0-9a-f]+|\d+", "N", message[:200])
        return None, ("?", error, said, *functions[-1:])

    def _merge(self, known: SharedError, event: RankError) -> None:
        if known.evidence and known.first.weak and not event.weak:
            known.evidence.clear()
        if len(known.evidence) < MOST_EVIDENCE and (
            not known.evidence or known.first.weak == event.weak
        ):
            known.evidence.append(event)
        known.count += 1
        known.last = event
        if len(known.who) < MOST_RANKS:
            known.who.add(event.who)
        if event.error == TIMEOUT and len(known.waits) < MOST_FINDINGS:
            known.waits.setdefault(event.message, set()).add(event.who)

    def _forget(self, key: tuple[str, ...], who: str) -> None:
        """Drop an exception that was handled by the code that raised the next one."""
        finding = self._findings.get(key)
        if finding is not None and finding.who == {who}:
            del self._findings[key]

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
        if self._full:
            left = "more kinds of errors than this reader keeps; the later ones are left out"
            self._notes.append(left)
        stuck = stuck_groups(self._dumps)
        return Diagnosis(
            cause=ordered[0] if ordered else None,
            others=tuple(ordered[1:]),
            follow_ups=tuple(one for one in rest if one not in ordered),
            earlier=tuple(one for one in earlier if not one.first.weak),
            silent=tuple(self._silent()),
            missing=tuple(self._missing(ordered[0])) if ordered else (),
            engine=engine_text(sorted(self._engine.items(), key=str)),
            engine_lines=tuple(sorted(self._engine_lines.values())[:_MOST_LINES]),
            stuck=tuple(stuck),
            hang=self.index.find(TIMEOUT, stuck[0].description) if stuck else None,
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
        size = self._configuration.context_parallel_size or 0
        levels = self._configuration.hierarchical_context_parallel_sizes or ()
        types = self._configuration.cp_comm_type or ()
        ran = {line.cp_comm_type for line in self._engine if line.context_parallel}
        without = any(not line.context_parallel for line in self._engine)
        sizes = {line.cp_size for line in self._engine if line.context_parallel}
        error = ""
        if without and not ran and (size > 1 or levels):
            error = "levels missing" if HIERARCHICAL in types else "never parallel"
        elif without and ran and not self._dynamic and len(sizes) == 1:
            error = "layer without"
        elif ran and HIERARCHICAL not in ran and len(levels) > 1:
            error = "idle levels"
        symptom = self.index.find(error, "") if error else None
        return [symptom] if symptom else []

    def _missing(self, cause: SharedError) -> Iterator[int]:
        """Return the ranks without a timeout, where all others have one."""
        world = self._configuration.world_size
        named = {who for one in self._findings.values() if one.kind == "hang" for who in one.who}
        if cause.kind != "hang" or not world or not all(who.startswith("rank ") for who in named):
            return
        absent = [rank for rank in range(world) if f"rank {rank}" not in named]
        if len(absent) <= world // 2:
            yield from absent
