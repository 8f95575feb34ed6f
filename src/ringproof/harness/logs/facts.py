"""From the ledgers to groups: what census, NCCL and traffic lines say of one group is put together.

Census lines give ranks and sizes. NCCL lines are joined to them by name and members. A traffic
line names a rank and a group name; groups of one name share no rank, so that is enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ringproof.harness.logs.configuration import Configuration, EngineLine
from ringproof.harness.logs.groups import (
    CONFIGURATION,
    DATA_OPERATIONS,
    ENGINE,
    Evidence,
    Group,
    Strength,
    is_context_parallel,
)
from ringproof.harness.logs.ledgers import CensusLedger, Ledgers, NcclGroup, TrafficLedger


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
