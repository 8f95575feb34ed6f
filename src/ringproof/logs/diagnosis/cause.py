"""Decides which error of a run was the first cause, and which ones follow from it.

Exceptions, faults of a device and refused arguments come before numbers that are not finite, these
before timeouts, and these before lost connections: a rank that waits for another one fails later,
whatever its clock says. Among equals the launcher's word counts, then the time where all lines
have one, then the order in the file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any, BinaryIO

from ringproof.logs.diagnosis.errors import (
    CUT,
    DUMPED,
    LOOSE,
    NOTICED,
    TIMEOUT,
    LogReader,
    RankError,
)
from ringproof.logs.diagnosis.facts import ShownFacts
from ringproof.logs.diagnosis.hangs import hang_findings
from ringproof.logs.diagnosis.recorder import DumpedGroup, is_dump, read_dump, stuck_groups
from ringproof.logs.diagnosis.restart import Restart, restart_advice
from ringproof.logs.diagnosis.shared import KINDS, SharedError
from ringproof.logs.diagnosis.symptoms import Index, Symptom, load_index
from ringproof.logs.diagnosis.waits import MOST_WAITS, Wait
from ringproof.logs.lines import OpenLog, opened
from ringproof.logs.parsing import EngineLine, RunSetup, engine_text
from ringproof.logs.training.curves import CurveFinding

MOST_FINDINGS = 500
MOST_SEEN = 4096
_MOST_LINES = 8
HIERARCHICAL = "a2a+p2p"
_SAID_ALONE = ("C++ exception",)  # errors that one line shows, and nobody quotes
_NUMBERS = re.compile(r"\d+")
_WORKER = re.compile(r"Caught \w+ in DataLoader worker process")
_EXITED = re.compile(r"exit code \d")
_LAUNCHER = re.compile(r"torch/distributed/(?:elastic|launcher|run\.py)|bin/torchrun\b")
_SUCCESS = ("", "0", "None")  # what SystemExit says of a program that ends without a failure
_SIGNALLED = ("130", "137", "143")  # what a handler of a signal says, as a shell does
_WRAPPERS = ("ExceptionGroup", "BaseExceptionGroup")
_GOES_ON = 3  # iterations after an error that other ranks may still finish
_RECOVERS = 10  # iterations without NaN after which one is past


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
        unread: The first lines that look like errors and explain nothing, ``unread_lines`` their
            number.
        restart: Whether the same launch can be expected to get further.
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
    unread: tuple[RankError, ...]
    unread_lines: int
    restart: Restart

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
        self._facts = ShownFacts()
        self._waits: dict[tuple[str, Wait], RankError] = {}
        self._exited: dict[str, RankError] = {}  # ranks that the launcher reports
        self._noticed: dict[str, RankError] = {}  # ranks with a timeout and no collective
        self._unread: list[RankError] = []  # the last ones of each file
        self._unread_lines: dict[str, int] = {}

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
        blocks = self._facts.noted(filter(None, chain((first,), blocks)))
        reader = LogReader(log.path, blocks, self._setup)
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
        if _EXITED.match(event.error):
            self._exited.setdefault(event.who, event)
            return
        if event.wait is not None:
            self._facts.note_group(event.wait.group)
            if len(self._waits) < MOST_WAITS:
                self._waits.setdefault((event.who, event.wait), event)
            return
        if event.error == "SystemExit":
            if event.message.strip() in _SUCCESS:
                return
            if event.message.strip() in _SIGNALLED:
                event.error = f"exit code {128 - int(event.message)}"
        if event.error == NOTICED:
            self._noticed.setdefault(event.who, event)
            return
        if event.error in (LOOSE, DUMPED) or (event.error == CUT and _LAUNCHER.search(event.place)):
            self._leave(event)
            return
        # A flood of errors without a traceback differs in its numbers, which say nothing there.
        message = _NUMBERS.sub("1", event.message) if event.weak else event.message
        seen = event.error, message, event.functions, event.code, event.place
        symptoms, key = self._known(*seen)
        quoted = event.weak and event.error not in _SAID_ALONE
        if event.error in _WRAPPERS or _WORKER.match(event.message):
            return  # the exception that it wraps has a traceback of its own
        if not symptoms and quoted:
            self._leave(event)
            return
        before = self._unknown.pop(event.who, key)
        handled = self._findings.get(before)
        replaces = event.after and before != key and event.error != CUT
        if replaces and handled and handled.who == {event.who}:
            del self._findings[before]  # the code that handled it raised this one
        if not symptoms:
            self._unknown[event.who] = key
        if key in self._findings or len(self._findings) < MOST_FINDINGS:
            self._findings.setdefault(key, SharedError(None, candidates=symptoms)).add(event)

    def _leave(self, event: RankError) -> None:
        """Count a line that looks like an error and explains nothing."""
        self._unread_lines[event.file] = self._unread_lines.get(event.file, 0) + 1
        self._unread = [*self._unread[-_MOST_LINES:], event]

    def _identified(
        self, error: str, message: str, functions: tuple[str, ...], code: str, place: str
    ) -> tuple[tuple[Symptom, ...], tuple[str, ...]]:
        """Return the symptoms that an error can be, and what errors of its kind have in common."""
        self._facts.note_error(message, functions)
        symptoms = self._index.candidates(error, message, functions, code, place)
        if symptoms:
            return symptoms, tuple(one.id for one in symptoms)
        said = re.sub(r"0x[0-9a-f]+|\d+", "N", message[:200])
        return (), ("?", error, said, *functions[-1:])

    def _all(self) -> list[SharedError]:
        """Return all kinds of errors, each with the symptom that the facts of the run allow."""
        told = self._setup.configuration
        self._facts.note_setup(self._setup)
        world = told.world_size or 0
        hangs = hang_findings(list(self._waits.values()), self._index, world, self._facts.busy)
        found = [*hangs, *self._findings.values()]
        if self._noticed and not hangs:
            found.append(self._shared(TIMEOUT, self._noticed))
        if not found and self._exited:
            found.append(self._shared("exit code 1", self._exited))
        for one in found:
            one.symptom = next(
                (symptom for symptom in one.candidates if self._facts.allow(symptom.needs)), None
            )
        return [one for one in found if one.symptom or not _quoted(one)]

    def _shared(self, error: str, events: dict[str, RankError]) -> SharedError:
        shared = SharedError(None, candidates=self._index.candidates(error, ""))
        for event in events.values():
            shared.add(event)
        return shared

    def judge(self) -> Diagnosis:
        """Return the first cause and what follows from it."""
        found = self._all()
        earlier = [one for one in found if self._went_on(one)]
        live = [one for one in found if one not in earlier]
        causes = [one for one in live if one.kind == "exception"]
        strong = [one for one in causes if not one.first.weak and one.first.error != CUT]
        if strong and all(map(_is_general, strong)):
            strong += [one for one in causes if one.symptom and not _is_general(one)]
        rest = [one for kind in KINDS[1:] for one in live if one.kind == kind]
        waits = [one for one in rest if one.kind != "follow-up"][:1]
        # A traceback without its end says less than a timeout.
        vague = not strong and all(one.first.error == CUT for one in causes)
        ordered = [*(waits if vague else ()), *self._ordered(strong or causes)]
        unread = [one for one in self._unread if not self._passed(one, _margin(one))]
        if len(self._findings) == MOST_FINDINGS:
            self._notes.append(f"later kinds of errors than the first {MOST_FINDINGS} are left out")
        stuck = stuck_groups(self._dumps)
        return Diagnosis(
            cause=ordered[0] if ordered else None,
            others=tuple(ordered[1:]),
            follow_ups=tuple(one for one in rest if one not in ordered),
            earlier=tuple(one for one in earlier if not one.first.weak),
            silent=tuple(self._silent()),
            missing=ordered[0].absent if ordered else (),
            engine=engine_text(self._setup.engine),
            engine_lines=tuple(sorted(self._engine_lines.values())[:_MOST_LINES]),
            stuck=tuple(stuck),
            hang=self._index.find(TIMEOUT, stuck[0].description) if stuck else None,
            curves=tuple(self._curves),
            logs=len(self._files),
            dumps=len(self._dumps),
            lines=self._lines,
            notes=tuple(self._notes),
            unread=tuple(unread),
            unread_lines=sum(self._unread_lines[file] for file in {one.file for one in unread}),
            restart=restart_advice(ordered[0] if ordered else None, rest),
        )

    def _went_on(self, finding: SharedError) -> bool:
        """Whether training went on after the last of these errors."""
        margin = _RECOVERS if finding.kind == "nan" else _GOES_ON
        return self._passed(finding.last or finding.first, margin)

    def _passed(self, last: RankError, margin: int) -> bool:
        """Whether a file shows some iterations after an error."""
        final = self._final.get(last.file)
        if final is None:
            return False
        return last.iteration is None or final - last.iteration >= margin

    def _ordered(self, causes: Sequence[SharedError]) -> list[SharedError]:
        timed = all(one.first.time for one in causes)
        specific = any(one.symptom and not one.symptom.general for one in causes)
        together = len({one.first.file for one in causes}) == 1

        def key(one: SharedError) -> tuple[object, ...]:
            first = one.first
            place = (self._files.index(first.file), first.line)
            root = self._roots.isdisjoint(one.who)
            general = one.symptom is None or not one.symptom.statements
            order = (first.time,) if timed and not together else (0 if together else general,)
            return root, specific and _is_general(one), *order, *place

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


def _margin(unread: RankError) -> int:
    """Return after how many iterations a line counts no more; a dump of stacks ends nothing."""
    return 1 if unread.error == DUMPED else _GOES_ON


def _is_general(one: SharedError) -> bool:
    """Whether another error that the index knows can be the reason for this one."""
    return one.symptom is not None and one.symptom.general


def _quoted(one: SharedError) -> bool:
    """Whether an unknown error may be one that somebody mentions."""
    return one.first.weak and one.first.error not in _SAID_ALONE
