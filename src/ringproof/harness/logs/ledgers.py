"""What all lines of all logs say, kept in bounded memory until the last line is read.

The tables grow with the number of groups and ranks, never with the length of the logs. Past their
caps (far above any real run) further entries are left out, and :attr:`Ledgers.overflow` says so.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from ringproof.harness.logs.configuration import (
    Configuration,
    EngineLine,
    parse_configuration,
    parse_engine,
)
from ringproof.harness.logs.groups import CONFIGURATION, ENGINE, Evidence, is_context_parallel
from ringproof.harness.logs.nccl import NcclEvent, NcclLine, parse_nccl
from ringproof.reference.topology.census_line import (
    CENSUS_MARKER,
    TRAFFIC_MARKER,
    CensusLine,
    TrafficLine,
    parse_ranks,
)

TEXT_LIMIT = 200
SAMPLES_PER_GROUP = 3
MAX_NAMES = 256
MAX_GROUPS_PER_NAME = 20_000
MAX_RANK_ENTRIES = 1_000_000
_RANK_LISTS_KEPT = 4096
_SHOWN_BEFORE = 40  # characters of a launcher's prefix to show with a marker line


class RankLists:
    """Reads rank lists and remembers the latest, since every member of a group prints the same."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, ...]] = {}

    def __call__(self, text: str) -> tuple[int, ...]:
        """As :func:`parse_ranks`."""
        ranks = self._known.get(text)
        if ranks is None:
            if len(self._known) >= _RANK_LISTS_KEPT:
                self._known.clear()
            ranks = self._known[text] = parse_ranks(text)
        return ranks


@dataclass
class CensusLedger:
    """Groups by name, and for each printing rank the sizes of the CP groups that hold it."""

    groups: dict[str, dict[tuple[int, ...], str]] = field(default_factory=dict)
    views: dict[int, dict[str, int]] = field(default_factory=dict)
    worlds: set[int] = field(default_factory=set)
    expand: RankLists = field(default_factory=RankLists)

    def add(self, line: CensusLine) -> bool:
        """Take one line; ``False`` where a table is full."""
        self.worlds.add(line.world_size)
        full = len(self.views) >= MAX_RANK_ENTRIES and line.rank not in self.views
        if not full:
            view = self.views.setdefault(line.rank, {})
            if line.place is not None and is_context_parallel(line.group):
                view[line.group] = len(line.ranks)
        if line.group not in self.groups and len(self.groups) >= MAX_NAMES:
            return False
        known = self.groups.setdefault(line.group, {})
        if line.ranks not in known and len(known) >= MAX_GROUPS_PER_NAME:
            return False
        known.setdefault(line.ranks, line.backend)
        return not full


@dataclass
class TrafficLedger:
    """Bytes and operations by group name and rank."""

    sent: dict[tuple[str, int], int] = field(default_factory=dict)
    operations: dict[tuple[str, int], Counter[str]] = field(default_factory=dict)
    worlds: set[int] = field(default_factory=set)

    def add(self, line: TrafficLine) -> bool:
        """Take one line; ``False`` where the table is full."""
        self.worlds.add(line.world_size)
        key = (line.group, line.rank)
        if key not in self.sent and len(self.sent) >= MAX_RANK_ENTRIES:
            return False
        self.sent[key] = self.sent.get(key, 0) + line.bytes_sent
        self.operations.setdefault(key, Counter()).update(dict(line.operations))
        return True


@dataclass
class NcclGroup:
    """What the lines of one GUID say together; ``members`` maps place to global rank.

    ``built`` holds the places that have a communicator, ``logged`` says that the log showed one
    being built, ``eager`` that this happened at creation and not at first use.
    """

    descriptions: set[str] = field(default_factory=set)
    sizes: set[int] = field(default_factory=set)
    members: dict[int, int | None] = field(default_factory=dict)
    built: set[int] = field(default_factory=set)
    logged: bool = False
    eager: bool = False


@dataclass
class NcclLedger:
    """NCCL groups by GUID, and the number of places in all of them."""

    groups: dict[str, NcclGroup] = field(default_factory=dict)
    entries: int = 0

    def add(self, line: NcclLine) -> bool:
        """Take one line; ``False`` where the table is full."""
        group = self.groups.get(line.guid)
        known = group is not None and line.group_rank in group.members
        if not known and self.entries >= MAX_RANK_ENTRIES:
            return False
        if group is None:
            group = self.groups[line.guid] = NcclGroup()
        self.entries += not known
        if line.global_rank is not None or not known:
            group.members[line.group_rank] = line.global_rank
        if line.description is not None:
            group.descriptions.add(line.description)
        if line.size is not None:
            group.sizes.add(line.size)
        group.eager |= line.event is NcclEvent.EAGER
        group.logged |= line.event is NcclEvent.COMMUNICATOR
        if line.event in (NcclEvent.COMMUNICATOR, NcclEvent.WORK):
            group.built.add(line.group_rank)
        return True


@dataclass
class Ledgers:
    """Everything read so far."""

    census: CensusLedger = field(default_factory=CensusLedger)
    traffic: TrafficLedger = field(default_factory=TrafficLedger)
    nccl: NcclLedger = field(default_factory=NcclLedger)
    engine: Counter[EngineLine] = field(default_factory=Counter)
    configuration: Configuration = field(default_factory=Configuration)
    samples: dict[tuple[str, str], list[Evidence]] = field(default_factory=dict)
    damaged: int = 0
    overflow: bool = False

    def read(self, file: str, number: int, text: str) -> None:
        """Take whatever one line says."""
        self._read_markers(file, number, text)
        for line in parse_nccl(text):
            self.overflow |= not self.nccl.add(line)
            if line.description and line.event is not NcclEvent.MENTION:
                self._keep(Evidence(file, number, text, line.description, line.event.value))
        engine = parse_engine(text)
        if engine is not None:
            if engine in self.engine or len(self.engine) < MAX_NAMES:
                self.engine[engine] += 1
            self._keep(Evidence(file, number, text, ENGINE, "configuration run"))
        told = parse_configuration(text)
        if told is not None:
            self.configuration = _merge(self.configuration, told)
            self._keep(Evidence(file, number, text, CONFIGURATION, "configuration"))

    def _read_markers(self, file: str, number: int, text: str) -> None:
        """Our own lines; a marker that no sound line follows is counted as damaged."""
        for piece, shown in _marker_pieces(text):
            census = CensusLine.parse(piece, expand=self.census.expand)
            traffic = None if census else TrafficLine.parse(piece)
            if census is not None:
                self.overflow |= not self.census.add(census)
                self._keep(Evidence(file, number, shown, census.group, "created"))
            elif traffic is not None:
                self.overflow |= not self.traffic.add(traffic)
                self._keep(Evidence(file, number, shown, traffic.group, "traffic"))
            else:
                self.damaged += 1

    def _keep(self, evidence: Evidence) -> None:
        """Keep the first lines for each group and kind, cut and made safe to print."""
        key = (evidence.group, evidence.shows)
        if key not in self.samples and len(self.samples) >= MAX_NAMES:
            return
        kept = self.samples.setdefault(key, [])
        if len(kept) < SAMPLES_PER_GROUP:
            kept.append(replace(evidence, text=_printable(evidence.text)))


def _marker_pieces(text: str) -> list[tuple[str, str]]:
    """For each marker in a line: the text to parse (with the one character before), and to show."""
    starts: list[int] = []
    for marker in (CENSUS_MARKER, TRAFFIC_MARKER):
        found = text.find(marker)
        while found >= 0:
            starts.append(found)
            found = text.find(marker, found + 1)
    starts.sort()
    return [
        (text[max(0, start - 1) : stop], text[max(0, start - _SHOWN_BEFORE) : stop])
        for start, stop in zip(starts, [*starts[1:], len(text)], strict=False)
    ]


def _printable(text: str) -> str:
    cut = text.strip()[: TEXT_LIMIT + 1]
    safe = "".join(character if character.isprintable() else "\N{MIDDLE DOT}" for character in cut)
    return safe if len(safe) <= TEXT_LIMIT else safe[: TEXT_LIMIT - 1] + "\N{HORIZONTAL ELLIPSIS}"


def _merge(known: Configuration, told: Configuration) -> Configuration:
    """The later word wins, field by field."""
    said = {name: value for name, value in vars(told).items() if value is not None}
    return replace(known, **said)
