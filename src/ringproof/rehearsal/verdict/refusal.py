"""Why a rehearsed run did not reach its end, and which pitfalls of the cards explain that."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from ringproof.cards.loading import find_cards, load_card
from ringproof.launch.shell.parse import whole_number
from ringproof.logs.diagnosis.symptoms import load_index
from ringproof.rehearsal.protocol.reports import Failure, RankReport

MOST_PITFALLS = 3
_FRAME = re.compile(r" in (\w+)\n(?: {4}(.*))?")
SKILL_OF_FEATURE: Mapping[str, str] = MappingProxyType(
    {"dynamic-cp": "dynamic-context-parallel", "a2a+p2p": "hierarchical-context-parallel"}
)


@dataclass(frozen=True)
class KnownPitfall:
    """A pitfall of a skill's card that an error message matches.

    Attributes:
        cause: Why upstream prints the message, and ``remedy`` what to do. They are those of the
            symptom index where it has them, since one message can have causes besides the pitfall.
    """

    skill: str
    id: str
    cause: str
    remedy: str


@dataclass(frozen=True)
class StopReason:
    """Why a program did not run to its end.

    Attributes:
        kind: ``raised``, ``died``, ``hung`` or ``timeout``; ``import`` where upstream cannot be
            imported.
        rank: Rank that failed first; ``None`` where no rank was started.
        symbol: Symbol that no stand-in implements; empty for upstream's own errors.
        waiting: Collective and group that each unfinished rank waited in, by rank.
        pitfalls: Pitfalls of the cards that match the message, the best first.
        package: Package that upstream needs and that is not installed here.
        cause: What upstream had found when it raised something else while reporting it.
        ours: Whether it says nothing about the launch; see `Failure.ours`.
        raised_in: Whose code raised while upstream was imported, if not upstream's.
    """

    kind: str
    rank: int | None
    message: str
    file: str = ""
    line: int | None = None
    symbol: str = ""
    iteration: int = 0
    waiting: Mapping[int, str] = field(default_factory=dict)
    pitfalls: tuple[KnownPitfall, ...] = ()
    raised_in: str = ""
    package: str = ""
    cause: str = ""
    ours: bool = False


def refusal_of(
    failure: Failure, reports: Sequence[RankReport], skills: Path | None = None, feature: str = ""
) -> StopReason:
    """Describe a failed run, with what the cards know about it; see `find_pitfalls`."""
    file, _, line = failure.place.rpartition(":")
    message = " ".join(failure.message.split())
    return StopReason(
        kind=failure.kind,
        rank=None if failure.rank < 0 else failure.rank,
        message=message,
        file=file,
        line=whole_number(line),
        symbol=failure.symbol,
        iteration=max((len(report.iterations) for report in reports), default=0),
        waiting=dict(failure.waiting),
        pitfalls=find_pitfalls(message, failure.traceback, skills, feature),
        raised_in=failure.raised_in,
        package=failure.package,
        cause=failure.cause,
        ours=failure.ours,
    )


def find_pitfalls(
    message: str, traceback: str, skills: Path | None, feature: str
) -> tuple[KnownPitfall, ...]:
    """Return the pitfalls of the cards that explain an error message, by the symptom index.

    Args:
        traceback: Functions in it, and its last source line, decide where messages are alike.
        feature: Context parallel feature of the launch; its skill comes first among equals.
    """
    error, _, said = message.partition(":")
    kind = "usage" if error == "SystemExit" else error.strip()
    frames = _FRAME.findall(traceback)
    code = frames[-1][1] if frames else ""
    symptom = load_index().find(kind, said.strip(), [name for name, _ in frames], code)
    if skills is None or symptom is None:
        return ()
    cards = {skill: load_card(path) for skill, path in find_cards(skills).items()}
    found = [
        KnownPitfall(
            skill, pitfall.id, symptom.cause or pitfall.cause, symptom.remedy or pitfall.remedy
        )
        for name in symptom.statements
        for skill, card in cards.items()
        for pitfall in card.pitfalls
        if name == f"{skill}/{pitfall.id}"
    ]
    found.sort(key=lambda one: one.skill != SKILL_OF_FEATURE.get(feature, ""))
    return tuple(found[:MOST_PITFALLS])
