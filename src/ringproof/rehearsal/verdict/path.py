"""The path through context parallelism that a run took, compared with the path asked for."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from ringproof.launch.flags import Flags
from ringproof.launch.shell.parse import whole_number
from ringproof.launch.small.layout import DYNAMIC, layout
from ringproof.rehearsal.protocol.reports import AttentionCall, RankReport

NO_COMMUNICATION = "none"
LEVELS_TYPE = "a2a+p2p"
PHASE_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "train": "training",
        "recompute": "recomputation",
        "evaluate": "evaluation",
        "warmup": "the warm-up before a capture",
        "capture": "the capture of graphs",
    }
)
FAR_FEWER = 0.5  # of the median: below this share of tokens a rank counts as idle


@dataclass(frozen=True)
class RequestedPath:
    """What a command line says about context parallelism.

    Attributes:
        comm_types: Communication types: one for all layers, or one for each layer.
        levels: Sizes of the two levels of ``a2a+p2p``; empty where none are given.
    """

    dynamic: bool
    size: int
    comm_types: tuple[str, ...]
    levels: tuple[int, ...]

    @property
    def parallel(self) -> bool:
        """Whether any context parallelism is asked for."""
        return self.dynamic or self.size > 1

    @property
    def feature(self) -> str:
        """``dynamic-cp``, ``a2a+p2p``, ``p2p``, ``a2a``, ``all_gather`` or ``none``."""
        if self.dynamic:
            return "dynamic-cp"
        if not self.parallel:
            return "none"
        return LEVELS_TYPE if LEVELS_TYPE in self.comm_types else self.comm_types[0]

    def comm_type(self, layer: int) -> str:
        """Return the communication type of a layer, counted from 1."""
        if len(self.comm_types) == 1:
            return self.comm_types[0]
        return self.comm_types[min(max(layer, 1), len(self.comm_types)) - 1]

    def sizes(self, comm_type: str) -> tuple[int, ...]:
        """Return the sizes of the groups of a static communication type."""
        if comm_type == LEVELS_TYPE and self.levels:
            return self.levels
        return (self.size,)

    def __str__(self) -> str:
        kinds = ", ".join(dict.fromkeys(self.comm_types))
        if self.dynamic:
            return f"Dynamic CP with {kinds}"
        if not self.parallel:
            return "no context parallelism"
        shape = " x ".join(map(str, self.levels)) if self.levels else str(self.size)
        return f"{kinds} over {shape} ranks"


@dataclass(frozen=True)
class PathCount:
    """Attention calls of the same kind."""

    comm_type: str
    sizes: tuple[int, ...]
    calls: int

    def __str__(self) -> str:
        return named(self.comm_type, self.sizes)


@dataclass(frozen=True)
class Share:
    """Ranks that compute one sequence part of a microbatch together.

    Attributes:
        ranks: All ranks of the group.
        tokens: Query tokens of each rank, in the order of ``ranks``, padding included.
    """

    ranks: tuple[int, ...]
    comm_type: str
    sizes: tuple[int, ...]
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class MicrobatchGroups:
    """How the ranks were grouped in one microbatch of training.

    Attributes:
        shares: Groups of ranks; a rank that did not take part is in none.
    """

    iteration: int
    number: int
    shares: tuple[Share, ...]


@dataclass(frozen=True)
class GroupUse:
    """What a process group carried.

    Attributes:
        operations: Number of calls by operation, summed over the ranks.
        bytes: Bytes that the ranks sent or contributed, summed over the ranks.
    """

    group: str
    ranks: tuple[int, ...]
    operations: Mapping[str, int]
    bytes: int


@dataclass(frozen=True)
class PathTaken:
    """What the attention calls and the process groups of a run show.

    Attributes:
        taken: Attention calls of training by kind.
        microbatches: Groups of ranks in each microbatch of training.
        cp_sizes: Number of groups in microbatches of training, by CP size.
        tokens: Tokens of each rank in training, padding included, counted in its first layer.
        idle_ranks: Ranks without attention calls or with far fewer tokens than the others.
        departures: Sentences that say where the path is not the one asked for.
        remarks: Sentences on what else is worth knowing.
        unused_sizes: CP sizes that Dynamic CP can choose in this layout and did not choose here.
    """

    requested: RequestedPath
    taken: tuple[PathCount, ...]
    layers: Mapping[int, tuple[PathCount, ...]]
    ranks: Mapping[int, tuple[PathCount, ...]]
    evaluation: tuple[PathCount, ...]
    recomputed: tuple[PathCount, ...]
    microbatches: tuple[MicrobatchGroups, ...]
    cp_sizes: Mapping[int, int]
    groups: tuple[GroupUse, ...]
    tokens: Mapping[int, int]
    idle_ranks: tuple[int, ...]
    departures: tuple[str, ...]
    remarks: tuple[str, ...]
    unused_sizes: tuple[int, ...] = ()

    @property
    def as_requested(self) -> bool:
        """Whether the path is the one that the launch asks for."""
        return not self.departures


def read_request(arguments: Sequence[str]) -> RequestedPath:
    """Read from a command line what it asks of context parallelism.

    Raises:
        InputError: A size is not an integer.
    """
    flags = Flags(tuple(arguments))
    levels = flags.get("--hierarchical-context-parallel-sizes") or ()
    return RequestedPath(
        dynamic=any(flags.has(name) for name in DYNAMIC),
        size=flags.integer("--context-parallel-size", 1),
        comm_types=flags.get("--cp-comm-type") or ("p2p",),
        levels=tuple(size for size in map(whole_number, levels) if size is not None),
    )


def read_path(
    arguments: Sequence[str], reports: Sequence[RankReport], *, finished: bool = True
) -> PathTaken:
    """Summarise the attention calls and the traffic of a run's ranks.

    Args:
        finished: Whether the run reached its end. The calls of one that did not are judged, and
            missing ones are not.
    """
    found = path_taken(read_request(arguments), reports, finished=finished)
    sizes = _choices(arguments, len(reports)) if finished else ()
    return replace(found, unused_sizes=tuple(size for size in sizes if size not in found.cp_sizes))


def path_taken(
    requested: RequestedPath, reports: Sequence[RankReport], *, finished: bool = True
) -> PathTaken:
    """Summarise what ranks did, by what the launch asks for; see `read_path`."""
    calls = [(report.rank, call) for report in reports for call in report.attention]
    alone = [call.without_cp and call.size == 1 for _, call in calls]
    apart = 0
    if (
        requested.parallel
        and not requested.dynamic
        and not all(call.without_cp for _, call in calls)
    ):
        apart = sum(alone)
        calls = [item for item, left_out in zip(calls, alone, strict=True) if not left_out]
    training = [(rank, call) for rank, call in calls if call.phase == "train"]
    first = _in_first_layers(training)
    microbatches = tuple(_microbatches(first))
    sizes = Counter(len(share.ranks) for one in microbatches for share in one.shares)
    tokens = {report.rank: 0 for report in reports}
    for rank, call in first:
        tokens[rank] += call.tokens
    idle = _idle(tokens)
    return PathTaken(
        requested=requested,
        taken=_counts(call for _, call in training),
        layers=_split(training, lambda _, call: call.layer),
        ranks=_split(training, lambda rank, _: rank),
        evaluation=_counts(call for _, call in calls if call.phase == "evaluate"),
        recomputed=_counts(call for _, call in calls if call.phase == "recompute"),
        microbatches=microbatches,
        cp_sizes=dict(sorted(sizes.items())),
        groups=_groups(reports),
        tokens=tokens,
        idle_ranks=idle,
        departures=tuple(_departures(requested, [call for _, call in calls], finished)),
        remarks=tuple(_remarks(requested, apart, [call for _, call in training], tokens, idle)),
    )


def _choices(arguments: Sequence[str], ranks: int) -> tuple[int, ...]:
    """Return the CP sizes that Dynamic CP can choose: powers of two and the whole domain.

    Upstream makes groups of the powers below log2 of the domain, rounded down.
    """
    flags = Flags(tuple(arguments))
    found = layout(flags, ranks)
    if not found.dynamic or not ranks:
        return ()
    least = flags.integer("--min-dynamic-context-parallel-size", 1)
    sizes = (*(1 << power for power in range(found.domain.bit_length() - 1)), found.domain)
    return tuple(size for size in sizes if size >= least)


def named(comm_type: str, sizes: Sequence[int]) -> str:
    """Return a kind of attention call in words, such as ``a2a+p2p 2 x 4``."""
    if comm_type == NO_COMMUNICATION:
        return "one rank"
    return f"{comm_type} {' x '.join(map(str, sizes))}"


def executed(comm_type: str, sizes: Sequence[int]) -> str:
    """Return the type that Transformer Engine executes.

    Transformer Engine executes ``a2a+p2p`` as the flat type of the other level where one level
    has a single rank.
    """
    if comm_type != LEVELS_TYPE or len(sizes) != 2 or 1 not in sizes:
        return comm_type
    return "p2p" if sizes[0] == 1 else "a2a"


def _counts(calls: Iterable[AttentionCall]) -> tuple[PathCount, ...]:
    counted = Counter((call.comm_type, call.sizes) for call in calls)
    ordered = sorted(counted.items(), key=lambda item: (-item[1], item[0]))
    return tuple(PathCount(kind, sizes, number) for (kind, sizes), number in ordered)


def _split(
    calls: Iterable[tuple[int, AttentionCall]], key: Callable[[int, AttentionCall], int]
) -> dict[int, tuple[PathCount, ...]]:
    parts: dict[int, list[AttentionCall]] = defaultdict(list)
    for rank, call in calls:
        parts[key(rank, call)].append(call)
    return {number: _counts(parts[number]) for number in sorted(parts)}


def _in_first_layers(
    training: Sequence[tuple[int, AttentionCall]],
) -> list[tuple[int, AttentionCall]]:
    """Return the calls of the first layer that each rank computes."""
    first: dict[int, int] = {}
    for rank, call in training:
        first[rank] = min(first.get(rank, call.layer), call.layer)
    return [(rank, call) for rank, call in training if call.layer == first[rank]]


def _microbatches(calls: Iterable[tuple[int, AttentionCall]]) -> Iterator[MicrobatchGroups]:
    cells: dict[tuple[int, int], dict[int, AttentionCall]] = defaultdict(dict)
    for rank, call in calls:
        cells[call.iteration, call.microbatch][rank] = call
    for (iteration, number), by_rank in sorted(cells.items()):
        yield MicrobatchGroups(iteration, number, tuple(_shares(by_rank)))


def _shares(by_rank: Mapping[int, AttentionCall]) -> Iterator[Share]:
    placed: set[int] = set()
    for rank, call in sorted(by_rank.items()):
        if rank not in placed:
            ranks = _members(rank, by_rank)
            placed.update(ranks)
            tokens = tuple(by_rank[member].tokens for member in ranks if member in by_rank)
            yield Share(ranks, call.comm_type, call.sizes, tokens)


def _members(rank: int, by_rank: Mapping[int, AttentionCall]) -> tuple[int, ...]:
    """Return all ranks that are reached from a rank through the levels of its groups."""
    found, todo = {rank}, [rank]
    while todo:
        call = by_rank.get(todo.pop())
        for level in call.ranks if call is not None else ():
            todo += [member for member in level if member not in found]
            found.update(level)
    return tuple(sorted(found))


def _groups(reports: Iterable[RankReport]) -> tuple[GroupUse, ...]:
    calls: dict[tuple[str, tuple[int, ...]], Counter[str]] = defaultdict(Counter)
    sent: Counter[tuple[str, tuple[int, ...]]] = Counter()
    for report in reports:
        for item in report.traffic:
            calls[item.group, item.ranks][item.operation] += item.calls
            sent[item.group, item.ranks] += item.bytes
    ordered = sorted(calls, key=lambda key: (-sent[key], key))
    return tuple(GroupUse(*key, dict(sorted(calls[key].items())), sent[key]) for key in ordered)


def _idle(tokens: Mapping[int, int]) -> tuple[int, ...]:
    if not any(tokens.values()):
        return ()
    usual = statistics.median(count for count in tokens.values() if count)
    return tuple(rank for rank, count in sorted(tokens.items()) if count < FAR_FEWER * usual)


def _departures(
    requested: RequestedPath, calls: Sequence[AttentionCall], finished: bool
) -> Iterator[str]:
    if not requested.parallel:
        if any(call.size > 1 for call in calls):
            yield "The launch asks for no context parallelism, but attention used CP groups."
        return
    if not calls:
        if finished:
            yield (
                "Transformer Engine's attention was never called: another implementation "
                "computed attention, so no context parallelism was seen."
            )
        return
    alone = [call.size == 1 for call in calls if call.phase == "train"]
    if requested.dynamic and finished and alone and all(alone):
        yield (
            "The launch asks for Dynamic CP, but every attention call of training ran on one rank."
        )
    found: Counter[tuple[str, str, str]] = Counter()
    for call in calls:
        wanted = requested.comm_type(call.layer)
        sizes = call.sizes if requested.dynamic else requested.sizes(wanted)
        other = executed(call.comm_type, call.sizes) != wanted or call.sizes != sizes
        if requested.dynamic and other and call.comm_type != NO_COMMUNICATION:
            found[call.phase, wanted, call.comm_type] += 1
        elif other and not requested.dynamic:
            found[call.phase, named(wanted, sizes), _ran(call)] += 1
    for name, where in PHASE_NAMES.items():  # training first
        for (phase, wanted, ran), number in sorted(found.items()):
            if phase == name:
                yield (
                    f"The launch asks for {wanted}, but {number} attention calls of {where} ran "
                    f"as {ran}."
                )


def _ran(call: AttentionCall) -> str:
    kind = executed(call.comm_type, call.sizes)
    text = named(call.comm_type, call.sizes)
    return text if kind == call.comm_type else f"{text}, which Transformer Engine runs as {kind}"


def _remarks(
    requested: RequestedPath,
    apart: int,
    training: Sequence[AttentionCall],
    tokens: Mapping[int, int],
    idle: Sequence[int],
) -> Iterator[str]:
    if apart:
        yield (
            f"{apart} attention call{'s' if apart > 1 else ''} of a part of the model whose own "
            "configuration sets CP 1, such as a vision encoder, ran on one rank each. They are not "
            "counted here."
        )
    sizes = {call.size for call in training}
    if requested.dynamic and len(sizes) == 1 and sizes != {1}:
        yield (
            f"Every microbatch used CP size {sizes.pop()}, so this run shows no change of sizes."
        )
    for rank in idle:
        if tokens[rank]:
            yield f"Rank {rank} computed {tokens[rank]} tokens, less than half of the median."
        else:
            yield f"Rank {rank} made no attention call in training."
