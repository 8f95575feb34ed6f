"""The two log lines of a run about its process groups and their traffic.

One census line per group and rank, printed when the groups exist::

    [ringproof census] rank=0/8 group=CONTEXT_PARALLEL_GROUP backend=gloo ranks=0-3 place=0/4

One traffic line per group and rank, printed at the end of a run::

    [ringproof traffic] rank=0/8 group=CONTEXT_PARALLEL_GROUP operations=send:6,recv:6 bytes=4096

Anything may stand before the marker (a launcher's prefix, a time). After the last field the line
ends, or another bracketed prefix begins (two ranks that wrote to one pipe at once). Pure strings:
this module needs neither torch nor a process group, so that printing and reading share one text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

CENSUS_MARKER = "[ringproof census] "
TRAFFIC_MARKER = "[ringproof traffic] "
OPERATION_KINDS = (
    "all_to_all",
    "all_gather",
    "reduce_scatter",
    "send",
    "recv",
    "all_reduce",
    "broadcast",
)
MAX_RANKS = 1 << 20  # more members than any known world: a longer list is damage, not a group

# A quote before the marker or text after the last field means that somebody talks about the line.
_UNQUOTED = r"(?<![\"'`])"
_END = r"(?=\s*(?:\[|$))"
_NUMBER = r"[0-9]{1,18}"
_HEAD = rf"rank=({_NUMBER})/({_NUMBER}) group=(\S+) "
_CENSUS = re.compile(
    _UNQUOTED
    + re.escape(CENSUS_MARKER)
    + _HEAD
    + rf"backend=(\S+) ranks=([0-9,:-]+) place=({_NUMBER}|-)/({_NUMBER})"
    + _END
)
_TRAFFIC = re.compile(
    _UNQUOTED
    + re.escape(TRAFFIC_MARKER)
    + _HEAD
    + rf"operations=([a-z_]+:{_NUMBER}(?:,[a-z_]+:{_NUMBER})*|-) bytes=({_NUMBER})"
    + _END
)
_RANK_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9}))?)?")


def format_ranks(ranks: Iterable[int]) -> str:
    """Ranks in their order as a short text: ranges ``a-b``, strided ranges ``a-b:s``, single ranks.

    >>> format_ranks([0, 1, 2, 3])
    '0-3'
    >>> format_ranks([0, 2, 4, 6, 9])
    '0-6:2,9'
    >>> format_ranks([0, 4])
    '0,4'
    >>> format_ranks([3, 1])
    '3,1'
    """
    members = tuple(ranks)
    parts: list[str] = []
    start = 0
    while start < len(members):
        stride = members[start + 1] - members[start] if start + 1 < len(members) else 0
        end = start
        while stride > 0 and members[end + 1 : end + 2] == (members[end] + stride,):
            end += 1
        if end == start or (end == start + 1 and stride != 1):
            parts.append(str(members[start]))
            start += 1
            continue
        suffix = "" if stride == 1 else f":{stride}"
        parts.append(f"{members[start]}-{members[end]}{suffix}")
        start = end + 1
    return ",".join(parts)


def parse_ranks(text: str) -> tuple[int, ...]:
    """The ranks that :func:`format_ranks` wrote, in their order.

    >>> parse_ranks("0-6:2,9")
    (0, 2, 4, 6, 9)

    Raises:
        ValueError: malformed, a range that runs backwards, a rank named twice, or too many ranks.
    """
    ranks: list[int] = []
    for part in text.split(","):
        match = _RANK_RANGE.fullmatch(part)
        if match is None:
            raise ValueError(f"not a rank or a range of ranks: {part[:40]!r}")
        first = int(match[1])
        last = first if match[2] is None else int(match[2])
        stride = 1 if match[3] is None else int(match[3])
        if last < first or stride < 1 or (last - first) % stride:
            raise ValueError(f"a range of ranks that its stride does not reach: {part[:40]!r}")
        if len(ranks) + (last - first) // stride >= MAX_RANKS:
            raise ValueError(f"more than {MAX_RANKS} ranks")
        ranks.extend(range(first, last + 1, stride))
    if len(set(ranks)) != len(ranks):
        raise ValueError(f"a rank is named twice: {text[:80]!r}")
    return tuple(ranks)


def field_word(name: str) -> str:
    """A group or backend name as one word: blanks become ``_``, nothing becomes ``undefined``."""
    return "_".join(name.split()) or "undefined"


@dataclass(frozen=True)
class CensusLine:
    """One group as one rank sees it.

    Attributes:
        rank: The rank that prints, and ``world_size`` the number of ranks of the run.
        group: The group's description (``group_desc``), one word.
        backend: ``gloo``, ``nccl``, ``cpu:gloo,cuda:nccl``, ...
        ranks: The group's global ranks in group order.
        place: Index of ``rank`` in ``ranks``; ``None`` where it is no member.
    """

    rank: int
    world_size: int
    group: str
    backend: str
    ranks: tuple[int, ...]
    place: int | None

    def format(self) -> str:
        """The line, without a newline."""
        place = "-" if self.place is None else str(self.place)
        return (
            f"{CENSUS_MARKER}rank={self.rank}/{self.world_size} group={field_word(self.group)}"
            f" backend={field_word(self.backend)} ranks={format_ranks(self.ranks)}"
            f" place={place}/{len(self.ranks)}"
        )

    @classmethod
    def parse(
        cls, text: str, *, expand: Callable[[str], tuple[int, ...]] = parse_ranks
    ) -> CensusLine | None:
        """The first census line in ``text``, or ``None`` where it holds no sound one.

        Sound means: every field there, ranks inside the world, and a place that agrees with them.
        ``expand`` reads the rank list; a caller with many equal lists passes one that remembers.
        """
        match = _CENSUS.search(text)
        if match is None:
            return None
        try:
            ranks = expand(match[5])
        except ValueError:
            return None
        rank, world = int(match[1]), int(match[2])
        place = None if match[6] == "-" else int(match[6])
        in_its_place = rank not in ranks if place is None else ranks[place : place + 1] == (rank,)
        inside = rank < world and max(ranks) < world
        if not (inside and in_its_place and len(ranks) == int(match[7])):
            return None
        return cls(rank, world, match[3], match[4], ranks, place)


@dataclass(frozen=True)
class TrafficLine:
    """What one rank really sent on one group.

    Attributes:
        rank: The rank that prints, and ``world_size`` the number of ranks of the run.
        group: The group's description, one word.
        operations: Pairs of a kind out of :data:`OPERATION_KINDS` and how often it was issued.
        bytes_sent: Bytes that this rank sent on the group.
    """

    rank: int
    world_size: int
    group: str
    operations: tuple[tuple[str, int], ...]
    bytes_sent: int

    def format(self) -> str:
        """The line, without a newline."""
        operations = ",".join(f"{kind}:{count}" for kind, count in self.operations) or "-"
        return (
            f"{TRAFFIC_MARKER}rank={self.rank}/{self.world_size} group={field_word(self.group)}"
            f" operations={operations} bytes={self.bytes_sent}"
        )

    @classmethod
    def parse(cls, text: str) -> TrafficLine | None:
        """The first traffic line in ``text``, or ``None`` where it holds no sound one."""
        match = _TRAFFIC.search(text)
        if match is None or int(match[1]) >= int(match[2]):
            return None
        pairs = () if match[4] == "-" else tuple(part.split(":") for part in match[4].split(","))
        operations = tuple((kind, int(count)) for kind, count in pairs)
        kinds = [kind for kind, _ in operations]
        if len(set(kinds)) != len(kinds) or not set(kinds) <= set(OPERATION_KINDS):
            return None
        return cls(int(match[1]), int(match[2]), match[3], operations, int(match[5]))
