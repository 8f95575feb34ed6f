"""What upstream itself says about a launch: its own program, run at full size on this CPU.

Its parser, its argument checks and its configuration classes judge the launch as it is. Then the
model is built and trained for two steps; large tensors have no content, as for ``ringproof fit``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any

from ringproof.doctor.examine import BrokenRule, Examination
from ringproof.doctor.rehearsed import launch_of, says_it
from ringproof.doctor.report import CANNOT_TELL, NO_STEP, NOT_RUN, REFUSES
from ringproof.doctor.rule import Effect, RefusedBy
from ringproof.errors import InputError, shown
from ringproof.launch.flags import Flags
from ringproof.launch.options import PROGRAMS
from ringproof.launch.reading import Launch

CHECKPOINT = "--use-checkpoint-args"
PROGRAM = "upstream's own program at full size, without a GPU"
QUICK_SECONDS = 15.0
"""Longest time of everything, where nothing asks for it."""


@dataclass(frozen=True)
class Checked:
    """What became of upstream's own program.

    Attributes:
        upstream: Version or commit.
        accepted: Whether it ran; ``None`` where this cannot be told.
        message: What it raised.
        place: File and line of upstream.
        symbol: What no stand-in implements; empty where that is not why it ended.
        why_not: Why it was not run, or not to its end; empty where it was. Where it is
            accepted nevertheless, only its parser and its checks ran.
        changed: What became of it with the changes that doctor proposes, where it was asked again.
        title: What ran; a program's checks alone where it is not `PROGRAM`.
    """

    upstream: str
    accepted: bool | None
    message: str = ""
    place: str = ""
    symbol: str = ""
    why_not: str = ""
    changed: Checked | None = None
    title: str = PROGRAM

    def known(self, examination: Examination) -> BrokenRule | None:
        """Return the finding that names the message with which upstream refuses."""
        named = (one for one in examination.findings if says_it(one.rule, self.message))
        return next(named, None) if self.accepted is False else None


def settled(examination: Examination, checked: Checked) -> Examination:
    """Leave out what our rules say is refused, where upstream's own checks ran and accepted it.

    Those of verl make no model, so that what Megatron-LM's configuration classes refuse stays.
    """
    own = examination.settings.program == "megatron"
    found = tuple(one for one in examination.findings if not checked.accepted
                  or one.effect is not Effect.REFUSED
                  or not (own or one.rule.ends is RefusedBy.VERL))  # fmt: skip
    names = {name for one in found for name in one.rule.repairs(examination.facts)}
    kept = {name: value for name, value in examination.repairs.items() if name in names}
    return replace(examination, findings=found, repairs=kept)


def told(checked: Checked | None) -> str:
    """Return what the first line of a report says of upstream's own program; empty if it ran."""
    if checked is None or (checked.why_not and not checked.accepted):
        return NOT_RUN
    if not checked.accepted:
        return CANNOT_TELL if checked.accepted is None else REFUSES
    return NO_STEP if checked.why_not or checked.title != PROGRAM else ""


def launch_to_check(examination: Examination) -> Launch:
    """Return the launch with upstream's own program in the place of the one that it names.

    Raises:
        InputError: It is not a launch of a program of Megatron-LM, or a checkpoint decides it.
    """
    launch = launch_of(examination.settings, "--checks")
    name = PurePath(launch.script).name
    if name not in PROGRAMS:
        sentence = f"{shown(launch.script)} is not one of upstream's programs, which alone are run"
        raise InputError("--checks", f"{sentence}; leave --checks out")
    if Flags(launch.arguments).has(CHECKPOINT):
        sentence = f"{CHECKPOINT} takes the settings from a checkpoint, which is not read"
        raise InputError("--checks", f"{sentence}; leave --checks out")
    return replace(launch, script=name)


def ask(
    launch: Launch, megatron: str, engine: str | None, *, cache: Path, folder: Path,
    offline: bool, progress: Callable[[str, str], None], limit: float | None = None,
    blackwell: bool = False,
) -> Checked:  # fmt: skip
    """Let upstream's checks judge the launch as it is, and run two steps as its rank 0.

    Args:
        megatron: Megatron-LM, as a rehearsal takes it.
        engine: Transformer Engine; ``None`` for the newest release.
        folder: Where logs are written.
        limit: Longest time of everything, in seconds; ``None`` for no limit but that of a rank.

    Raises:
        InputError: The launch cannot be run at full size, or upstream not be opened.
    """
    from ringproof.rehearsal.fit.beside import of_one_rank
    from ringproof.rehearsal.fit.fitting import CHECKED, Refused, fit

    passed: list[str] = []

    def note(phase: str, line: str) -> None:
        passed.extend([megatron] if phase == CHECKED else [])
        progress(phase, line)

    request = of_one_rank(
        launch, megatron, engine, folder=folder, cache=cache, limit=limit, offline=offline,
        own_script=False, checks=True, blackwell=blackwell,
    )  # fmt: skip
    try:
        return Checked(fit(request, note).megatron, True)
    except Refused as refused:
        failure = refused.failure
        if failure.kind == "timeout" and limit is not None:
            why = f"they take longer than {limit:g} s here; --checks waits for them"
            return Checked(megatron, True if passed else None, why_not=why)
        accepted = False if refused.by_upstream else None
        return Checked(megatron, accepted, failure.message, failure.place, failure.symbol)
    except InputError as error:
        if not passed:
            raise
        return Checked(megatron, True, why_not=str(error))


def lines(checked: Checked, examination: Examination) -> Iterator[str]:
    """Yield what a terminal shows."""
    yield ""
    yield from _lines(checked, checked.known(examination))
    if checked.changed is not None:
        yield "with the changes above:"
        yield from _lines(checked.changed, None)


def _lines(checked: Checked, known: BrokenRule | None) -> Iterator[str]:
    if checked.why_not and not checked.accepted:
        yield f"upstream's own checks were not run: {checked.why_not}"
        return
    ran = f"{checked.title} ({checked.upstream}):"
    where = f" (at {checked.place})" if checked.place else ""
    if checked.why_not:
        yield f"{ran} its parser and its checks accept this; no step was run: {checked.why_not}"
    elif checked.accepted and checked.title != PROGRAM:
        yield f"{ran} they accept this; no model was made and no step was run"
    elif checked.accepted:
        yield f"{ran} its parser, its checks and its model accept this; two steps ran"
    elif known is not None:
        yield f"{ran} refused, as {known.rule.statement} says{where}"
    elif checked.accepted is False:
        yield f"{ran} refused: {checked.message}{where}"
    elif checked.symbol:
        yield f"{ran} cannot tell: no stand-in implements {checked.symbol}{where}"
    else:
        yield f"{ran} cannot tell: {checked.message}{where}"


def data(checked: Checked) -> dict[str, Any]:
    """Return the same as JSON values."""
    return {
        "upstream": checked.upstream,
        "accepted": checked.accepted,
        "message": checked.message or None,
        "place": checked.place or None,
        "missing_stand_in": checked.symbol or None,
        "not_run": checked.why_not or None,
        "with_changes": None if checked.changed is None else data(checked.changed),
    }
