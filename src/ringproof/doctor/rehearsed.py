"""What doctor says about a launch, beside what a rehearsal of it shows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ringproof.doctor.examine import Examination
from ringproof.doctor.rule import Effect, Rule
from ringproof.doctor.settings import Settings
from ringproof.errors import InputError, shown
from ringproof.launch.reading import Launch

if TYPE_CHECKING:
    from ringproof.rehearsal.verdict.variant import Variant

ENDING = (Effect.REFUSED, Effect.FAILS)


@dataclass(frozen=True)
class Rehearsed:
    """A rehearsal, judged by what doctor says.

    Attributes:
        agrees: Whether it ended as doctor says; ``None`` where the rehearsal cannot tell.
        says: Why, in one sentence.
    """

    variant: Variant
    agrees: bool | None
    says: str

    @property
    def good(self) -> bool:
        """Whether the launch trains, and doctor is not contradicted."""
        return self.variant.passed and self.agrees is not False


def launch_of(settings: Settings, option: str = "--rehearse") -> Launch:
    """Return the launch that settings were read from.

    Args:
        option: What asks for it, for messages.

    Raises:
        InputError: They come from no launch of Megatron-LM, or the number of ranks is not known.
    """
    if not settings.script:
        problem = "is not a launch of Megatron-LM, and only a launch can be rehearsed"
        raise InputError(
            option, f"{shown(settings.source)} {problem}; give a launch script or -- COMMAND"
        )
    if settings.ranks is None:
        problem = "does not say how many ranks there are"
        raise InputError(option, f"{shown(settings.source)} {problem}; give --ranks N")
    return Launch(
        settings.script, settings.arguments, dict(settings.environment or {}), 1, settings.ranks,
        settings.source, settings.notes,
    )  # fmt: skip


def judge(examination: Examination, variant: Variant) -> Rehearsed:
    """Compare a rehearsal with the findings of the same launch."""
    ending = [one.rule for one in examination.findings if one.effect in ENDING]
    wrong = [one.rule for one in examination.findings if one.effect is Effect.WRONG]
    refusal = variant.refusal
    if refusal is not None and refusal.ours:
        return Rehearsed(variant, None, "The stand-ins end here, so that nothing is shown.")
    if refusal is not None:
        rule = next((rule for rule in ending if says_it(rule, refusal.message)), None)
        if rule is not None:
            return Rehearsed(variant, True, f"It ends as {rule.statement} says.")
        known = "with another message than doctor names" if ending else "and doctor named nothing"
        return Rehearsed(variant, False, f"It does not train, {known}.")
    if ending:
        names = ", ".join(rule.statement for rule in ending)
        return Rehearsed(variant, False, f"It trains, and doctor says that it does not: {names}.")
    if variant.agreement.agrees is False:
        said = "as doctor says" if wrong else "and doctor named nothing"
        return Rehearsed(variant, bool(wrong), f"It trains differently from one rank, {said}.")
    if wrong:
        return Rehearsed(variant, None, "It trains; what doctor calls wrong does not show here.")
    return Rehearsed(variant, True, "It trains, and doctor named nothing that would stop it.")


def says_it(rule: Rule, message: str) -> bool:
    """Whether upstream's message is a rule's; a rule without one names a bare exception."""
    if not rule.message:
        return message.rstrip().endswith("Error:")
    found = rule.message in message or bool(rule.or_message and rule.or_message in message)
    return found or " ".join(rule.message.split()) in message


def lines(rehearsed: Rehearsed) -> Iterator[str]:
    """Yield what a terminal shows."""
    variant, small = rehearsed.variant, rehearsed.variant.small
    ranks = "" if small is None else f" on {small.ranks} of {variant.launch.ranks} ranks"
    yield ""
    yield f"rehearsed{ranks} ({variant.megatron}, Transformer Engine {variant.engine}):"
    yield f"  {variant.headline}"
    if variant.path.taken:
        yield f"  CP paths seen: {', '.join(map(str, variant.path.taken))}"
    if groups := _groups(rehearsed):
        yield f"  groups seen: {', '.join(groups)}"
    mark = {True: "agrees", False: "disagrees", None: "cannot tell"}[rehearsed.agrees]
    yield f"  {mark} with doctor: {rehearsed.says}"


def data(rehearsed: Rehearsed) -> dict[str, Any]:
    """Return the same as JSON values."""
    variant, refusal = rehearsed.variant, rehearsed.variant.refusal
    return {
        "starts": variant.starts,
        "passed": variant.passed,
        "headline": variant.headline,
        "message": None if refusal is None else refusal.message,
        "place": None if refusal is None else f"{refusal.file}:{refusal.line}",
        "missing_stand_in": None if refusal is None else refusal.symbol or None,
        "ranks": None if variant.small is None else variant.small.ranks,
        "paths": [str(one) for one in variant.path.taken],
        "groups": _groups(rehearsed),
        "agrees_with_doctor": rehearsed.agrees,
        "says": rehearsed.says,
    }


def _groups(rehearsed: Rehearsed) -> list[str]:
    """Names of the groups that carried something, by the order of upstream."""
    return list(dict.fromkeys(use.group for use in rehearsed.variant.path.groups))
