"""Findings: what is wrong with a run whatever its verdict, or differs from the expectation."""

from __future__ import annotations

from collections.abc import Mapping, Set
from itertools import pairwise
from math import prod

from ringproof.harness.logs.configuration import engine_text
from ringproof.harness.logs.dynamic import dynamic_findings
from ringproof.harness.logs.expectation import Expectation
from ringproof.harness.logs.facts import Facts
from ringproof.harness.logs.groups import FLAT_GROUP, Group, level_name, level_of
from ringproof.harness.logs.verdict import Decision, Proof, Verdict, levels, name_facts
from ringproof.reference.topology.census_line import format_ranks

_RANKS_TEXT_LIMIT = 60


def findings(facts: Facts, decision: Decision, expectation: Expectation) -> tuple[str, ...]:
    """Everything that speaks against the run, one sentence each."""
    return (
        *_against_expectation(decision, expectation),
        *_mixed_attention(facts, expectation),
        *facts.contradictions,
        *_uneven_sizes(facts),
        *_product(facts),
        *_misplaced(facts.groups),
        *_swapped_roles(facts, decision),
        *_uneven_ranks(facts, decision),
        *dynamic_findings(facts, expectation),
    )


def _against_expectation(decision: Decision, expectation: Expectation) -> list[str]:
    found: list[str] = []
    wanted, sizes = expectation.verdict, expectation.level_sizes
    if wanted is not None and decision.verdict is not wanted:
        found.append(f"expected {wanted.value}, found {decision.verdict.value}")
    if sizes is not None and decision.level_sizes != sizes:
        shown = ",".join("?" if size is None else str(size) for size in decision.level_sizes)
        text = ",".join(map(str, sizes))
        found.append(f"expected level sizes {text} (inner first), found {shown or 'none'}")
    if expectation.needs_use and decision.proof is Proof.CREATION:
        found.append("the logs show that the groups were created and not that anything used them")
    elif expectation.needs_use and decision.verdict in (Verdict.NONE, Verdict.UNKNOWN):
        found.append("the logs do not show that any context-parallel group was used")
    return found


def _mixed_attention(facts: Facts, expectation: Expectation) -> list[str]:
    """Attention without CP beside attention with it; Dynamic CP may choose groups of one rank."""
    if 1 in (expectation.dynamic_sizes or ()):
        return []
    if len({line.context_parallel for line, _ in facts.engine}) < 2:
        return []
    counts = engine_text(facts.engine)
    return [f"Transformer Engine ran attention both with and without context parallelism: {counts}"]


def _uneven_sizes(facts: Facts) -> list[str]:
    named = (*levels(facts.groups), name_facts(facts.groups, FLAT_GROUP))
    return [
        f"{fact.name} has groups of different sizes: {', '.join(map(str, sorted(set(fact.sizes))))}"
        for fact in named
        if fact is not None and len(set(fact.sizes)) > 1
    ]


def _product(facts: Facts) -> list[str]:
    flat = name_facts(facts.groups, FLAT_GROUP)
    sizes = [level.size for level in levels(facts.groups)]
    if flat is None or flat.size is None or len(sizes) < 2 or None in sizes:
        return []
    product = prod(size for size in sizes if size is not None)
    if product == flat.size:
        return []
    text = " x ".join(map(str, sizes))
    return [f"the level sizes {text} make {product}, the CP group has {flat.size} ranks"]


def _misplaced(groups: tuple[Group, ...]) -> list[str]:
    """A level joins ranks whose places in the flat CP group are the inner sizes' product apart.

    The first size is the inner one, so level 0 joins neighbours. Anything else means that the
    levels were built in another order, which shows even where all sizes are equal.
    """
    place = {
        rank: (group.ranks[0], index)
        for group in groups
        if group.name == FLAT_GROUP and group.ranks is not None
        for index, rank in enumerate(group.ranks)
    }
    stride, found = 1, []
    for index, level in enumerate(levels(groups)):
        if level.name != level_name(index) or level.size is None:
            break
        wrong = [
            group for group in groups if group.name == level.name and _apart(group, place, stride)
        ]
        if wrong and wrong[0].ranks is not None:
            found.append(
                f"{level.name} joins ranks {_ranks_text(wrong[0].ranks)}, which are not {stride}"
                f" apart in the CP group: the levels are not in the order inner, outer"
            )
        stride *= level.size
    return found


def _apart(group: Group, place: Mapping[int, tuple[int, int]], stride: int) -> bool:
    """Whether the group's ranks are in one CP group and yet not ``stride`` places apart."""
    if group.ranks is None or not all(rank in place for rank in group.ranks):
        return False
    places = [place[rank] for rank in group.ranks]
    if len({home for home, _ in places}) > 1:
        return True
    steps = {after[1] - before[1] for before, after in pairwise(places)}
    return bool(steps - {stride})


def _swapped_roles(facts: Facts, decision: Decision) -> list[str]:
    """In a2a+p2p the inner level exchanges heads (all-to-all), the outer one is a ring."""
    if decision.proof is not Proof.TRAFFIC or decision.verdict is not Verdict.HIERARCHICAL:
        return []
    found = []
    inner, outer = level_name(0), level_name(1)
    if not _sum(facts.groups, inner, "all_to_all"):
        found.append(f"{inner} carried no all_to_all, which is its part in a2a+p2p")
    if not _sum(facts.groups, outer, "send"):
        found.append(f"{outer} carried no send, which is its part in a2a+p2p")
    return found


def _sum(groups: tuple[Group, ...], name: str, kind: str) -> int:
    return sum(group.count(kind) for group in groups if group.name == name)


def _uneven_ranks(facts: Facts, decision: Decision) -> list[str]:
    """Ranks whose own lines do not show what the verdict rests on."""
    if decision.verdict not in (Verdict.HIERARCHICAL, Verdict.FLAT):
        return []
    wanted = frozenset(decision.active)
    found = []
    if decision.proof is Proof.TRAFFIC:
        found += _missing(wanted, facts.traffic_names, "moved no data on {}, other ranks did")
    if decision.proof is Proof.COMMUNICATORS:
        found += _missing(
            wanted, facts.communicator_names, "built no communicator of {}, other ranks did"
        )
    # A line cut short leaves a hole that says nothing about the run.
    if not facts.damaged:
        members = {rank: frozenset(sizes) for rank, sizes in facts.census_sizes.items()}
        found += _missing(_census_names(facts, wanted), members, "are in no {}, other ranks are")
    return found


def _census_names(facts: Facts, wanted: Set[str]) -> frozenset[str]:
    """The wanted names that the census shows at all: other sources are not held against it."""
    shown = {name for sizes in facts.census_sizes.values() for name in sizes}
    return frozenset(wanted & shown)


def _missing(wanted: Set[str], seen: Mapping[int, Set[str]], what: str) -> list[str]:
    found = []
    for name in sorted(wanted, key=lambda name: (level_of(name) is None, name)):
        without = sorted(rank for rank, names in seen.items() if name not in names)
        if without and len(without) < len(seen):
            found.append(f"ranks {_ranks_text(tuple(without))} {what.format(name)}")
    return found


def _ranks_text(ranks: tuple[int, ...]) -> str:
    text = format_ranks(ranks)
    return text if len(text) <= _RANKS_TEXT_LIMIT else f"{text[:_RANKS_TEXT_LIMIT]}..."
