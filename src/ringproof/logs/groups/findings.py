"""What speaks against a run: differences from what was expected, and groups that cannot be right.

Dynamic CP: a group of size ``n`` is named ``DYNAMIC_DP_CP_GROUP_n`` (``HYBRID_`` in older releases)
and joins ``n`` neighbours of a domain, from a multiple of ``n`` on. The domain itself is one of the
sizes under a name of its own. A log of groups does not say which size a microbatch took; a group
that moved data was used at least once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import pairwise
from math import prod
from typing import NamedTuple

from ringproof.logs.groups.decision import Basis, Decision, ParallelKind
from ringproof.logs.groups.expectation import Expectation
from ringproof.logs.groups.observed import LogFacts, LoggedGroup, dynamic_size, level_name, level_of
from ringproof.logs.parsing import engine_text
from ringproof.reference.topology.census_line import format_ranks
from ringproof.reference.topology.dynamic_catalogue import DOMAIN

_RANKS_TEXT_LIMIT = 60


class RunFinding(NamedTuple):
    """Something that speaks against a run: its kind, and a sentence."""

    code: str
    text: str


def findings(
    facts: LogFacts, decision: Decision, expectation: Expectation
) -> tuple[RunFinding, ...]:
    """Return everything that speaks against the run."""
    found = {
        "unexpected": _against_expectation(decision, expectation),
        "unused": _unused(decision, expectation),
        "mixed-attention": _mixed_attention(facts, expectation),
        "contradiction": facts.contradictions,
        "level-sizes": _sizes_that_disagree(facts),
        "level-order": _misplaced(facts),
        "swapped-roles": _swapped_roles(facts, decision),
        "uneven-ranks": _uneven_ranks(facts, decision),
        "dynamic-group": _malformed_dynamic(facts),
        "dynamic-sizes": _dynamic_sizes(facts.groups, expectation),
    }
    return tuple(RunFinding(code, text) for code, texts in found.items() for text in texts)


def _against_expectation(decision: Decision, expectation: Expectation) -> Iterator[str]:
    wanted, sizes = expectation.verdict, expectation.level_sizes
    if wanted is not None and decision.verdict is not wanted:
        yield f"expected {wanted.value}, found {decision.verdict.value}"
    if sizes is not None and decision.level_sizes != sizes:
        shown = ",".join("?" if size is None else str(size) for size in decision.level_sizes)
        text = ",".join(map(str, sizes))
        yield f"expected level sizes {text} (inner first), found {shown or 'none'}"


def _unused(decision: Decision, expectation: Expectation) -> Iterator[str]:
    """Groups that have to be in use, and of which the logs do not show it."""
    if expectation.needs_use and decision.proof is Basis.CREATION:
        yield "the logs show that the groups were created and not that anything used them"
    elif expectation.needs_use and decision.verdict in (ParallelKind.NONE, ParallelKind.UNKNOWN):
        yield "the logs do not show that any context-parallel group was used"


def _mixed_attention(facts: LogFacts, expectation: Expectation) -> Iterator[str]:
    """Attention without CP beside attention with it; Dynamic CP may choose groups of one rank."""
    mixed = len({line.context_parallel for line, _ in facts.engine}) == 2
    if mixed and 1 not in (expectation.dynamic_sizes or ()):
        what = "ran attention both with and without context parallelism"
        yield f"Transformer Engine {what}: {engine_text(facts.engine)}"


def _sizes_that_disagree(facts: LogFacts) -> Iterator[str]:
    """Groups of one name and different sizes; levels whose product is not the CP group's size."""
    for named in (*facts.levels, facts.flat):
        sizes = sorted(set(named.sizes))
        if len(sizes) > 1:
            yield f"{named.name} has groups of different sizes: {', '.join(map(str, sizes))}"
    known = [level.size for level in facts.levels if level.size is not None]
    if facts.flat.size is not None and len(known) == len(facts.levels) >= 2:
        product = prod(known)
        if product != facts.flat.size:
            text = " x ".join(map(str, known))
            yield f"the level sizes {text} make {product}, the CP group has {facts.flat.size} ranks"


def _places(groups: Sequence[LoggedGroup]) -> dict[int, tuple[int, int]]:
    """Return the place of each rank in its group: the group's first rank, and the index."""
    return {
        rank: (group.ranks[0], index)
        for group in groups
        if group.ranks is not None
        for index, rank in enumerate(group.ranks)
    }


def _misplaced(facts: LogFacts) -> Iterator[str]:
    """A level joins ranks whose places in the flat CP group are the inner sizes' product apart.

    The first size is the inner one, so level 0 joins neighbours. Anything else means that the
    levels were built in another order, which shows even where all sizes are equal.
    """
    place, stride = _places(facts.flat.groups), 1
    for index, level in enumerate(facts.levels):
        if level.name != level_name(index) or level.size is None:
            return
        members = (group.ranks for group in level.groups)
        wrong = next((ranks for ranks in members if ranks and _apart(ranks, place, stride)), None)
        if wrong is not None:
            yield (
                f"{level.name} joins ranks {_ranks_text(wrong)}, which are not {stride}"
                f" apart in the CP group: the levels are not in the order inner, outer"
            )
        stride *= level.size


def _apart(ranks: Sequence[int], place: Mapping[int, tuple[int, int]], stride: int) -> bool:
    """Whether the ranks are all in known CP groups and yet not ``stride`` places apart in one."""
    if not all(rank in place for rank in ranks):
        return False
    places = [place[rank] for rank in ranks]
    steps = {after[1] - before[1] for before, after in pairwise(places)}
    return len({home for home, _ in places}) > 1 or bool(steps - {stride})


def _swapped_roles(facts: LogFacts, decision: Decision) -> Iterator[str]:
    """In a2a+p2p the inner level exchanges heads (all-to-all), the outer one is a ring."""
    if decision.proof is Basis.TRAFFIC and decision.verdict is ParallelKind.HIERARCHICAL:
        for level, kind in zip(facts.levels, ("all_to_all", "send"), strict=False):
            if not any(group.operations[kind] for group in level.groups):
                yield f"{level.name} carried no {kind}, which is its part in a2a+p2p"


def _uneven_ranks(facts: LogFacts, decision: Decision) -> Iterator[str]:
    """Ranks whose own lines do not show what the verdict rests on."""
    if decision.verdict not in (ParallelKind.HIERARCHICAL, ParallelKind.FLAT):
        return
    wanted = frozenset(decision.active)
    if decision.proof is Basis.TRAFFIC:
        yield from _missing(wanted, facts.traffic_names, "moved no data on {}, other ranks did")
    if decision.proof is Basis.COMMUNICATORS:
        what = "built no communicator of {}, other ranks did"
        yield from _missing(wanted, facts.communicator_names, what)
    # A line cut short leaves a hole that says nothing about the run.
    if not facts.damaged:
        # The names that the census shows at all: other sources do not count against it.
        shown = {name for names in facts.census_names.values() for name in names}
        yield from _missing(wanted & shown, facts.census_names, "are in no {}, other ranks are")


def _missing(wanted: Set[str], seen: Mapping[int, Set[str]], what: str) -> Iterator[str]:
    for name in sorted(wanted, key=lambda name: (level_of(name) is None, name)):
        without = sorted(rank for rank, names in seen.items() if name not in names)
        if without and len(without) < len(seen):
            yield f"ranks {_ranks_text(without)} {what.format(name)}"


def _ranks_text(ranks: Sequence[int] | None) -> str:
    text = format_ranks(ranks) if ranks else "unknown"
    return text if len(text) <= _RANKS_TEXT_LIMIT else f"{text[:_RANKS_TEXT_LIMIT]}..."


def _malformed_dynamic(facts: LogFacts) -> Iterator[str]:
    """Groups of Dynamic CP whose ranks are not those that their name and place promise."""
    place = _places(facts.named(DOMAIN).groups)
    for group in facts.groups:
        size = dynamic_size(group.name)
        if size is None:
            continue
        if group.size not in (None, size):
            yield (
                f"{group.name} has {group.size} ranks ({_ranks_text(group.ranks)}):"
                f" a microbatch that asks for {size} runs on these"
            )
        elif group.ranks and (
            _apart(group.ranks, place, 1) or place.get(group.ranks[0], (0, 0))[1] % size
        ):
            ranks = _ranks_text(group.ranks)
            yield f"{group.name} joins ranks {ranks}, which are not an aligned run of the domain"


def _dynamic_sizes(groups: Sequence[LoggedGroup], expectation: Expectation) -> Iterator[str]:
    """What differs from the expected sizes, of which the whole domain is one."""
    wanted = expectation.dynamic_sizes
    if wanted is None:
        return
    by_size: dict[int, list[LoggedGroup]] = {}
    named = set()
    for group in groups:
        size = group.size if group.name == DOMAIN else dynamic_size(group.name)
        if size:
            by_size.setdefault(size, []).append(group)
            named |= {size} if group.name != DOMAIN else set()
    for asked in wanted:
        found = by_size.get(asked, [])
        if not found:
            yield f"expected dynamic groups of {asked} ranks, found none"
        elif expectation.require_traffic and asked > 1 and not any(g.moves_data for g in found):
            yield f"the logs show no data moved on the dynamic groups of {asked} ranks"
    for size in sorted(named.difference(wanted)):
        yield f"there are dynamic groups of {size} ranks, which were not expected"
