"""What a rule is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from ringproof.doctor.facts import Facts

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
    SLOW = "slow"


class By(str, Enum):
    """Code that refuses a run before its first step; `NOBODY` for every other effect."""

    PARSER = "the parser"
    ARGUMENTS = "validate_args in megatron/training/arguments.py"
    CONFIG = "the configuration classes of megatron/core"
    NOBODY = ""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One rule.

    Args:
        statement: ``SKILL/ID`` of a statement of a card, or ``launch/NAME``.
        lines: Lines of upstream on which it holds; empty for every line.
        broken: Returns what is wrong, with its values; empty if the rule is kept.
        message: How the message of upstream begins; empty if it says nothing.
        or_message: Another one; which of the two comes depends on the data.
        remedy: What to change.
        unchecked: Effect where a program uses the library without the checks of `by`; ``None`` if
            the rule is about Megatron-LM's own training scripts.
        checked_on: Lines of other programs that refuse it themselves.
        repair: Settings that keep the rule, by name; ``None`` removes one.
    """

    statement: str
    effect: Effect
    broken: Callable[[Facts], str]
    remedy: str
    lines: tuple[str, ...] = ()
    by: By = By.NOBODY
    message: str = ""
    or_message: str = ""
    unchecked: Effect | None = None
    checked_on: tuple[str, ...] = ()
    repair: Callable[[Facts], Mapping[str, str | None]] | None = None

    @property
    def name(self) -> str:
        """The statement without its skill."""
        return self.statement.partition("/")[2]

    def effect_on(self, facts: Facts) -> Effect | None:
        """Return the effect in the program that reads the settings; ``None`` without one."""
        if self.lines and not facts.at(*self.lines):
            return None
        program = facts.settings.program
        if program == "megatron" or self.by in (By.NOBODY, By.CONFIG):
            return self.effect
        return Effect.REFUSED if facts.at(*self.checked_on) else self.unchecked
