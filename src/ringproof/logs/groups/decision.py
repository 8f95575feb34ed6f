"""The rules that decide which context parallelism was active.

The strongest kind of evidence in the logs decides, and weaker evidence does not overrule it:

1. Traffic lines: a level or the flat group counts where tensors were sent on it.
2. Transformer Engine's own configuration lines, then NCCL communicators built at first use.
3. Groups that were created. This shows that they exist and not that anything used them.

Hierarchical needs at least two levels of more than one rank; Transformer Engine runs a level of
one rank as plain p2p or a2a, so such a layout is flat. "None" means that groups were seen and no
context-parallel group of more than one rank was in use; "unknown" that the logs do not say.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from ringproof.logs.groups.observed import FLAT_GROUP, WHOLE_RUN, LogFacts, NamedGroups, Strength
from ringproof.logs.parsing import engine_text

HIERARCHICAL_TYPE = "a2a+p2p"


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
    named = {group.name for group in facts.groups}
    if named == {WHOLE_RUN} and not facts.unnamed_groups:
        # Every run has this group; the lines of the others may not be in this log.
        warning = f"the logs show no group but {WHOLE_RUN}, which every run has"
        return Decision(ParallelKind.UNKNOWN, Basis.NONE, (), (), (warning,))
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
