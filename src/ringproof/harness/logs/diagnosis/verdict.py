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

from ringproof.harness.logs.diagnosis.index import Index, Symptom
from ringproof.harness.logs.diagnosis.reading import CUT, TIMEOUT, Event, LogReader
from ringproof.harness.logs.diagnosis.recorder import Stuck
from ringproof.harness.logs.lines import Line
from ringproof.harness.logs.parsing import (
    Configuration,
    EngineLine,
    parse_configuration,
    parse_engine,
)

MOST_FINDINGS = 500
MOST_SEEN = 4096
MOST_RANKS = 200_000
MOST_EVIDENCE = 3
HIERARCHICAL = "a2a+p2p"
_DYNAMIC = re.compile(r"\b(?:dynamic|hybrid)_context_parallel \.{2,} True")
_WORKER = re.compile(r"Caught \w+ in DataLoader worker process")
_ORDER = ("exception", "nan", "hang", "follow-up")
_GOES_ON = 3  # iterations after an error that other ranks may still finish
_RECOVERS = 10  # iterations without NaN after which one is past


@dataclass
class Finding:
    """Errors of one kind on any number of ranks.

    Attributes:
        symptom: Entry of the index, or ``None`` for an error that it does not know.
        who: Ranks that have it; ``waits`` are the ranks by what they wait in, for timeouts.
    """

    symptom: Symptom | None
    evidence: list[Event]
    who: set[str] = field(default_factory=set)
    waits: dict[str, set[str]] = field(default_factory=dict)
    count: int = 0
    last: Event | None = None

    @property
    def first(self) -> Event:
        """The first of its errors."""
        return self.evidence[0]

    @property
    def kind(self) -> str:
        """Kind, with all that stops a rank by itself as ``exception``."""
        kind = self.symptom.kind if self.symptom else "exception"
        return kind if kind in _ORDER else "exception"


@dataclass(frozen=True)
class Diagnosis:
    """What the logs of one run say about its failure.

    Attributes:
        cause: The first cause, or ``None``.
        others: Further causes that do not follow from it.
        earlier: Errors after which training went on.
        silent: Faults of a run without an error.
        stuck: Groups that wait, by the dumps of the flight recorder.
    """

    cause: Finding | None
    others: tuple[Finding, ...] = ()
    follow_ups: tuple[Finding, ...] = ()
    earlier: tuple[Finding, ...] = ()
    silent: tuple[Symptom, ...] = ()
    stuck: tuple[Stuck, ...] = ()
    missing: tuple[int, ...] = ()

    @property
    def found(self) -> bool:
        """Whether anything explains a failure."""
        return bool(self.cause or self.follow_ups or self.silent or self.stuck)


@dataclass
class Ledger:
    """All errors of all logs, merged by kind; it does not grow with the length of the logs."""

    index: Index
    findings: dict[tuple[str, ...], Finding] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    final: dict[str, int] = field(default_factory=dict)
    engine: Counter[EngineLine] = field(default_factory=Counter)
    engine_lines: dict[EngineLine, str] = field(default_factory=dict)
    configuration: Configuration = field(default_factory=Configuration)
    dynamic: bool = False
    roots: set[str] = field(default_factory=set)
    unknown: dict[str, tuple[str, ...]] = field(default_factory=dict)
    full: bool = False
    seen: dict[tuple[object, ...], tuple[Symptom | None, tuple[str, ...]]] = field(
        default_factory=dict
    )

    def read(self, log: LogReader, path: str) -> None:
        """Take the errors of one log, and what it says of the configuration and of attention."""
        self.files.append(path)
        for read in log.errors():
            if isinstance(read, Event):
                self.add(read)
            else:
                self._line(path, read)
        # Lines of Transformer Engine that were not returned since they repeat others.
        for tail, count in log.repeated.items():
            engine = parse_engine(tail.decode("utf-8", errors="replace"))
            if engine is not None:
                self.engine[engine] += count - 1
        if log.iteration is not None:
            self.final[path] = log.iteration

    def _line(self, file: str, line: Line) -> None:
        engine = parse_engine(line.text)
        if engine is not None:
            self.engine[engine] += 1
            self.engine_lines.setdefault(engine, f"{file}:{line.number}")
        else:
            self.dynamic |= _DYNAMIC.search(line.text) is not None
            self.configuration = replace(self.configuration, **parse_configuration(line.text))

    def add(self, event: Event) -> None:
        """Take an error."""
        if event.root:
            self.roots.add(event.who)
            if not event.error.startswith("exit code -"):
                return
        symptom, key = self._known(event)
        if symptom is None and (event.weak or _WORKER.match(event.message)):
            return
        before = self.unknown.pop(event.who, None)
        if event.after and before is not None and before != key:
            self._forget(before, event.who)
        if symptom is None and len(self.unknown) < MOST_RANKS:
            self.unknown[event.who] = key
        known = self.findings.get(key)
        if known is None:
            if len(self.findings) >= MOST_FINDINGS:
                self.full = True
                return
            known = self.findings[key] = Finding(symptom, [])
        self._merge(known, event)

    def _known(self, event: Event) -> tuple[Symptom | None, tuple[str, ...]]:
        """Return the symptom that an error is, and what errors of its kind have in common."""
        said = event.error, event.message, event.functions, event.code
        if said not in self.seen:
            if len(self.seen) >= MOST_SEEN:
                self.seen.clear()
            symptom = self.index.find(*said)
            self.seen[said] = symptom, _key(symptom, event)
        return self.seen[said]

    def _merge(self, known: Finding, event: Event) -> None:
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
        finding = self.findings.get(key)
        if finding is not None and finding.who == {who}:
            del self.findings[key]

    def judge(self, stuck: Sequence[Stuck] = ()) -> Diagnosis:
        """Return the first cause and what follows from it."""
        found = list(self.findings.values())
        earlier = [one for one in found if self._went_on(one)]
        live = [one for one in found if one not in earlier]
        strong = [one for one in live if not one.first.weak]
        causes = [one for one in strong if one.kind == "exception" and one.first.error != CUT]
        causes = causes or [one for one in live if one.kind == "exception"]
        ordered = self._ordered(causes)
        rest = [one for kind in _ORDER[1:] for one in live if one.kind == kind]
        if not ordered:
            ordered = [one for one in rest if one.kind != "follow-up"][:1]
        used = {id(one) for one in ordered}
        return Diagnosis(
            ordered[0] if ordered else None,
            tuple(ordered[1:]),
            tuple(one for one in rest if id(one) not in used),
            tuple(one for one in earlier if not one.first.weak),
            tuple(self._silent()),
            tuple(stuck),
            tuple(self._missing(ordered[0])) if ordered else (),
        )

    def _went_on(self, finding: Finding) -> bool:
        """Whether training went on after the last of these errors."""
        last = finding.last or finding.first
        final = self.final.get(last.file)
        if final is None:
            return False
        margin = _RECOVERS if finding.kind == "nan" else _GOES_ON
        return last.iteration is None or final - last.iteration >= margin

    def _ordered(self, causes: Sequence[Finding]) -> list[Finding]:
        timed = all(one.first.time for one in causes)
        together = len({one.first.file for one in causes}) == 1

        def key(one: Finding) -> tuple[object, ...]:
            first = one.first
            place = (self.files.index(first.file), first.line)
            root = self.roots.isdisjoint(one.who)
            general = one.symptom is None or not one.symptom.statements
            order = (first.time,) if timed and not together else (0 if together else general,)
            return root, *order, *place

        return sorted(causes, key=key)

    def _silent(self) -> Iterator[Symptom]:
        """Return what Transformer Engine's lines show to be wrong with context parallelism."""
        size = self.configuration.context_parallel_size or 0
        levels = self.configuration.hierarchical_context_parallel_sizes or ()
        types = self.configuration.cp_comm_type or ()
        ran = {line.cp_comm_type for line in self.engine if line.context_parallel}
        without = any(not line.context_parallel for line in self.engine)
        sizes = {line.cp_size for line in self.engine if line.context_parallel}
        error = ""
        if without and not ran and (size > 1 or levels):
            error = "levels missing" if HIERARCHICAL in types else "never parallel"
        elif without and ran and not self.dynamic and len(sizes) == 1:
            error = "layer without"
        elif ran and HIERARCHICAL not in ran and len(levels) > 1:
            error = "idle levels"
        symptom = self.index.find(error, "") if error else None
        if symptom is not None:
            yield symptom

    def _missing(self, cause: Finding) -> Iterator[int]:
        """Return the ranks without a timeout, where all others have one."""
        world = self.configuration.world_size
        named = {who for one in self.findings.values() if one.kind == "hang" for who in one.who}
        if cause.kind != "hang" or not world or not all(who.startswith("rank ") for who in named):
            return
        absent = [rank for rank in range(world) if f"rank {rank}" not in named]
        if len(absent) <= world // 2:
            yield from absent


def _key(symptom: Symptom | None, event: Event) -> tuple[str, ...]:
    if symptom is not None:
        return (symptom.id,)
    message = re.sub(r"0x[0-9a-f]+|\d+", "N", event.message[:200])
    return "?", event.error, message, event.functions[-1] if event.functions else ""
