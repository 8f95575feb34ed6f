"""What all lines of all logs say together: groups, how they were used, and what was configured.

The tables grow with the number of groups and ranks, never with the length of the logs.
NCCL lines are joined to census lines by name and members. A traffic line names a rank and a group
name; groups of one name share no rank, so that is enough.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property, lru_cache

from ringproof.findings.printable import showable
from ringproof.logs.parsing import (
    EngineLine,
    NcclEvent,
    NcclLine,
    RunSetup,
    parse_nccl,
    parse_setup,
)
from ringproof.reference.topology.census_line import (
    CENSUS_MARKER,
    TRAFFIC_MARKER,
    CensusLine,
    TrafficLine,
    parse_ranks,
)

FLAT_GROUP = "CONTEXT_PARALLEL_GROUP"
MESH_GROUP = "mesh_cp"
"""What torch calls the group of the axis ``cp`` of a ``DeviceMesh`` (torchtitan, Automodel)."""
WHOLE_RUN = "default_pg"

# The exact names only: neither the gloo twins (..._GLOO_L0) nor the expert-data-parallel levels
# that Megatron-LM creates for its distributed optimizer.
_LEVEL = re.compile(r"HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L([0-9]{1,2})")
_MARKER = re.compile(f"{re.escape(CENSUS_MARKER)}|{re.escape(TRAFFIC_MARKER)}")
_DYNAMIC = re.compile(r"(?:DYNAMIC|HYBRID)_DP_CP_GROUP_([0-9]{1,9})")

# Operations that move attention's tensors; all_reduce and broadcast are bookkeeping on any group.
DATA_OPERATIONS = frozenset(("all_to_all", "all_gather", "reduce_scatter", "send", "recv"))

ENGINE = "Transformer Engine"
CONFIGURATION = "configuration"

TEXT_LIMIT = 200
SAMPLES_PER_GROUP = 3
_SHOWN_BEFORE = 40  # characters of a launcher's prefix to show with a marker line


class Strength(IntEnum):
    """How much is known of a group's use, weakest first."""

    CREATED = 1
    COMMUNICATOR = 2
    TRAFFIC = 3


def level_of(name: str) -> int | None:
    """Return the level of a hierarchical CP group's name (0 is innermost), or ``None``."""
    return _number_in(name, _LEVEL)


def dynamic_size(name: str) -> int | None:
    """Return the CP size in the name of one of Dynamic CP's groups, or ``None``."""
    return _number_in(name, _DYNAMIC)


def _number_in(name: str, pattern: re.Pattern[str]) -> int | None:
    match = pattern.fullmatch(name)
    return int(match[1]) if match else None


def level_name(level: int) -> str:
    """Return the description of one level's groups."""
    return f"HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L{level}"


def is_context_parallel(name: str) -> bool:
    """Whether the name is the flat CP group's or one of the hierarchical levels'."""
    return name == FLAT_GROUP or level_of(name) is not None


@dataclass
class LoggedGroup:
    """One process group found in the logs.

    Attributes:
        ranks: Global ranks in group order, ``None`` where the logs do not give all of them.
        size: Number of members, ``None`` where unknown; ``backend`` likewise.
        bytes_sent: Sum over the ranks that reported; ``operations`` likewise, by kind.
    """

    name: str
    ranks: tuple[int, ...] | None
    size: int | None
    backend: str | None
    strength: Strength = Strength.CREATED
    bytes_sent: int = 0
    operations: Counter[str] = field(default_factory=Counter)

    @property
    def moves_data(self) -> bool:
        """Whether tensors were really sent on it."""
        return self.bytes_sent > 0 and any(self.operations[kind] > 0 for kind in DATA_OPERATIONS)


@dataclass(frozen=True)
class EvidenceLine:
    """One line of a log that counts, and what it shows."""

    file: str
    line: int
    text: str
    shows: str


@dataclass(frozen=True)
class NamedGroups:
    """All groups of one name, of which there may be none."""

    name: str
    groups: tuple[LoggedGroup, ...]

    @property
    def sizes(self) -> list[int]:
        """The sizes that the logs give, with repetitions."""
        return [group.size for group in self.groups if group.size is not None]

    @property
    def size(self) -> int | None:
        """The most frequent size; ``None`` where no line gives it."""
        return Counter(self.sizes).most_common(1)[0][0] if self.sizes else None


@dataclass
class NcclGroup:
    """What the lines of one GUID say together.

    Attributes:
        members: Global rank by place in the group.
        built: Places that have a communicator.
        logged: Whether the log showed a communicator being built, ``eager`` whether this happened
            at creation and not at first use.
    """

    descriptions: set[str] = field(default_factory=set)
    sizes: set[int] = field(default_factory=set)
    members: dict[int, int | None] = field(default_factory=dict)
    built: set[int] = field(default_factory=set)
    logged: bool = False
    eager: bool = False

    @property
    def size(self) -> int | None:
        """Number of members, where the lines agree on it."""
        return next(iter(self.sizes)) if len(self.sizes) == 1 else None

    @property
    def ranks(self) -> tuple[int, ...] | None:
        """The global ranks in group order, where every member told its own."""
        if self.size is None or len(self.members) < self.size:
            return None
        known = [self.members.get(place) for place in range(self.size)]
        ranks = tuple(rank for rank in known if rank is not None)
        return ranks if len(set(ranks)) == self.size else None

    def contradictions(self, guid: str) -> Iterator[str]:
        """Yield what its lines cannot all say."""
        names, sizes = sorted(self.descriptions), sorted(self.sizes)
        if len(names) > 1:
            yield f"NCCL group {guid} is described as {' and as '.join(names)}"
        name = f"NCCL group {guid}{f' ({names[0]})' if len(names) == 1 else ''}"
        if len(sizes) > 1:
            yield f"{name} is described with sizes {' and '.join(map(str, sizes))}"
        elif sizes and len(self.members) > sizes[0]:
            yield f"{name} of size {sizes[0]} has {len(self.members)} members"
        elif sizes and max(self.members) >= sizes[0]:
            yield f"{name} of size {sizes[0]} has a member at place {max(self.members)}"
        known = Counter(rank for rank in self.members.values() if rank is not None)
        rank, times = known.most_common(1)[0] if known else (0, 0)
        if times > 1:
            one, other, *_ = sorted(place for place, r in self.members.items() if r == rank)
            yield f"{name} has rank {rank} at places {one} and {other}"


class LogFacts(RunSetup):
    """What the logs show, before any judgement: `read` takes their lines, then all else is asked.

    Attributes:
        census_names: For each rank that printed a census: names of the CP groups that hold it.
        worlds: Every world size that a line names.
        damaged: Markers that are followed by no sound line.
    """

    def __init__(self) -> None:
        super().__init__()
        self.census_names: defaultdict[int, set[str]] = defaultdict(set)
        self.worlds: set[int] = set()
        self.damaged = 0
        self._census: defaultdict[str, dict[tuple[int, ...], str]]  # name -> ranks -> backend
        self._census = defaultdict(dict)
        self._sent: Counter[tuple[str, int]] = Counter()  # bytes by group name and rank
        self._operations: defaultdict[tuple[str, int], Counter[str]] = defaultdict(Counter)
        self._nccl: defaultdict[str, NcclGroup] = defaultdict(NcclGroup)  # by GUID
        self._samples: defaultdict[tuple[str, str], list[EvidenceLine]] = defaultdict(list)
        # Every member of a group prints the same list of ranks.
        self._expand = lru_cache(maxsize=4096)(parse_ranks)

    def read(self, file: str, number: int, text: str) -> None:
        """Take whatever one line says."""
        for shown, group, shows in self._taken(text):
            samples = self._samples[group, shows]
            if len(samples) < SAMPLES_PER_GROUP:
                said = showable(shown.strip(), TEXT_LIMIT - 1)
                samples.append(EvidenceLine(file, number, said, shows))

    def _taken(self, text: str) -> Iterator[tuple[str, str, str]]:
        """Yield the text to show, the group, and what it shows of it."""
        for piece, shown in _marker_pieces(text):
            census = CensusLine.parse(piece, expand=self._expand)
            traffic = None if census else TrafficLine.parse(piece)
            if census is not None:
                self._add_census(census)
                yield shown, census.group, "created"
            elif traffic is not None:
                self._add_traffic(traffic)
                yield shown, traffic.group, "traffic"
            else:
                self.damaged += 1
        for line in map(_of_mesh, parse_nccl(text)):
            self._add_nccl(line)
            if line.description and line.event is not NcclEvent.MENTION:
                yield text, line.description, line.event.value
        told = parse_setup(text)
        if told:
            self.add(told)
            if isinstance(told, EngineLine):
                yield text, ENGINE, "configuration run"
            else:
                yield text, CONFIGURATION, "configuration"

    def _add_census(self, line: CensusLine) -> None:
        self.worlds.add(line.world_size)
        names = self.census_names[line.rank]
        if line.place is not None and is_context_parallel(line.group):
            names.add(line.group)
        self._census[line.group].setdefault(line.ranks, line.backend)

    def _add_traffic(self, line: TrafficLine) -> None:
        self.worlds.add(line.world_size)
        self._sent[line.group, line.rank] += line.bytes_sent
        self._operations[line.group, line.rank].update(dict(line.operations))

    def _add_nccl(self, line: NcclLine) -> None:
        group = self._nccl[line.guid]
        if line.global_rank is not None or line.group_rank not in group.members:
            group.members[line.group_rank] = line.global_rank
        if line.description is not None:
            group.descriptions.add(line.description)
        if line.size is not None:
            group.sizes.add(line.size)
        group.eager |= line.event is NcclEvent.EAGER
        group.logged |= line.event is NcclEvent.COMMUNICATOR
        if line.event in (NcclEvent.COMMUNICATOR, NcclEvent.WORK):
            group.built.add(line.group_rank)

    @cached_property
    def evidence(self) -> tuple[EvidenceLine, ...]:
        """The first lines of each kind, those on context-parallel groups first."""
        keys = sorted(self._samples, key=_importance)
        return tuple(evidence for key in keys for evidence in self._samples[key])

    @cached_property
    def contradictions(self) -> tuple[str, ...]:
        """What the lines of one NCCL group cannot all say."""
        found = self._nccl.items()
        return tuple(text for guid, group in found for text in group.contradictions(guid))

    @cached_property
    def dynamic_names(self) -> tuple[str, ...]:
        """The names of Dynamic CP's groups."""
        found = {group.name for group in self.groups if dynamic_size(group.name) is not None}
        return tuple(sorted(found))

    @property
    def unnamed_groups(self) -> int:
        """Number of NCCL groups that the logs show without a description."""
        return sum(not group.descriptions for group in self._nccl.values())

    @property
    def communicators_logged(self) -> bool:
        """Whether the logs show NCCL communicators being built at first use (not eagerly).

        Then one that is missing was never used.
        """
        return any(group.logged and not group.eager for group in self._nccl.values())

    @cached_property
    def traffic_names(self) -> dict[int, set[str]]:
        """For each rank that printed traffic: names of the groups it moved data on.

        A rank that only receives takes part as well: operations count, bytes need not.
        """
        names: defaultdict[int, set[str]] = defaultdict(set)
        for (name, rank), operations in self._operations.items():
            names[rank] |= {name for kind in DATA_OPERATIONS if operations[kind]}
        return names

    @cached_property
    def communicator_names(self) -> dict[int, set[str]]:
        """For each rank known to have built NCCL communicators at first use: of which groups."""
        names: defaultdict[int, set[str]] = defaultdict(set)
        for group in self._nccl.values():
            for place in () if group.eager or not group.descriptions else group.built:
                rank = group.members.get(place)
                if rank is not None:
                    names[rank] |= group.descriptions
        return names

    def named(self, name: str) -> NamedGroups:
        """Return the groups of one name."""
        return NamedGroups(name, tuple(group for group in self.groups if group.name == name))

    @cached_property
    def flat(self) -> NamedGroups:
        """The flat CP groups."""
        return self.named(FLAT_GROUP)

    @cached_property
    def levels(self) -> tuple[NamedGroups, ...]:
        """The hierarchical levels seen, inner first."""
        found = {level for group in self.groups if (level := level_of(group.name)) is not None}
        return tuple(self.named(level_name(level)) for level in sorted(found))

    @cached_property
    def groups(self) -> tuple[LoggedGroup, ...]:
        """Every group found, context-parallel ones first."""
        groups = [
            LoggedGroup(name, ranks, len(ranks), backend)
            for name, known in self._census.items()
            for ranks, backend in known.items()
        ]
        named = {name for name, _ in self._sent}
        index = {
            (group.name, rank): group
            for group in groups
            if is_context_parallel(group.name) or group.name in named
            for rank in group.ranks or ()
        }
        for nccl in self._nccl.values():
            groups += _add_nccl(index, nccl)
        strangers: dict[str, LoggedGroup] = {}
        for (name, rank), sent in self._sent.items():
            group = index.get((name, rank)) or strangers.get(name)
            if group is None:
                group = strangers[name] = LoggedGroup(name, None, None, None)
                groups.append(group)
            group.bytes_sent += sent
            group.operations.update(self._operations[name, rank])
            if group.moves_data:
                group.strength = Strength.TRAFFIC
        groups.sort(key=lambda g: (not is_context_parallel(g.name), g.name, g.ranks or ()))
        return tuple(groups)


def _of_mesh(line: NcclLine) -> NcclLine:
    """Return a line with Megatron-LM's name of the CP group, where it has that of a mesh."""
    return replace(line, description=FLAT_GROUP) if line.description == MESH_GROUP else line


def _marker_pieces(text: str) -> list[tuple[str, str]]:
    """For each marker in a line: the text to parse (with the one character before), and to show."""
    starts = [match.start() for match in _MARKER.finditer(text)]
    return [
        (text[max(0, start - 1) : stop], text[max(0, start - _SHOWN_BEFORE) : stop])
        for start, stop in zip(starts, [*starts[1:], len(text)], strict=False)
    ]


def _add_nccl(index: dict[tuple[str, int], LoggedGroup], nccl: NcclGroup) -> Iterator[LoggedGroup]:
    """Enter an NCCL group into the known groups, and yield those that are new."""
    ranks = nccl.ranks
    for name in sorted(nccl.descriptions):
        group = _matching(index, name, nccl)
        if group is None:
            group = LoggedGroup(name, ranks, nccl.size, "nccl")
            yield group
            index.update({(name, rank): group for rank in ranks or ()})
        if nccl.built and not nccl.eager:
            group.strength = max(group.strength, Strength.COMMUNICATOR)


def _matching(
    index: dict[tuple[str, int], LoggedGroup], name: str, nccl: NcclGroup
) -> LoggedGroup | None:
    """Return the group already known that has this name and these members, if any."""
    for place, rank in nccl.members.items():
        group = None if rank is None else index.get((name, rank))
        if group is not None and group.ranks is not None:
            fits = place < len(group.ranks) and group.ranks[place] == rank
            if fits and nccl.size in (None, len(group.ranks)):
                return group
    return None


def _importance(key: tuple[str, str]) -> tuple[int, tuple[str, str]]:
    """Sort context-parallel groups first, then what was configured and what ran, then others."""
    if is_context_parallel(key[0]):
        return 0, key
    return 1 if key[0] in (ENGINE, CONFIGURATION) else 2, key
