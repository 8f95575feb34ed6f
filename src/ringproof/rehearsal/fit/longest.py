"""The longest sequence with which a launch fits on its GPUs, each length measured at full depth."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import lcm
from typing import Any

from ringproof.errors import InputError, printable
from ringproof.launch.flags import Flags
from ringproof.launch.reading import Launch
from ringproof.launch.small.layout import layout
from ringproof.rehearsal.fit.fitting import FitRequest, Fitting, Progress, Refused
from ringproof.rehearsal.fit.gpus import GIB
from ringproof.rehearsal.fit.result import PACKED, Fit, as_json
from ringproof.rehearsal.fit.vary import with_settings

GRAIN = 1024
MOST = 24
"""Lengths that are tried at most; the memory is nearly linear in the length, so few are."""
LARGEST = 1 << 24


@dataclass(frozen=True)
class Length:
    """A length of sequences.

    Attributes:
        fit: What was measured; ``None`` where upstream refuses it.
        refused: Why it was not measured.
    """

    tokens: int
    fit: Fit | None
    refused: str = ""

    @property
    def margin(self) -> int | None:
        """Bytes that stay free; ``None`` where it was refused."""
        return None if self.fit is None else self.fit.margin


@dataclass(frozen=True)
class Longest:
    """What was tried, in order of the length.

    Attributes:
        unit: Tokens of which lengths are multiples.
        ended: Whether the next length after the longest one was tried, too.
    """

    unit: int
    tried: tuple[Length, ...]
    ended: bool

    @property
    def best(self) -> Length | None:
        """The longest that fits."""
        fitting = [one for one in self.tried if one.margin is not None and one.margin >= 0]
        return fitting[-1] if fitting else None


def longest(request: FitRequest, progress: Progress) -> Longest:
    """Find the longest sequence with which a launch fits.

    Raises:
        InputError: No GPU is named, the launch packs sequences, or it cannot be used.
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
    tried: dict[int, Length] = {}
    with Fitting(request, progress) as fitting:

        def margin(tokens: int) -> int | None:
            progress("length", f"{tokens} tokens")
            try:
                fit = fitting.fit(fitting.prepare(with_length(request.launch, tokens)))
                tried[tokens] = Length(tokens, fit)
            except Refused as refused:
                tried[tokens] = Length(tokens, None, printable(refused.sentence))
            return tried[tokens].margin

        ended = search(margin, flags.integer("--seq-length", GRAIN), unit)
    return Longest(unit, tuple(tried[tokens] for tokens in sorted(tried)), ended)


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
        start: The first length, which is rounded down to a multiple of ``unit``.

    Returns:
        Whether that was found; otherwise `MOST` lengths were tried, or `LARGEST` fits.
    """
    known: dict[int, int | None] = {}
    tokens = max(start // unit, 1) * unit
    for _ in range(MOST):
        known[tokens] = margin(tokens)
        good = {at for at, left in known.items() if left is not None and left >= 0}
        low, high = max(good, default=0), min(known.keys() - good, default=0)
        if high and high - low <= unit:
            return True
        if high:
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
    """Yield what was tried as lines of text."""
    yield f"{'tokens':>10}{'peak GiB':>12}{'margin GiB':>12}"
    for one in found.tried:
        if one.fit is None or one.margin is None:
            yield printable(f"{one.tokens:>10}  {one.refused}")
        else:
            peak, margin = one.fit.largest.peak / GIB, one.margin / GIB
            yield f"{one.tokens:>10}{peak:>12.3f}{margin:>12.3f}"
    best = found.best
    if best is None or best.fit is None or best.fit.gpu is None:
        yield "No length that was tried fits."
        return
    tail = f"of the multiples of {found.unit}" if found.ended else "of those that were tried"
    yield f"The longest sequence that fits on {best.fit.gpu.name} has {best.tokens} tokens, {tail}."


def longest_as_json(found: Longest) -> dict[str, Any]:
    """Return everything as JSON can hold it."""
    best = found.best
    return {
        "longest": None if best is None else best.tokens,
        "unit": found.unit,
        "ended": found.ended,
        "tried": [
            {
                "tokens": one.tokens,
                "refused": one.refused or None,
                "fit": None if one.fit is None else as_json(one.fit),
            }
            for one in found.tried
        ],
    }
