"""The type of a rule, and the effects that breaking a rule can have on a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from ringproof.doctor.facts import Facts
from ringproof.doctor.settings import WITHOUT_MEGATRON

DCP = "dynamic-context-parallel/"
HCP = "hierarchical-context-parallel/"
GRAPHS = "dynamic-cp-cuda-graphs/"
LAUNCH = "launch/"
"""Statements about launching that belong to no skill."""


class Effect(str, Enum):
    """What happens to a run that breaks a rule, the worst first."""

    WRONG = "trains wrong"
    REFUSED = "refused"
    FAILS = "fails"
    IDLE = "has no effect"
    DEPENDS = "depends on the version"
    SLOW = "slow"


class RefusedBy(str, Enum):
    """Code that refuses a run before its first step."""

    PARSER = "the parser"
    ARGUMENTS = "validate_args in megatron/training/arguments.py"
    CONFIG = "the configuration classes of megatron/core"
    VERL = "the checks of verl"
    NEMO_RL = "the setup of NeMo-RL"


Repair = Mapping[str, str | None]
"""Settings that keep a rule, by name; ``None`` removes one."""


@dataclass(frozen=True, eq=False)
class Rule:
    """One rule.

    Args:
        statement: ``SKILL/ID`` of a statement of a card, or ``launch/NAME``.
        ends: What happens to a run that breaks it, or who refuses the run.
        broken: Returns what is wrong, with its values; anything false if the rule is kept.
        remedy: What to change, or a function that says it.
        lines: Lines of upstream on which it holds; empty for every line.
        message: How the message of upstream begins; empty if it says nothing.
        or_message: Another one; which of the two comes depends on the data.
        unchecked: Effect where a program uses the library without the checks of `by`; ``None`` if
            the rule is about Megatron-LM's own training scripts.
        checked_on: Lines of other programs that refuse it themselves.
        programs: Programs whose settings it judges; empty for those that run Megatron-LM.
        version_of: Repository whose version decides; without it, the effect is DEPENDS.
        repair: Settings that keep the rule, or a function that returns them; ``None`` for none.
    """

    statement: str
    ends: Effect | RefusedBy
    broken: Callable[[Facts], object]
    remedy: str | Callable[[Facts], str]
    lines: tuple[str, ...] = ()
    message: str = ""
    or_message: str = ""
    unchecked: Effect | None = None
    checked_on: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    version_of: str = ""
    repair: Repair | Callable[[Facts], Repair] | None = None

    @property
    def effect(self) -> Effect:
        """What happens to a run of Megatron-LM that breaks the rule."""
        return Effect.REFUSED if isinstance(self.ends, RefusedBy) else self.ends

    @property
    def by(self) -> str:
        """Code that refuses the run; empty for every other effect."""
        return self.ends.value if isinstance(self.ends, RefusedBy) else ""

    @property
    def name(self) -> str:
        """The statement without its skill."""
        return self.statement.partition("/")[2]

    def effect_on(self, facts: Facts) -> Effect | None:
        """Return the effect in the program that reads the settings; ``None`` without one."""
        if self.lines and not facts.at(*self.lines):
            return None
        program = facts.program
        if program not in self.programs if self.programs else program in WITHOUT_MEGATRON:
            return None
        if self.version_of and not facts.versions.get(self.version_of):
            return Effect.DEPENDS
        if program == "megatron" or self.ends not in (RefusedBy.PARSER, RefusedBy.ARGUMENTS):
            return self.effect
        return Effect.REFUSED if facts.at(*self.checked_on) else self.unchecked

    def advice(self, facts: Facts) -> str:
        """Return what to change."""
        return self.remedy(facts) if callable(self.remedy) else self.remedy

    def repairs(self, facts: Facts) -> Repair:
        """Return the settings that keep the rule; empty where there are none."""
        return self.repair(facts) if callable(self.repair) else self.repair or {}
