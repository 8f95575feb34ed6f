"""Who waits in which collective, by the lines of torch's NCCL watchdog.

``[Rank 1]`` in such a line is the place in the group, and so is the rank behind the group's name.
The rank of the run is what the launcher or torch put in front of the line. A timeout often comes
without its group, which another line of the same rank and sequence number names.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

_WORK = re.compile(r"Watchdog caught collective operation timeout: *WorkNCCL\(([^)]{1,300})")
_FIELD = re.compile(r"\b(SeqNum|OpType|NumelIn|NumelOut)=(\w{1,40})")
_DETECTED = re.compile(r"detected by watchdog at work(?: sequence id)?: (\d{1,18})")
_GROUP = re.compile(r"\[PG (?:ID \d+ PG GUID )?([\w.-]+) ?(?:\(([^()\s]*)\))? ?Rank (\d{1,9})\]")
_RANK = re.compile(r"\[rank(\d{1,9})\]:|\[Rank (\d{1,9})\] ")
WHOLE_RUN = "default_pg"
_SAME_SIZES = re.compile(r"(?i)all_?reduce|_base|broadcast|^reduce$")
MOST_WAITS = 40_000
UNNUMBERED = -1  # before torch 2.0


@dataclass(frozen=True)
class Wait:
    """A collective that a rank waits in.

    Attributes:
        group: Description of the group, and ``guid`` its name; empty where the line has none.
        place: Rank inside the group.
        rank: Rank of the run, where the line says it.
        operation: Empty where the line names only the group; ``elements`` are its sizes.
    """

    group: str
    guid: str
    place: int | None
    rank: int | None
    operation: str
    sequence: int
    elements: tuple[str, str]

    @property
    def message(self) -> str:
        """Group, operation and sequence number."""
        number = "" if self.sequence == UNNUMBERED else f" {self.sequence}"
        return f"{self.group or 'unnamed group'} {self.operation}{number}"


def read_wait(text: str) -> Wait | None:
    """Return the wait that a line of the watchdog shows, or ``None``."""
    work = _WORK.search(text)
    told = dict(_FIELD.findall(work[1])) if work else {}
    detected = None if work else _DETECTED.search(text)
    if detected is None and "OpType" not in told:
        return None
    named = _GROUP.search(text)
    group = (named[2] or f"GUID {named[1]}") if named else ""
    said = _RANK.search(text)
    place = int(named[3]) if named else int(said[2]) if said and said[2] else None
    rank = int(said[1]) if said and said[1] else None
    if rank is None and (group == WHOLE_RUN or not group):
        rank = place
    guid = named[1] if named else ""
    number = detected[1] if detected else told.get("SeqNum", "")
    sequence = int(number) if number.isdecimal() else UNNUMBERED
    elements = told.get("NumelIn", ""), told.get("NumelOut", "")
    return Wait(group, guid, place, rank, told.get("OpType", ""), sequence, elements)


class Waiting(NamedTuple):
    """A rank that waits, as a launcher calls it, and the error that says so."""

    who: str
    wait: Wait


def resolved(waiting: Iterable[Waiting]) -> list[Waiting]:
    """Return the waits with their groups, each rank once for each collective.

    A timeout without a group is taken for one of the only group that waits at its number.
    """
    named: dict[tuple[str, int], Wait] = {}
    groups: dict[int, dict[tuple[str, str], Wait]] = defaultdict(dict)
    all_of = list(waiting)
    for who, wait in all_of:
        if wait.group:
            named[who, wait.sequence] = wait
            groups[wait.sequence][wait.group, wait.guid] = wait
    found: dict[tuple[str, int, str], Waiting] = {}
    for who, wait in all_of:
        if wait.operation:
            only = list(groups[wait.sequence].values()) if not wait.group else []
            group = named.get((who, wait.sequence), only[0] if len(only) == 1 else wait)
            whole = replace(wait, group=group.group, guid=group.guid)
            found.setdefault((who, wait.sequence, wait.operation), Waiting(who, whole))
    return list(found.values())


def disagreeing(waiting: Iterable[Waiting]) -> Iterator[list[Waiting]]:
    """Yield the waits of each group whose ranks are in different collectives of one number."""
    together: defaultdict[tuple[str, str, int], list[Waiting]] = defaultdict(list)
    for one in waiting:
        wait = one.wait
        if wait.sequence == UNNUMBERED:
            continue
        if wait.guid or wait.place == wait.rank:  # else it may be one of several groups
            together[wait.group, wait.guid, wait.sequence].append(one)
    for same in together.values():
        kinds = {one.wait.operation for one in same}
        sizes = {one.wait.elements for one in same if _SAME_SIZES.search(one.wait.operation)}
        if len(kinds) > 1 or (len(sizes - {("", "")}) > 1 and len(kinds) == 1):
            yield same


def absent_between(ranks: Iterable[int]) -> list[int]:
    """Return the ranks that are missing between others at a constant distance.

    >>> absent_between([8, 9, 10, 12, 13]), absent_between([0, 8, 24, 32]), absent_between([1, 9])
    ([11], [16], [])
    """
    known = sorted(set(ranks))
    if len(known) < 3:
        return []
    gaps = Counter(b - a for a, b in itertools.pairwise(known))
    step = min(gaps, key=lambda gap: (-gaps[gap], gap))
    if (known[-1] - known[0]) // step > 2 * len(known):
        return []
    present = set(known)
    missing = [rank for rank in range(known[0], known[-1], step) if rank not in present]
    regular = all((rank - known[0]) % step == 0 for rank in known)
    return missing if regular and len(missing) <= len(known) // 2 else []
