"""What all lines of all logs say together: groups, how they were used, and what was configured.

The tables grow with the number of groups and ranks, never with the length of the logs. Past their
caps (far above any real run) further entries are left out, and :attr:`Ledgers.overflow` says so.
Census lines give ranks and sizes. NCCL lines are joined to them by name and members. A traffic
line names a rank and a group name; groups of one name share no rank, so that is enough.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum

from ringproof.harness.logs.configuration import (
    Configuration,
    EngineLine,
    parse_configuration,
    parse_engine,
)
from ringproof.harness.logs.nccl import NcclEvent, NcclLine, parse_nccl
from ringproof.reference.topology.census_line import (
    CENSUS_MARKER,
    TRAFFIC_MARKER,
    CensusLine,
    TrafficLine,
    parse_ranks,
)

FLAT_GROUP = "CONTEXT_PARALLEL_GROUP"

# The exact names only: neither the gloo twins (..._GLOO_L0) nor the expert-data-parallel levels
# that Megatron-LM creates for its distributed optimizer.
_LEVEL = re.compile(r"HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L([0-9]{1,2})")
_DYNAMIC = re.compile(r"(?:DYNAMIC|HYBRID)_DP_CP_GROUP_([0-9]{1,9})")

# Operations that move attention's tensors; all_reduce and broadcast are bookkeeping on any group.
DATA_OPERATIONS = frozenset(("all_to_all", "all_gather", "reduce_scatter", "send", "recv"))


class Strength(IntEnum):
    """How much is known of a group's use, weakest first."""

    CREATED = 1
    COMMUNICATOR = 2
    TRAFFIC = 3

    @property
    def word(self) -> str:
        """The word in JSON and text."""
        return self.name.lower()


def level_of(name: str) -> int | None:
    """The level of a hierarchical CP group's name (0 is innermost), ``None`` for any other name."""
    match = _LEVEL.fullmatch(name)
    return int(match[1]) if match else None


def level_name(level: int) -> str:
    """The description of one level's groups."""
    return f"HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L{level}"


def is_context_parallel(name: str) -> bool:
    """Whether the name is the flat CP group's or one of the hierarchical levels'."""
    return name == FLAT_GROUP or level_of(name) is not None


def is_dynamic(name: str) -> bool:
    """Whether the name is one of dynamic CP's groups, which the verdict leaves out."""
    return dynamic_size(name) is not None


def dynamic_size(name: str) -> int | None:
    """The CP size in the name of one of dynamic CP's groups, ``None`` for any other name."""
    match = _DYNAMIC.fullmatch(name)
    return int(match[1]) if match else None


@dataclass(frozen=True)
class Group:
    """One process group found in the logs.

    Attributes:
        name: Its description.
        ranks: Global ranks in group order, ``None`` where the logs do not give all of them.
        size: Number of members, ``None`` where unknown.
        backend: ``None`` where unknown.
        strength: The strongest evidence for it.
        bytes_sent: Sum over the ranks that reported, ``operations`` likewise, sorted by kind.
    """

    name: str
    ranks: tuple[int, ...] | None
    size: int | None
    backend: str | None
    strength: Strength
    bytes_sent: int = 0
    operations: tuple[tuple[str, int], ...] = ()

    @property
    def moves_data(self) -> bool:
        """Whether tensors were really sent on it."""
        return self.bytes_sent > 0 and any(
            count > 0 and kind in DATA_OPERATIONS for kind, count in self.operations
        )

    def count(self, kind: str) -> int:
        """How often one kind of operation was issued."""
        return dict(self.operations).get(kind, 0)


ENGINE = "Transformer Engine"
CONFIGURATION = "configuration"


@dataclass(frozen=True)
class Evidence:
    """One line of a log that counts: for which group (or the words above), and what it shows."""

    file: str
    line: int
    text: str
    group: str
    shows: str


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


@dataclass(frozen=True)
class Facts:
    """What the logs show, before any judgement.

    Attributes:
        groups: Every group found, context-parallel ones first.
        census_sizes: For each rank that printed a census: sizes of the CP groups that hold it.
        traffic_names: For each rank that printed traffic: names of the groups it moved data on.
        communicator_names: For each rank known to have built NCCL communicators at first use:
            the names of their groups.
        engine: Transformer Engine's choices, each with the number of lines that say so.
        contradictions: NCCL groups whose lines cannot all be true, one sentence each.
        configuration: What Megatron-LM was told.
        unnamed_groups: NCCL groups that the logs show without a description.
        communicators_logged: Whether the logs show NCCL communicators being built at first use
            (not eagerly), so that one that is missing was never used.
        damaged: Census or traffic markers without a sound line.
        overflow: Whether a table was full.
        worlds: World sizes named.
        evidence: Lines that count, a few per group and kind.
    """

    groups: tuple[Group, ...]
    census_sizes: Mapping[int, Mapping[str, int]]
    traffic_names: Mapping[int, frozenset[str]]
    communicator_names: Mapping[int, frozenset[str]]
    engine: tuple[tuple[EngineLine, int], ...]
    contradictions: tuple[str, ...]
    configuration: Configuration
    unnamed_groups: int
    communicators_logged: bool
    damaged: int
    overflow: bool
    worlds: tuple[int, ...]
    evidence: tuple[Evidence, ...]


@dataclass
class _Draft:
    name: str
    ranks: tuple[int, ...] | None
    size: int | None
    backend: str | None
    strength: Strength = Strength.CREATED
    sent: int = 0
    operations: Counter[str] = field(default_factory=Counter)

    def group(self) -> Group:
        return Group(
            self.name,
            self.ranks,
            self.size,
            self.backend,
            self.strength,
            self.sent,
            tuple(sorted(self.operations.items())),
        )


def collect(ledgers: Ledgers) -> Facts:
    """Put the ledgers together."""
    drafts = [
        _Draft(name, ranks, len(ranks), backend)
        for name, known in ledgers.census.groups.items()
        for ranks, backend in known.items()
    ]
    index = _index(drafts, {name for name, _ in ledgers.traffic.sent})
    for group in ledgers.nccl.groups.values():
        _add_nccl(drafts, index, group)
    _add_traffic(drafts, index, ledgers.traffic)
    drafts.sort(key=_order)
    return Facts(
        groups=tuple(draft.group() for draft in drafts),
        census_sizes=ledgers.census.views,
        traffic_names=_traffic_names(ledgers.traffic),
        communicator_names=_communicator_names(ledgers.nccl.groups),
        engine=tuple(sorted(ledgers.engine.items(), key=repr)),
        contradictions=tuple(
            text
            for guid, group in ledgers.nccl.groups.items()
            for text in _contradictions(guid, group)
        ),
        configuration=ledgers.configuration,
        unnamed_groups=sum(not group.descriptions for group in ledgers.nccl.groups.values()),
        communicators_logged=any(
            group.logged and not group.eager for group in ledgers.nccl.groups.values()
        ),
        damaged=ledgers.damaged,
        overflow=ledgers.overflow,
        worlds=tuple(sorted(_worlds(ledgers.census, ledgers.traffic))),
        evidence=tuple(
            evidence
            for key in sorted(ledgers.samples, key=_importance)
            for evidence in ledgers.samples[key]
        ),
    )


def _index(drafts: list[_Draft], names: set[str]) -> dict[tuple[str, int], _Draft]:
    """The draft of each (name, rank), for CP groups and the names asked for."""
    return {
        (draft.name, rank): draft
        for draft in drafts
        if draft.ranks is not None and (is_context_parallel(draft.name) or draft.name in names)
        for rank in draft.ranks
    }


def _add_nccl(drafts: list[_Draft], index: dict[tuple[str, int], _Draft], group: NcclGroup) -> None:
    size = next(iter(group.sizes)) if len(group.sizes) == 1 else None
    ranks = _nccl_ranks(group, size)
    for name in sorted(group.descriptions):
        draft = _matching(index, name, group, size)
        if draft is None:
            draft = _Draft(name, ranks, size, "nccl")
            drafts.append(draft)
            if ranks is not None:
                index.update({(name, rank): draft for rank in ranks})
        if _built_on_use(group):
            draft.strength = max(draft.strength, Strength.COMMUNICATOR)


def _nccl_ranks(group: NcclGroup, size: int | None) -> tuple[int, ...] | None:
    """Global ranks in group order, where every member told its own."""
    if size is None or len(group.members) < size:
        return None
    ranks = [group.members.get(place) for place in range(size)]
    known = tuple(rank for rank in ranks if rank is not None)
    return known if len(set(known)) == size else None


def _contradictions(guid: str, group: NcclGroup) -> Iterator[str]:
    """What the lines of one group cannot all say."""
    names = sorted(group.descriptions)
    if len(names) > 1:
        yield f"NCCL group {guid} is described as {' and as '.join(names)}"
    name = f"NCCL group {guid}{f' ({names[0]})' if len(names) == 1 else ''}"
    sizes = sorted(group.sizes)
    if len(sizes) > 1:
        yield f"{name} is described with sizes {' and '.join(map(str, sizes))}"
    elif sizes and len(group.members) > sizes[0]:
        yield f"{name} of size {sizes[0]} has {len(group.members)} members"
    elif sizes and max(group.members) >= sizes[0]:
        yield f"{name} of size {sizes[0]} has a member at place {max(group.members)}"
    first: dict[int, int] = {}
    for place, rank in sorted(group.members.items()):
        if rank is not None and first.setdefault(rank, place) != place:
            yield f"{name} has rank {rank} at places {first[rank]} and {place}"
            return


def _matching(
    index: dict[tuple[str, int], _Draft], name: str, group: NcclGroup, size: int | None
) -> _Draft | None:
    """The group already known that has this name and these members, if any."""
    for place, rank in group.members.items():
        draft = None if rank is None else index.get((name, rank))
        if draft is None or draft.ranks is None:
            continue
        fits = place < len(draft.ranks) and draft.ranks[place] == rank
        if fits and size in (None, len(draft.ranks)):
            return draft
    return None


def _add_traffic(
    drafts: list[_Draft], index: dict[tuple[str, int], _Draft], traffic: TrafficLedger
) -> None:
    strangers: dict[str, _Draft] = {}
    for (name, rank), sent in traffic.sent.items():
        draft = index.get((name, rank)) or strangers.get(name)
        if draft is None:
            draft = strangers[name] = _Draft(name, None, None, None)
            drafts.append(draft)
        draft.sent += sent
        draft.operations.update(traffic.operations[name, rank])
        if draft.group().moves_data:
            draft.strength = Strength.TRAFFIC


def _traffic_names(traffic: TrafficLedger) -> dict[int, frozenset[str]]:
    """A rank that only receives takes part as well: operations count, bytes need not."""
    names: dict[int, set[str]] = {}
    for (name, rank), operations in traffic.operations.items():
        moved = names.setdefault(rank, set())
        if any(operations[kind] for kind in DATA_OPERATIONS):
            moved.add(name)
    return {rank: frozenset(moved) for rank, moved in names.items()}


def _communicator_names(groups: Mapping[str, NcclGroup]) -> dict[int, frozenset[str]]:
    names: dict[int, set[str]] = {}
    for group in groups.values():
        if group.eager or not group.descriptions:
            continue
        for place in group.built:
            rank = group.members.get(place)
            if rank is not None:
                names.setdefault(rank, set()).update(group.descriptions)
    return {rank: frozenset(built) for rank, built in names.items()}


def _built_on_use(group: NcclGroup) -> bool:
    return bool(group.built) and not group.eager


def _worlds(census: CensusLedger, traffic: TrafficLedger) -> set[int]:
    return census.worlds | traffic.worlds


def _importance(key: tuple[str, str]) -> tuple[int, tuple[str, str]]:
    """Context-parallel groups first, then what was configured and what ran, then other groups."""
    if is_context_parallel(key[0]):
        return 0, key
    return 1 if key[0] in (ENGINE, CONFIGURATION) else 2, key


def _order(draft: _Draft) -> tuple[bool, str, tuple[int, ...]]:
    return not is_context_parallel(draft.name), draft.name, draft.ranks or ()
