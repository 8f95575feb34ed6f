"""Which group of ranks a hang began in, by the timeouts of all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ringproof.logs.diagnosis.errors import RankError
from ringproof.logs.diagnosis.shared import SharedError
from ringproof.logs.diagnosis.symptoms import Index
from ringproof.logs.diagnosis.waits import WHOLE_RUN, Waiting, absent_between, disagreeing, resolved

DISAGREEMENT = "collectives differ"
_LARGEST_WORLD = 1 << 20


def hang_findings(
    events: Sequence[RankError], index: Index, world: int, busy: str
) -> list[SharedError]:
    """Return the timeouts by group, the group where the hang began first.

    A rank that is absent from a small group holds up the larger groups, too. So ranks that are in
    different collectives of one number come first, then the group with the fewest ranks.

    Args:
        world: Number of ranks of the run, 0 where the logs do not say it.
        busy: What a rank was still busy with, by the logs.
    """
    first: dict[str, RankError] = {}
    for event in events:
        if event.wait is not None and event.wait.operation:
            first.setdefault(event.who, event)
    waiting = resolved(Waiting(one.who, one.wait) for one in events if one.wait is not None)
    groups: dict[tuple[str, str], SharedError] = {}
    for who, wait in waiting:
        symptoms = index.candidates("collective timeout", f"{wait.message} {busy}".rstrip())
        key = wait.group, "" if wait.group == WHOLE_RUN else wait.guid
        one = groups.setdefault(key, SharedError(None, candidates=symptoms, group=wait.group))
        one.add(replace(first[who], who=who, message=wait.message))
    missing = _missing(waiting, world)
    for one in groups.values():
        one.absent = tuple(_absent(one, missing, {who for who, _ in waiting}))
    found = sorted(_joined(groups.values()), key=_order)
    if found and not found[0].absent:
        found[0].absent = missing
    return [*_disagreements(waiting, first, index), *found]


def _order(one: SharedError) -> tuple[bool, int, int]:
    """Sort small groups of neighbours that lack a rank first."""
    ranks = sorted(int(who[5:]) for who in one.who if who.startswith("rank "))
    return not one.absent, len(one.who), ranks[-1] - ranks[0] if ranks else 0


def _joined(found: Iterable[SharedError]) -> Iterator[SharedError]:
    """Join groups of one description whose ranks all wait, such as all tensor-parallel groups."""
    whole: dict[str, SharedError] = {}
    for one in found:
        known = whole.get(one.group)
        if one.absent or known is None:
            yield one
            if not one.absent:
                whole[one.group] = one
            continue
        known.who |= one.who
        known.count += one.count
        known.evidence += one.evidence[: 3 - len(known.evidence)]
        for message, who in one.waits.items():
            known.waits.setdefault(message, set()).update(who)


def _missing(waiting: Iterable[Waiting], world: int) -> tuple[int, ...]:
    """Return the ranks of the run without a timeout, where most have one."""
    named = {who for who, _ in waiting}
    if not all(who.startswith("rank ") for who in named) or world > _LARGEST_WORLD:
        return ()
    missing = tuple(rank for rank in range(world) if f"rank {rank}" not in named)
    return missing if len(missing) <= world // 2 else ()


def _absent(one: SharedError, missing: Sequence[int], named: set[str]) -> Iterator[int]:
    """Return the ranks that a group seems to wait for."""
    if one.group == WHOLE_RUN and missing:
        yield from missing
        return
    ranks = [int(who[5:]) for who in one.who if who.startswith("rank ")]
    if len(ranks) == len(one.who):
        yield from (rank for rank in absent_between(ranks) if f"rank {rank}" not in named)


def _disagreements(
    waiting: Iterable[Waiting], first: dict[str, RankError], index: Index
) -> Iterator[SharedError]:
    for same in disagreeing(waiting):
        group = same[0].wait.group
        found = SharedError(None, candidates=index.candidates(DISAGREEMENT, group), group=group)
        for who, wait in same:
            sizes = f" of {' and '.join(wait.elements)} elements" if wait.elements[0] else ""
            found.add(replace(first[who], who=who, message=f"{wait.message}{sizes}"))
        yield found
