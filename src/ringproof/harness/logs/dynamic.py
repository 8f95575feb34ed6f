"""The groups among which Dynamic CP chooses: are those that should be there, and aligned?

A group of size ``n`` is named ``DYNAMIC_DP_CP_GROUP_n`` (``HYBRID_`` in older releases) and joins
``n`` neighbours of a domain, from a multiple of ``n`` on. The domain itself is one of the sizes
under a name of its own. Which size a microbatch took, a log of groups does not say; what moved
data was used at least once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ringproof.harness.logs.expectation import Expectation
from ringproof.harness.logs.facts import Facts
from ringproof.harness.logs.groups import Group, dynamic_size
from ringproof.reference.topology.census_line import format_ranks
from ringproof.reference.topology.dynamic_catalogue import DOMAIN

_RANKS_TEXT_LIMIT = 60


def dynamic_findings(facts: Facts, expectation: Expectation) -> Iterator[str]:
    """What is wrong with the groups whatever was expected, and what differs from it."""
    yield from _short(facts.groups)
    yield from _misaligned(facts.groups)
    if expectation.dynamic_sizes is not None:
        yield from _against(facts, expectation.dynamic_sizes, expectation.require_traffic)


def _short(groups: tuple[Group, ...]) -> Iterator[str]:
    """Groups with fewer ranks than their name says: the rest of a domain that has no more."""
    for group in groups:
        size = dynamic_size(group.name)
        if size is not None and group.size is not None and group.size != size:
            yield (
                f"{group.name} has {group.size} ranks ({_ranks(group)}):"
                f" a microbatch that asks for {size} runs on these"
            )


def _misaligned(groups: tuple[Group, ...]) -> Iterator[str]:
    place = {
        rank: (group.ranks[0], index)
        for group in groups
        if group.name == DOMAIN and group.ranks is not None
        for index, rank in enumerate(group.ranks)
    }
    for group in groups:
        size = dynamic_size(group.name)
        if size is not None and group.size == size and not _aligned(group, size, place):
            yield f"{group.name} joins ranks {_ranks(group)}, no aligned run of the domain"


def _aligned(group: Group, size: int, place: Mapping[int, tuple[int, int]]) -> bool:
    """Whether it is a run of neighbours from a multiple of its size on, as far as is known."""
    if group.ranks is None or not all(rank in place for rank in group.ranks):
        return True
    places = [place[rank] for rank in group.ranks]
    home, first = places[0]
    return first % size == 0 and places == [(home, first + step) for step in range(size)]


def _against(facts: Facts, wanted: tuple[int, ...], require_traffic: bool) -> Iterator[str]:
    by_size = _sizes_found(facts.groups)
    for size in wanted:
        found = by_size.get(size, ())
        if not found:
            yield f"expected dynamic groups of {size} ranks, found none"
        elif require_traffic and size > 1 and not any(group.moves_data for group in found):
            yield f"the logs show no data moved on the dynamic groups of {size} ranks"
    named = {dynamic_size(group.name) for group in facts.groups} - {None, *wanted}
    for size in sorted(size for size in named if size is not None):
        yield f"there are dynamic groups of {size} ranks, which were not expected"


def _sizes_found(groups: tuple[Group, ...]) -> Mapping[int, tuple[Group, ...]]:
    """Groups by CP size, by what their name says; the domain by how many ranks it has."""
    found: dict[int, tuple[Group, ...]] = {}
    for group in groups:
        size = group.size if group.name == DOMAIN else dynamic_size(group.name)
        if size is not None:
            found[size] = (*found.get(size, ()), group)
    return found


def _ranks(group: Group) -> str:
    text = format_ranks(group.ranks) if group.ranks else "unknown"
    return text if len(text) <= _RANKS_TEXT_LIMIT else f"{text[:_RANKS_TEXT_LIMIT]}..."
