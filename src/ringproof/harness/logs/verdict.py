"""Which context parallelism was active: the rules.

The strongest kind of evidence in the logs decides, and weaker evidence does not overrule it:

1. Traffic lines: a level or the flat group counts where tensors were sent on it.
2. Transformer Engine's own configuration lines, then NCCL communicators built at first use.
3. Groups that were created. This shows that they exist and not that anything used them.

Hierarchical needs at least two levels of more than one rank; Transformer Engine runs a level of
one rank as plain p2p or a2a, so such a layout is flat. "None" means that groups were seen and no
context-parallel group of more than one rank was in use; "unknown" that the logs do not say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from ringproof.harness.logs.facts import FLAT_GROUP, Facts, Group, Strength, level_name, level_of
from ringproof.harness.logs.parsing import engine_text

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
class NameFacts:
    """All groups of one name, of which there may be none."""

    name: str
    groups: tuple[Group, ...]

    @property
    def sizes(self) -> list[int]:
        """The sizes that the logs give, with repetitions."""
        return [group.size for group in self.groups if group.size is not None]

    @property
    def size(self) -> int | None:
        """The most frequent size; ``None`` where no line gives it."""
        return Counter(self.sizes).most_common(1)[0][0] if self.sizes else None

    def shown(self, proof: Basis) -> bool:
        """Whether this kind of evidence shows the groups in use, by more than one rank each.

        An unknown size passes only where something ran on the groups.
        """
        if self.size == 1:
            return False
        if proof is Basis.TRAFFIC:
            return any(group.moves_data for group in self.groups)
        if proof is Basis.COMMUNICATORS:
            return any(group.strength >= Strength.COMMUNICATOR for group in self.groups)
        return self.size is not None


@dataclass(frozen=True)
class Decision:
    """The verdict, what it rests on, and the names whose groups were in use."""

    verdict: ParallelKind
    proof: Basis
    level_sizes: tuple[int | None, ...]
    active: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def name_facts(groups: Sequence[Group], name: str) -> NameFacts:
    """Return the groups of one name."""
    return NameFacts(name, tuple(group for group in groups if group.name == name))


def levels(groups: Sequence[Group]) -> list[NameFacts]:
    """Return the hierarchical levels seen, inner first."""
    found = {level for group in groups if (level := level_of(group.name)) is not None}
    return [name_facts(groups, level_name(level)) for level in sorted(found)]


def decide(facts: Facts) -> Decision:
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


def _by_groups(facts: Facts, proof: Basis) -> Decision:
    """Judge the groups by one kind of evidence."""
    found = levels(facts.groups)
    sizes = tuple(level.size for level in found)
    used = tuple(level for level in found if level.shown(proof))
    wide = tuple(level for level in found if level.size != 1)
    flat = name_facts(facts.groups, FLAT_GROUP)
    names = tuple(level.name for level in used)
    if len(used) >= 2 and len(used) == len(wide):
        return Decision(ParallelKind.HIERARCHICAL, proof, sizes, names, _size_warning(sizes))
    warnings = _degenerate_warning(sizes)
    if flat.shown(proof):
        return Decision(ParallelKind.FLAT, proof, sizes, (FLAT_GROUP,), warnings)
    if len(used) == 1 and len(wide) == 1 and len(found) >= 2:
        return Decision(ParallelKind.FLAT, proof, sizes, names, warnings)
    partial = () if not used else (_partial_warning(used, wide),)
    return Decision(ParallelKind.NONE, proof, sizes, (), (*warnings, *partial))


def _by_creation(facts: Facts) -> Decision:
    decision = _by_groups(facts, Basis.CREATION)
    if decision.verdict is not ParallelKind.HIERARCHICAL:
        unsized = [fact.name for fact in _context_parallel(facts) if fact.size is None]
        if not unsized:
            return decision
        # A group of unknown size could make the verdict another one.
        warning = f"the logs do not give the size of {', '.join(unsized)}"
        return Decision(ParallelKind.UNKNOWN, Basis.NONE, decision.level_sizes, (), (warning,))
    types = facts.configuration.cp_comm_type
    if not types or HIERARCHICAL_TYPE in types:
        return decision
    warning = (
        f"hierarchical groups exist, but the configured cp_comm_type is {'/'.join(types)}:"
        f" nothing uses them"
    )
    active = (FLAT_GROUP,) if name_facts(facts.groups, FLAT_GROUP).groups else ()
    return replace(decision, verdict=ParallelKind.FLAT, active=active, warnings=(warning,))


def _by_engine(facts: Facts) -> Decision:
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
    warnings = list(_size_warning(sizes))
    if not groups.level_sizes and sizes:
        warnings.append("the level sizes are those of the configuration; no group shows them")
    if len(types) > 1:
        warnings.append(f"Transformer Engine runs several CP types: {engine_text(facts.engine)}")
    return Decision(
        ParallelKind.HIERARCHICAL, Basis.COMMUNICATORS, sizes, groups.active, tuple(warnings)
    )


def _without_engine(facts: Facts, groups: Decision) -> Decision:
    """Transformer Engine never ran with context parallelism; another attention still may have."""
    if facts.communicators_logged and groups.verdict is not ParallelKind.NONE:
        return groups
    warning: tuple[str, ...] = ()
    if any(fact.size != 1 for fact in _context_parallel(facts)):
        warning = (
            "CP groups exist, but Transformer Engine runs attention without them:"
            " each rank attends to its own part only",
        )
    return Decision(ParallelKind.NONE, Basis.COMMUNICATORS, groups.level_sizes, (), warning)


def _context_parallel(facts: Facts) -> list[NameFacts]:
    flat = name_facts(facts.groups, FLAT_GROUP)
    return [*levels(facts.groups), *([flat] if flat.groups else [])]


def _size_warning(sizes: tuple[int | None, ...]) -> tuple[str, ...]:
    if sizes and None not in sizes:
        return ()
    return (
        "the logs do not give the size of every level; a layout such as [1, 8] is not ruled out",
    )


def _degenerate_warning(sizes: tuple[int | None, ...]) -> tuple[str, ...]:
    if not sizes or sum(size != 1 for size in sizes) >= 2:
        return ()
    if len(sizes) == 1:
        return ("the logs show one hierarchical level only",)
    return (f"the levels {_sizes_text(sizes)} have at most one of several ranks: this is flat CP",)


def _partial_warning(used: tuple[NameFacts, ...], wide: tuple[NameFacts, ...]) -> str:
    names = {level.name for level in used}
    idle = ", ".join(level.name for level in wide if level.name not in names) or "any other level"
    return (
        f"{', '.join(sorted(names))} was in use and {idle} was not:"
        f" attention covers part of the sequence only"
    )


def _sizes_text(sizes: tuple[int | None, ...]) -> str:
    return "[" + ", ".join("?" if size is None else str(size) for size in sizes) + "]"


def _is_prime(number: int) -> bool:
    return all(number % divisor for divisor in range(2, int(number**0.5) + 1))
