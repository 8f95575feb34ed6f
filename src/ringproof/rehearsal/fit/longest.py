"""The longest sequence with which a launch fits on its GPUs, each length measured at full depth."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import lcm
from typing import Any

from ringproof.errors import InputError, printable
from ringproof.launch.flags import Flags
from ringproof.launch.full.size import PACKED
from ringproof.launch.reading import Launch
from ringproof.launch.small.layout import layout
from ringproof.rehearsal.fit.fitting import FitRequest, Fitting, Progress, Refused
from ringproof.rehearsal.fit.gpus import GIB
from ringproof.rehearsal.fit.result import Fit, as_json
from ringproof.rehearsal.fit.vary import with_settings

GRAIN = 1024
MOST = 24
"""Lengths that are tried at most; the memory is nearly linear in the length, so few are."""
LARGEST = 1 << 24


@dataclass(frozen=True)
class Length:
    """A length of sequences.

    Attributes:
        fit: What was measured; ``None`` where nothing was.
        refused: Why it was not measured.
    """

    tokens: int
    fit: Fit | None
    refused: str = ""

    @property
    def margin(self) -> int | None:
        """Bytes that stay free; ``None`` where it was not measured."""
        return None if self.fit is None else self.fit.margin


@dataclass(frozen=True)
class Longest:
    """What was tried, in order of the length.

    Attributes:
        unit: Tokens of which lengths are multiples.
        ended: Whether the next length after the longest one does not fit, or upstream refuses it.
        stopped: Why the search ended early where a length could not be measured here.
    """

    unit: int
    tried: tuple[Length, ...]
    ended: bool
    stopped: str = ""

    @property
    def best(self) -> Length | None:
        """The longest that fits."""
        fitting = [one for one in self.tried if one.margin is not None and one.margin >= 0]
        return fitting[-1] if fitting else None

    @property
    def refused(self) -> str:
        """Why upstream refuses the next length after the longest one; empty where it does not."""
        after = 0 if self.best is None else self.best.tokens + self.unit
        return next((one.refused for one in self.tried if one.tokens == after), "")


def longest(request: FitRequest, progress: Progress) -> Longest:
    """Find the longest sequence with which a launch fits.

    Raises:
        InputError: No GPU is named, the launch packs sequences, or it cannot be used.
        Refused: Upstream refuses two lengths with the same words, or one could not be measured
            here before any was found that fits.
    """
    flags = Flags(request.launch.arguments)
    if request.gpu is None:
        raise InputError("--longest", "the memory to fit in is not known; name a --gpu")
    packed = next(filter(flags.has, PACKED), None)
    if packed is not None:
        sentence = f"the lengths of a launch with {packed} come from its data; leave --longest out"
        raise InputError("--longest", sentence)
    sizes = layout(flags, request.launch.ranks)
    unit = lcm(GRAIN, sizes.tensor * sizes.context * (2 if sizes.context > 1 else 1))
    stopped = ""
    with Fitting(request, progress) as fitting:
        lengths = _Lengths(request.launch, fitting, progress)
        try:
            ended = search(lengths.margin, flags.integer("--seq-length", GRAIN), unit)
        except Refused as refused:
            ended, stopped = False, printable(refused.sentence)
            if lengths.found(unit, ended, stopped).best is None:
                raise
    found = lengths.found(unit, ended, stopped)
    if all(one.fit is None for one in found.tried):
        raise InputError("the launch", found.tried[0].refused)
    return found


@dataclass(frozen=True)
class _Lengths:
    """Measures a launch with one length after the other, and keeps what it found."""

    launch: Launch
    fitting: Fitting
    progress: Progress
    tried: dict[int, Length] = field(default_factory=dict)

    def margin(self, tokens: int) -> int | None:
        """Return the bytes that stay free; ``None`` where upstream refuses the length.

        Raises:
            Refused: It could not be measured here, or the launch is refused whatever its length.
        """
        self.progress("length", f"{tokens} tokens")
        try:
            fit = self.fitting.fit(self.fitting.prepare(with_length(self.launch, tokens)))
        except Refused as refused:
            said = printable(refused.sentence)
            at_all = [one.refused for one in self.tried.values()] == [said]
            self.tried[tokens] = Length(tokens, None, said)
            if at_all or not refused.by_upstream:
                raise
            return None
        self.tried[tokens] = Length(tokens, fit)
        return fit.margin

    def found(self, unit: int, ended: bool, stopped: str) -> Longest:
        """Return what was tried, in order of the length."""
        tried = tuple(self.tried[tokens] for tokens in sorted(self.tried))
        return Longest(unit, tried, ended, stopped)


def with_length(launch: Launch, tokens: int) -> Launch:
    """Return a launch with sequences of so many tokens."""
    positions = Flags(launch.arguments).integer("--max-position-embeddings", tokens)
    settings = (("--seq-length", tokens), ("--max-position-embeddings", max(tokens, positions)))
    return with_settings(launch, tuple((name, str(value)) for name, value in settings))


def search(margin: Callable[[int], int | None], start: int, unit: int) -> bool:
    """Try lengths until one fits and the next one does not.

    Args:
        margin: Measures a length; bytes that stay free, negative if it does not fit, ``None`` if
            it is refused.
        start: The first length, which is rounded down to a multiple of ``unit``. If it is refused,
            another one tells whether it is for its length.

    Returns:
        Whether that was found; otherwise `MOST` lengths were tried, or `LARGEST` fits.
    """
    known: dict[int, int | None] = {}
    tokens = max(start // unit, 1) * unit
    for _ in range(MOST):
        known[tokens] = margin(tokens)
        good = {at for at, left in known.items() if left is not None and left >= 0}
        low = max(good, default=0)
        high = min((at for at in known.keys() - good if at > low), default=0)
        if list(known.values()) == [None] and high == unit:
            tokens = 2 * unit
        elif high and high - low <= unit:
            return True
        elif high:
            wanted = _end(known)
            inside = wanted if wanted is not None and low <= wanted < high else (low + high) // 2
            tokens = max(inside // unit * unit, low + unit)
        elif 2 * low > LARGEST:
            return False
        else:
            tokens = 2 * low
    return False


def _end(known: Mapping[int, int | None]) -> int | None:
    """Return where the margin ends, by the line through two measured lengths near to that."""
    measured = [(at, free) for at, free in known.items() if free is not None]
    near = sorted(measured, key=lambda one: abs(one[1]))[:2]
    if len(near) < 2 or near[0][1] == near[1][1]:
        return None
    (a, free_a), (b, free_b) = near
    return int(a + free_a * (b - a) / (free_a - free_b))


def lines(found: Longest) -> Iterator[str]:
    """Yield the longest sequence that fits, and what was tried, as lines of text."""
    yield from _verdict(found)
    yield f"{'tokens':>10}{'peak GiB':>12}{'margin GiB':>12}"
    for one in found.tried:
        if one.fit is None or one.margin is None:
            yield printable(f"{one.tokens:>10}  {one.refused}")
        else:
            peak, margin = one.fit.largest.peak / GIB, one.margin / GIB
            yield f"{one.tokens:>10}{peak:>12.3f}{margin:>12.3f}"


def _verdict(found: Longest) -> Iterator[str]:
    best = found.best
    if best is None or best.fit is None or best.fit.gpu is None:
        yield "No length that was tried fits."
        return
    gpu = best.fit.gpu.name
    if found.stopped:
        yield f"{best.tokens} tokens fit on {gpu}; whether more do is not known."
        yield printable(f"The search stopped: {found.stopped}")
        return
    tail = f"of the multiples of {found.unit}" if found.ended else "of those that were tried"
    why = f"; the next length is refused: {found.refused}" if found.refused else "."
    yield printable(
        f"The longest sequence that fits on {gpu} has {best.tokens} tokens, {tail}{why}"
    )


def longest_as_json(found: Longest) -> dict[str, Any]:
    """Return everything as JSON can hold it."""
    best = found.best
    return {
        "longest": None if best is None else best.tokens,
        "unit": found.unit,
        "ended": found.ended,
        "stopped": found.stopped or None,
        "tried": [
            {
                "tokens": one.tokens,
                "refused": None if one.refused == found.stopped else one.refused or None,
                "fit": None if one.fit is None else as_json(one.fit),
            }
            for one in found.tried
        ],
    }
