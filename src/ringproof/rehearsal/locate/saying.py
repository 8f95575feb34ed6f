"""A location in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from types import MappingProxyType

from ringproof.rehearsal.locate.result import Culprit, WrongPlace

MOST_RANGES = 4
SOURCES: Mapping[str, str] = MappingProxyType({
    "data": "the data that the model is given are wrong",
    "loss": "the gradient that the loss function returns is wrong",
    "scale": "all gradients of parameters have a wrong factor that those of the backward lack",
    "norm": "the gradients of all parameters agree after their reduction and their norm does not",
})  # fmt: skip


def sentence(location: WrongPlace) -> str:
    """Say what is wrong first, or why that is not known."""
    found = location.culprit
    if location.unstable:
        race = (
            f"a race or chance is at work, since two runs of the launch differ: {location.unstable}"
        )
        return f"{race}; in the second run, {sentence(replace(location, unstable=''))}"
    if found is None:
        return f"not located: {location.reason}"
    what = SOURCES.get(found.phase) or _subject(found)
    said = f"{what} in {when(found.step)}{_where(found)}: {found.tensor}"
    if found.tolerance:
        said += f", relative {found.error:.2g} (rounding explains {found.tolerance:.2g})"
    return said + _agreeing(found) + (f"; {found.factor}" if found.factor else "")


def when(step: int) -> str:
    """Name a training step, or an evaluation, which has a negative number."""
    return f"step {step}" if step > 0 else f"evaluation {-step}"


def lines(location: WrongPlace) -> Iterator[str]:
    """Yield all that is known of a location."""
    yield sentence(location)
    yield from filter(None, [places(location)])
    yield from evidence(location)
    yield from others(location)
    yield left_out(location)


def places(location: WrongPlace) -> str:
    """Say which line of upstream computed it, and its caller; empty where neither is known."""
    found = location.culprit
    if found is None:
        return ""
    lines = (
        ("computed", found.computed_at),
        ("applied in the forward", found.applied_at),
        ("called", found.called_from),
    )
    return ", ".join(f"{word} at {line}" for word, line in lines if line)


def evidence(location: WrongPlace) -> Iterator[str]:
    """Yield a line for each tensor that belongs to the evidence."""
    for one in location.culprit.evidence if location.culprit else ():
        verdict = "wrong" if one.wrong else "agrees"
        yield f"{verdict:<6}  {one.error:.2g} (rounding explains {one.tolerance:.2g})  {one.what}"


def others(location: WrongPlace) -> Iterator[str]:
    """Yield a line for each culprit that does not follow from the first one."""
    for one in location.others:
        place = replace(location, culprit=one, unstable="")
        yield "; ".join(filter(None, [f"independent of it: {sentence(place)}", places(place)]))


def left_out(location: WrongPlace) -> str:
    """Say how much was compared, and what was not."""
    names = [name for name, _ in location.left_out]
    count = len(names) - 1
    others = f" and {count} other kind{'s' * (count > 1)}" if count > 0 else ""
    more = f"; not compared: {names[0]}{others}" if names else ""
    return f"{location.compared} tensors were compared{more}"


def _subject(found: Culprit) -> str:
    module = found.module or "the model"
    if _is_only_first(found):
        return f"the backward of {module} has the first wrong gradient"
    named = {
        "forward": f"{module} is wrong in the forward",
        "backward": f"{module} is wrong in the backward",
        "gradient": f"{module} computes a wrong gradient of its parameters",
        "reduction": f"gradients of {module} are reduced over ranks wrongly",
        "optimizer": f"{module} is wrong after the optimizer",
    }
    return named[found.phase]


def _is_only_first(found: Culprit) -> bool:
    """Whether it is a gradient of which nothing says that what goes into it agrees."""
    return found.phase == "backward" and len(found.evidence) == 1


def _where(found: Culprit) -> str:
    parts = []
    if found.microbatches:
        one = len(found.microbatches) == 1
        parts.append(f"microbatch{'' if one else 'es'} {numbers(found.microbatches)}")
    parts.append(f"on rank{'' if len(found.ranks) == 1 else 's'} {numbers(found.ranks)}")
    if any(found.samples):
        parts.append(f"samples {numbers(found.samples)}")
    if found.positions:
        ends = [str(a) if a == b else f"{a}-{b}" for a, b in found.positions[:MOST_RANGES]]
        more = ", ..." if len(found.positions) > MOST_RANGES else ""
        parts.append(f"positions {', '.join(ends)}{more} of the sequence")
    return f", {', '.join(parts)}"


def _agreeing(found: Culprit) -> str:
    good = [one for one in found.evidence if not one.wrong]
    if _is_only_first(found):
        return "; what goes into it was not compared"
    if not good or found.phase not in ("forward", "backward"):
        return ""
    return f"; what goes into it agrees to {max(one.error for one in good):.2g}"


def numbers(ranks: Sequence[int]) -> str:
    """Return ranks in words, such as ``0-3, 8``."""
    runs = groupby(enumerate(sorted(ranks)), lambda item: item[1] - item[0])
    ends = [(members[0][1], members[-1][1]) for members in (list(run) for _, run in runs)]
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in ends)
