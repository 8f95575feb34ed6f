"""Which context parallelism was active, and what speaks against the run: the rules.

The strongest kind of evidence in the logs decides, and weaker evidence does not overrule it:

1. Traffic lines: a level or the flat group counts where tensors were sent on it.
2. Transformer Engine's own configuration lines, then NCCL communicators built at first use.
3. Groups that were created. This shows that they exist and not that anything used them.

Hierarchical needs at least two levels of more than one rank; Transformer Engine runs a level of
one rank as plain p2p or a2a, so such a layout is flat. "None" means that groups were seen and no
context-parallel group of more than one rank was in use; "unknown" that the logs do not say.

Dynamic CP: a group of size ``n`` is named ``DYNAMIC_DP_CP_GROUP_n`` (``HYBRID_`` in older releases)
and joins ``n`` neighbours of a domain, from a multiple of ``n`` on. The domain itself is one of the
sizes under a name of its own. A log of groups does not say which size a microbatch took; a group
that moved data was used at least once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise
from math import prod

from ringproof.errors import InputError, check_name, shown
from ringproof.logs.facts import (
    FLAT_GROUP,
    LogFacts,
    LoggedGroup,
    NamedGroups,
    Strength,
    dynamic_size,
    level_name,
    level_of,
)
from ringproof.logs.finding import RunFinding
from ringproof.logs.parsing import engine_text
from ringproof.reference.topology.census_line import format_ranks
from ringproof.reference.topology.dynamic_catalogue import DOMAIN

HIERARCHICAL_TYPE = "a2a+p2p"
_RANKS_TEXT_LIMIT = 60
HOW_TO_SEE_GROUPS = (
    "print the census (ringproof.reference.topology.census.print_census) once the groups exist,"
    " or set TORCH_CPP_LOG_LEVEL=INFO in a run on NCCL"
)


class ParallelKind(Enum):
    """Context parallelism that was active."""

    HIERARCHICAL = "hierarchical"
    FLAT = "flat"
    NONE = "none"
    UNKNOWN = "unknown"


class Basis(Enum):
    """The kind of evidence that decided."""

    TRAFFIC = "traffic"
    COMMUNICATORS = "communicators"
    CREATION = "groups-created"
    NONE = "none"


@dataclass(frozen=True)
class Decision:
    """The verdict, what it rests on, and the names whose groups were in use."""

    verdict: ParallelKind
    proof: Basis
    level_sizes: tuple[int | None, ...]
    active: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def decide(facts: LogFacts) -> Decision:
    """Apply the rules."""
    if facts.traffic_names:
        return _by_groups(facts, Basis.TRAFFIC)
    if facts.engine:
        return _by_engine(facts)
    if not facts.groups:
        return Decision(ParallelKind.UNKNOWN, Basis.NONE, ())
    built = _by_groups(facts, Basis.COMMUNICATORS)
    # Without the log of communicators a missing one proves nothing; one that is there still does.
    if facts.communicators_logged or built.verdict is ParallelKind.HIERARCHICAL:
        return built
    return _by_creation(facts)


def _by_groups(facts: LogFacts, proof: Basis) -> Decision:
    """Judge the groups by one kind of evidence."""
    sizes = tuple(level.size for level in facts.levels)
    used = [level for level in facts.levels if _shown(level, proof)]
    wide = [level for level in facts.levels if level.size != 1]
    names = tuple(level.name for level in used)
    if len(used) >= 2 and len(used) == len(wide):
        return Decision(ParallelKind.HIERARCHICAL, proof, sizes, names, _unsized(sizes))
    warnings: tuple[str, ...] = ()
    if len(sizes) == 1:
        warnings = ("the logs show one hierarchical level only",)
    elif sizes and len(wide) < 2:
        several = "at most one of several ranks: this is flat CP"
        warnings = (f"the levels {_sizes_text(sizes)} have {several}",)
    if _shown(facts.flat, proof):
        return Decision(ParallelKind.FLAT, proof, sizes, (FLAT_GROUP,), warnings)
    if len(used) == 1 and len(wide) == 1 and len(sizes) >= 2:
        return Decision(ParallelKind.FLAT, proof, sizes, names, warnings)
    if used:
        idle = ", ".join(level.name for level in wide if level not in used) or "any other level"
        in_use = f"{', '.join(names)} was in use and {idle} was not"
        warnings += (f"{in_use}: attention covers part of the sequence only",)
    return Decision(ParallelKind.NONE, proof, sizes, (), warnings)


def _shown(named: NamedGroups, proof: Basis) -> bool:
    """Whether evidence shows groups of one name in use, by more than one rank each.

    An unknown size passes only where something ran on the groups.
    """
    if named.size == 1:
        return False
    if proof is Basis.TRAFFIC:
        return any(group.moves_data for group in named.groups)
    if proof is Basis.COMMUNICATORS:
        return any(group.strength >= Strength.COMMUNICATOR for group in named.groups)
    return named.size is not None


def _by_creation(facts: LogFacts) -> Decision:
    decision = _by_groups(facts, Basis.CREATION)
    if decision.verdict is not ParallelKind.HIERARCHICAL:
        unsized = [named.name for named in _context_parallel(facts) if named.size is None]
        if not unsized:
            return decision
        # A group of unknown size could make the verdict another one.
        warning = f"the logs do not give the size of {', '.join(unsized)}"
        return Decision(ParallelKind.UNKNOWN, Basis.NONE, decision.level_sizes, (), (warning,))
    types = facts.configuration.cp_comm_type
    if not types or HIERARCHICAL_TYPE in types:
        return decision
    configured = f"the configured cp_comm_type is {'/'.join(types)}"
    warning = f"hierarchical groups exist, but {configured}: nothing uses them"
    active = (FLAT_GROUP,) if facts.flat.groups else ()
    return replace(decision, verdict=ParallelKind.FLAT, active=active, warnings=(warning,))


def _by_engine(facts: LogFacts) -> Decision:
    """Judge by what Transformer Engine says it runs; NCCL evidence of use adds what it shows."""
    parallel = [line for line, _ in facts.engine if line.context_parallel]
    groups = _by_groups(facts, Basis.COMMUNICATORS)
    if not parallel:
        return _without_engine(facts, groups)
    types = sorted({line.cp_comm_type for line in parallel})
    if HIERARCHICAL_TYPE not in types:
        return Decision(ParallelKind.FLAT, Basis.COMMUNICATORS, groups.level_sizes)
    configured = facts.configuration.hierarchical_context_parallel_sizes or ()
    sizes: tuple[int | None, ...] = groups.level_sizes or configured
    wide = [size for size in sizes if size != 1]
    total = max(line.cp_size or 0 for line in parallel if line.cp_comm_type == HIERARCHICAL_TYPE)
    if (sizes and len(wide) < 2) or (not sizes and total and _is_prime(total)):
        shown = _sizes_text(sizes) if sizes else f"a CP size of {total}"
        warning = (
            f"Transformer Engine names {HIERARCHICAL_TYPE}, but {shown} leaves one level: flat"
        )
        return Decision(ParallelKind.FLAT, Basis.COMMUNICATORS, sizes, (), (warning,))
    warnings = list(_unsized(sizes))
    if not groups.level_sizes and sizes:
        warnings.append("the level sizes are those of the configuration; no group shows them")
    if len(types) > 1:
        warnings.append(f"Transformer Engine runs several CP types: {engine_text(facts.engine)}")
    return Decision(
        ParallelKind.HIERARCHICAL, Basis.COMMUNICATORS, sizes, groups.active, tuple(warnings)
    )


def _without_engine(facts: LogFacts, groups: Decision) -> Decision:
    """Transformer Engine never ran with context parallelism; another attention still may have."""
    if facts.communicators_logged and groups.verdict is not ParallelKind.NONE:
        return groups
    warning: tuple[str, ...] = ()
    if any(named.size != 1 for named in _context_parallel(facts)):
        warning = (
            "CP groups exist, but Transformer Engine runs attention without them:"
            " each rank attends to its own part only",
        )
    return Decision(ParallelKind.NONE, Basis.COMMUNICATORS, groups.level_sizes, (), warning)


def _context_parallel(facts: LogFacts) -> list[NamedGroups]:
    return [*facts.levels, *([facts.flat] if facts.flat.groups else [])]


def _unsized(sizes: tuple[int | None, ...]) -> tuple[str, ...]:
    if sizes and None not in sizes:
        return ()
    return (
        "the logs do not give the size of every level; a layout such as [1, 8] is not ruled out",
    )


def _sizes_text(sizes: tuple[int | None, ...]) -> str:
    return "[" + ", ".join("?" if size is None else str(size) for size in sizes) + "]"


def _is_prime(number: int) -> bool:
    return all(number % divisor for divisor in range(2, int(number**0.5) + 1))


@dataclass(frozen=True)
class Expectation:
    """The expected verdict, level sizes (inner first), and whether creation is too weak a proof.

    Attributes:
        dynamic_sizes: CP sizes among which Dynamic CP chooses, ascending.
    """

    verdict: ParallelKind | None = None
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
        return self.require_traffic and self.verdict is not ParallelKind.NONE


def parse_expectation(
    expect: str | None,
    hcp: str | None,
    require_traffic: bool = False,
    dynamic: str | None = None,
) -> Expectation:
    """Parse the words of the command line. Level sizes alone expect ``hierarchical``.

    Raises:
        InputError: The verdict is unknown, the sizes are not whole numbers or not a hierarchy or
            given with an expectation other than ``hierarchical``, or the dynamic sizes do not
            ascend.
    """
    words = tuple(kind.value for kind in ParallelKind if kind is not ParallelKind.UNKNOWN)
    hierarchical = ParallelKind.HIERARCHICAL.value
    if expect is not None:
        check_name("--expect", expect, words)
    sizes = None if hcp is None else _whole_numbers("--hcp", hcp)
    if sizes is not None:
        if sum(size > 1 for size in sizes) < 2 or 0 in sizes:
            problem = f"{shown(hcp)} is no hierarchy, which needs two levels of more than one rank"
            raise InputError("--hcp", f"{problem}; give both sizes, inner first, such as 2,4")
        if expect not in (None, hierarchical):
            raise InputError("--hcp", f"--hcp contradicts --expect {expect}; leave one of them out")
        expect = hierarchical
    verdict = None if expect is None else ParallelKind(expect)
    chosen = None if dynamic is None else _whole_numbers("--dynamic", dynamic)
    if chosen is not None and (chosen != tuple(sorted(set(chosen))) or chosen[0] < 1):
        sentence = f"{shown(dynamic)} does not list CP sizes in ascending order; write it as 1,2,4"
        raise InputError("--dynamic", sentence)
    return Expectation(verdict, sizes, require_traffic, chosen)


def _whole_numbers(option: str, text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) <= 9 for part in parts):
        raise InputError(option, f"{shown(text)} is not a list of whole numbers; write it as 2,4")
    return tuple(int(part) for part in parts)


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
        elif group.size == size and not _aligned(group.ranks or (), size, place):
            ranks = _ranks_text(group.ranks)
            yield f"{group.name} joins ranks {ranks}, no aligned run of the domain"


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


def _aligned(ranks: Sequence[int], size: int, place: Mapping[int, tuple[int, int]]) -> bool:
    """Whether they are a run of neighbours from a multiple of its size on, as far as is known."""
    if not ranks or not all(rank in place for rank in ranks):
        return True
    home, first = place[ranks[0]]
    run = [(home, first + step) for step in range(size)]
    return first % size == 0 and [place[rank] for rank in ranks] == run


def cautions(facts: LogFacts, decision: Decision) -> tuple[str, ...]:
    """Return every warning, the verdict's own first."""
    return (
        *decision.warnings,
        *_about_logs(facts, decision),
        *_about_configuration(facts, decision),
    )


def _about_logs(facts: LogFacts, decision: Decision) -> Iterator[str]:
    if decision.verdict is ParallelKind.UNKNOWN:
        yield f"the logs do not show which process groups there were; {HOW_TO_SEE_GROUPS}"
    if decision.proof is Basis.CREATION and decision.active:
        yield "the logs show that the groups were created, not that anything used them"
    if facts.unnamed_groups and decision.verdict in (ParallelKind.NONE, ParallelKind.UNKNOWN):
        yield (
            f"{facts.unnamed_groups} NCCL groups have no description in the logs: PyTorch prints it"
            f" once a communicator is built, and not before release 2.4"
        )
    if facts.damaged:
        yield f"{facts.damaged} ringproof markers are followed by no sound line (cut or quoted)"
    if facts.overflow:
        yield "more groups or ranks than this reader keeps; the lists are incomplete"
    if len(facts.worlds) > 1:
        sizes = ", ".join(map(str, sorted(facts.worlds)))
        yield f"the logs name several world sizes ({sizes}): more than one run?"
    dynamic = sorted(group.name for group in facts.groups if dynamic_size(group.name) is not None)
    if dynamic:
        yield (
            f"dynamic CP groups are there ({dynamic[0]}, ...); the verdict leaves them out,"
            f" --dynamic SIZES checks them"
        )


def _about_configuration(facts: LogFacts, decision: Decision) -> Iterator[str]:
    """Where Megatron-LM's start-up lines say one thing and the groups another."""
    told = facts.configuration
    sizes = told.hierarchical_context_parallel_sizes or ()
    hierarchical = decision.verdict is ParallelKind.HIERARCHICAL
    but = f"but the verdict is {decision.verdict.value}"
    if sum(size > 1 for size in sizes) >= 2 and not hierarchical:
        yield f"configured hierarchical sizes {list(sizes)}, {but}"
    if HIERARCHICAL_TYPE in (told.cp_comm_type or ()) and not hierarchical:
        yield f"configured cp_comm_type {HIERARCHICAL_TYPE}, {but}"
    if sizes and decision.level_sizes and sizes != decision.level_sizes:
        shown = ["?" if size is None else size for size in decision.level_sizes]
        yield f"configured hierarchical sizes {list(sizes)}, but the groups show {shown}"
    configured = told.context_parallel_size
    if configured is None:
        return
    seen = facts.flat.size
    known = [size for size in decision.level_sizes if size is not None]
    if seen is None and known and len(known) == len(decision.level_sizes):
        seen = prod(known)
    if seen is not None and seen != configured:
        yield f"configured context-parallel size {configured}, but the groups show {seen}"
    elif configured > 1 and decision.verdict is ParallelKind.NONE:
        yield f"configured context-parallel size {configured}, but no CP group was in use"
