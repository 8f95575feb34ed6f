"""What is wrong with a run, differs from what was expected, or should be known beside the verdict.

Dynamic CP: a group of size ``n`` is named ``DYNAMIC_DP_CP_GROUP_n`` (``HYBRID_`` in older releases)
and joins ``n`` neighbours of a domain, from a multiple of ``n`` on. The domain itself is one of the
sizes under a name of its own. A log of groups does not say which size a microbatch took; a group
that moved data was used at least once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from ringproof.errors import InputError
from ringproof.harness.logs.configuration import engine_text
from ringproof.harness.logs.facts import (
    FLAT_GROUP,
    Facts,
    Group,
    dynamic_size,
    is_dynamic,
    level_name,
    level_of,
)
from ringproof.harness.logs.verdict import (
    HIERARCHICAL_TYPE,
    Decision,
    Proof,
    Verdict,
    levels,
    name_facts,
)
from ringproof.reference.topology.census_line import format_ranks
from ringproof.reference.topology.dynamic_catalogue import DOMAIN


@dataclass(frozen=True)
class Expectation:
    """The expected verdict, level sizes (inner first), and whether creation is too weak a proof.

    Attributes:
        dynamic_sizes: CP sizes among which Dynamic CP chooses, ascending.
    """

    verdict: Verdict | None = None
    level_sizes: tuple[int, ...] | None = None
    require_traffic: bool = False
    dynamic_sizes: tuple[int, ...] | None = None

    @property
    def given(self) -> bool:
        """Whether there is anything to compare with."""
        return self.verdict is not None or self.dynamic_sizes is not None or self.require_traffic

    @property
    def needs_use(self) -> bool:
        """Whether some context-parallel group, other than those of Dynamic CP, has to be in use."""
        if self.verdict is None and self.dynamic_sizes is not None:
            return False
        return self.require_traffic and self.verdict is not Verdict.NONE


def parse_expectation(
    expect: str | None,
    hcp: str | None,
    require_traffic: bool = False,
    dynamic: str | None = None,
) -> Expectation:
    """From the words of the command line. Level sizes alone expect ``hierarchical``.

    Raises:
        InputError: an unknown verdict, sizes that are no list of whole numbers or no hierarchy,
            sizes together with an expectation other than ``hierarchical``, dynamic sizes that are
            no ascending list.
    """
    words = tuple(verdict.value for verdict in Verdict if verdict is not Verdict.UNKNOWN)
    if expect is not None and expect not in words:
        raise InputError("--expect", expect, "no such verdict", f"give one of {', '.join(words)}")
    sizes = None if hcp is None else _sizes(hcp)
    if sizes is not None and expect not in (None, Verdict.HIERARCHICAL.value):
        raise InputError(
            "--hcp", hcp, f"level sizes do not go with --expect {expect}", "leave one of them out"
        )
    if expect is None and sizes is not None:
        expect = Verdict.HIERARCHICAL.value
    verdict = None if expect is None else Verdict(expect)
    dynamic_sizes = None if dynamic is None else _dynamic_sizes(dynamic)
    return Expectation(verdict, sizes, require_traffic, dynamic_sizes)


def _dynamic_sizes(text: str) -> tuple[int, ...]:
    sizes = _whole_numbers("--dynamic", text)
    if sizes != tuple(sorted(set(sizes))) or sizes[0] < 1:
        raise InputError("--dynamic", text, "not ascending CP sizes from 1 on", "write it as 1,2,4")
    return sizes


def _whole_numbers(option: str, text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) <= 9 for part in parts):
        raise InputError(option, text, "not a list of whole numbers", "write it as 2,4")
    return tuple(int(part) for part in parts)


def _sizes(text: str) -> tuple[int, ...]:
    sizes = _whole_numbers("--hcp", text)
    if sum(size > 1 for size in sizes) < 2 or 0 in sizes:
        raise InputError(
            "--hcp",
            text,
            "not a hierarchy: it needs two levels of more than one rank",
            "give both sizes, inner (a2a) first, such as 2,4",
        )
    return sizes


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


HOW_TO_SEE_GROUPS = (
    "print the census (ringproof.reference.topology.census.print_census) once the groups exist,"
    " or set TORCH_CPP_LOG_LEVEL=INFO in a run on NCCL"
)


def cautions(facts: Facts, decision: Decision) -> tuple[str, ...]:
    """Every warning, the verdict's own first."""
    return (
        *decision.warnings,
        *_about_logs(facts, decision),
        *_about_configuration(facts, decision),
    )


def _about_logs(facts: Facts, decision: Decision) -> list[str]:
    found = []
    if decision.verdict is Verdict.UNKNOWN:
        found.append(f"the logs do not show which process groups there were; {HOW_TO_SEE_GROUPS}")
    if decision.proof is Proof.CREATION and decision.active:
        found.append("the logs show that the groups were created, not that anything used them")
    if facts.unnamed_groups and decision.verdict in (Verdict.NONE, Verdict.UNKNOWN):
        found.append(
            f"{facts.unnamed_groups} NCCL groups have no description in the logs: PyTorch prints it"
            f" once a communicator is built, and not before release 2.4"
        )
    if facts.damaged:
        found.append(
            f"{facts.damaged} ringproof markers are followed by no sound line (cut or quoted)"
        )
    if facts.overflow:
        found.append("more groups or ranks than this reader keeps; the lists are incomplete")
    if len(facts.worlds) > 1:
        sizes = ", ".join(map(str, facts.worlds))
        found.append(f"the logs name several world sizes ({sizes}): more than one run?")
    dynamic = sorted({group.name for group in facts.groups if is_dynamic(group.name)})
    if dynamic:
        found.append(
            f"dynamic CP groups are there ({dynamic[0]}, ...); the verdict leaves them out,"
            f" --dynamic SIZES checks them"
        )
    return found


def _about_configuration(facts: Facts, decision: Decision) -> list[str]:
    """Where Megatron-LM's start-up lines say one thing and the groups another."""
    told = facts.configuration
    sizes = told.hierarchical_sizes or ()
    found = []
    hierarchical = decision.verdict is Verdict.HIERARCHICAL
    but = f"but the verdict is {decision.verdict.value}"
    if sum(size > 1 for size in sizes) >= 2 and not hierarchical:
        found.append(f"configured hierarchical sizes {list(sizes)}, {but}")
    if told.comm_types and HIERARCHICAL_TYPE in told.comm_types and not hierarchical:
        found.append(f"configured cp_comm_type {HIERARCHICAL_TYPE}, {but}")
    if sizes and decision.level_sizes and sizes != decision.level_sizes:
        shown = ["?" if size is None else size for size in decision.level_sizes]
        found.append(f"configured hierarchical sizes {list(sizes)}, but the groups show {shown}")
    if told.context_parallel_size is not None:
        found += _about_size(facts, decision, told.context_parallel_size)
    return found


def _about_size(facts: Facts, decision: Decision, configured: int) -> list[str]:
    flat = name_facts(facts.groups, FLAT_GROUP)
    seen = flat.size if flat is not None else None
    known = [size for size in decision.level_sizes if size is not None]
    if seen is None and known and len(known) == len(decision.level_sizes):
        seen = prod(known)
    if seen is not None and seen != configured:
        return [f"configured context-parallel size {configured}, but the groups show {seen}"]
    if configured > 1 and decision.verdict is Verdict.NONE:
        return [f"configured context-parallel size {configured}, but no CP group was in use"]
    return []


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
    return _ranks_text(group.ranks) if group.ranks else "unknown"
