"""Apply the rules to settings on a line of upstream."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ringproof.doctor.accepted import ACCEPTED
from ringproof.doctor.facts import Facts, facts_of
from ringproof.doctor.frameworks import FRAMEWORKS
from ringproof.doctor.lines import Stack
from ringproof.doctor.refused import REFUSED
from ringproof.doctor.reported import REPORTED
from ringproof.doctor.rule import Effect, RefusedBy, Rule
from ringproof.doctor.settings import TITLES, WITHOUT_MEGATRON, Noting, Settings
from ringproof.errors import InputError, shown

RULES: tuple[Rule, ...] = (*REFUSED, *ACCEPTED, *REPORTED, *FRAMEWORKS)
SIZES = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
BAD = (Effect.REFUSED, Effect.WRONG, Effect.FAILS, Effect.IDLE)
"""Effects for which a configuration should not be started."""


@dataclass(frozen=True)
class BrokenRule:
    """A rule that is broken.

    Attributes:
        effect: What happens, in the program that reads the settings.
        says: What is wrong, with its values.
        remedy: What to change.
    """

    rule: Rule
    effect: Effect
    says: str
    remedy: str = ""


@dataclass(frozen=True)
class Examination:
    """What was found on one line of upstream.

    Attributes:
        repairs: Settings to change, by name; ``None`` removes one.
        decided: Settings that the rules looked at, as the configuration writes them.
        left: The other settings, which no rule judges.
    """

    facts: Facts
    stack: Stack
    findings: tuple[BrokenRule, ...]
    repairs: Mapping[str, str | None]
    decided: tuple[str, ...] = ()
    left: tuple[str, ...] = ()

    @property
    def settings(self) -> Settings:
        """The settings, which the facts are made of."""
        return self.facts

    @property
    def counts(self) -> Counter[Effect]:
        """Number of findings of each effect."""
        return Counter(finding.effect for finding in self.findings)

    @property
    def not_examined(self) -> str:
        """Why "nothing found" would say nothing here; empty where it says something."""
        if self.findings:
            return ""
        program = TITLES[self.facts.program]
        if self.facts.program in WITHOUT_MEGATRON:
            return f"{program} trains without Megatron-LM, and no rule found anything"
        if self.facts.program == "megatron":
            return ""
        if not any("parallel" in name and "ulysses" not in name for name in self.facts.values):
            return f"no parallel size of {program}'s Megatron was read"
        return ""

    @property
    def misread(self) -> bool:
        """Whether the parser refuses a word whose meaning is unknown, so that sizes are, too."""
        ends = [one.rule.ends for one in self.findings if one.rule.repair is None]
        return RefusedBy.PARSER in ends

    @property
    def bad(self) -> bool:
        """Whether the run should not be started like this."""
        return any(effect in BAD for effect in self.counts)


def examine(settings: Settings, stack: Stack) -> Examination:
    """Apply every rule that holds on the line.

    Raises:
        InputError: A setting is no number where one is needed, or a size is below 1.
    """
    noted, fields = Noting(settings.values), Noting(settings.fields)
    watched = replace(settings, values=noted, fields=fields)
    facts = facts_of(watched, stack.lines, stack.options, stack.versions)
    for name in SIZES:
        if settings.number(name, 1) < 1:
            problem = "is not the size of a group"
            raise InputError(
                settings.written(name), f"{shown(settings.text(name))} {problem}; give at least 1"
            )
    findings = []
    repairs: dict[str, str | None] = {}
    for rule in RULES:
        effect = rule.effect_on(facts)
        if effect is not None and (says := rule.broken(facts)):
            findings.append(BrokenRule(rule, effect, str(says), rule.advice(facts)))
            repairs.update(rule.repairs(facts))
    order = list(Effect)
    findings.sort(key=lambda finding: order.index(finding.effect))
    facts = facts_of(settings, stack.lines, stack.options, stack.versions)
    decided = [settings.written(name) for name in settings.values if name in noted.read]
    decided += [name for name in settings.fields if name in fields.read and name not in decided]
    every = dict.fromkeys((*map(settings.written, settings.values), *settings.fields))
    left = tuple(name for name in every if name not in decided)
    return Examination(facts, stack, tuple(findings), repairs, tuple(decided), left)
