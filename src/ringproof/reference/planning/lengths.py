"""The lengths of a batch: checked values, or a drawn distribution."""

from __future__ import annotations

import math
import operator
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from ringproof.errors import InputError, shown
from ringproof.reference.planning.forms import built
from ringproof.reference.planning.planner import MAX_SEQUENCES

MAX_LENGTH = 10**12
REMEDY = "raise --max-tokens-per-rank or --ranks, or cut the sequence"


@dataclass(frozen=True)
class Lengths:
    """Tokens of each sequence, and where each was found.

    Attributes:
        values: The lengths, each at least 1.
        source: What the user named.
        lines: Line of each in the source, where the source has lines.
    """

    values: tuple[int, ...]
    source: str
    lines: Sequence[int] | None = None

    def __len__(self) -> int:
        return len(self.values)

    def place(self, index: int) -> str:
        """Where one sequence was found, for a message."""
        if self.lines is not None:
            return f"{plain(self.source)}:{self.lines[index]}"
        return f"{plain(self.source)}[{index}]"

    def refuse_longer(self, longest: int, remedy: str = REMEDY) -> None:
        """Refuse the first sequence that no group can hold.

        Raises:
            InputError: With what can be done about it, which is ``remedy``.
        """
        if max(self.values) > longest:
            first = next(place for place, value in enumerate(self.values) if value > longest)
            problem = (
                f"the sequence of {self.values[first]:,} tokens is longer than the {longest:,} "
                "that the largest group holds"
            )
            raise InputError(self.place(first), f"{problem}; {remedy}")


def make_lengths(
    values: Iterable[int], source: str, *, lines: Sequence[int] | None = None
) -> Lengths:
    """Lengths whose values have been checked.

    Raises:
        InputError: None, too many, or one below 1 or beyond all reason; names the first.
    """
    made = Lengths(tuple(map(operator.index, values)), source, lines)
    refuse_count(len(made), source)
    if not made.values:
        raise InputError(plain(source), "there are no lengths; give at least one sequence")
    if min(made.values) < 1 or max(made.values) > MAX_LENGTH:
        bad = (n for n, value in enumerate(made.values) if not 1 <= value <= MAX_LENGTH)
        first = next(bad)
        value = made.values[first]
        problem = "less than 1" if value < 1 else f"over {MAX_LENGTH:,}"
        sentence = f"the length {shown(value)} is {problem}; correct it or leave it out"
        raise InputError(made.place(first), sentence)
    return made


def refuse_count(count: int, source: str) -> None:
    """Refuse more lengths than one batch has, before there is memory for them."""
    if count > MAX_SEQUENCES:
        problem = f"{count:,} lengths are more than {MAX_SEQUENCES:,}"
        raise InputError(plain(source), f"{problem}; plan one global batch at a time")


def plain(text: str, limit: int = 300) -> str:
    """Text in which every character can be seen, on one line."""
    clipped = text if len(text) <= limit else f"{text[:limit]}…"
    return "".join(c if c.isprintable() else f"<U+{ord(c):04X}>" for c in clipped)


_NUMBER = re.compile(r"[0-9]{1,15}(\.[0-9]{1,15})?(e[0-9]{1,2})?")
_Whole = Annotated[int, BeforeValidator(float)]


class _Lognormal(BaseModel):
    model_config = ConfigDict(extra="forbid")

    mean: Annotated[float, Field(ge=1)]
    n: Annotated[_Whole, Field(ge=1)]
    sigma: Annotated[float, Field(ge=0, le=10)] = 1.1
    min: Annotated[_Whole, Field(ge=1)] = 1
    max: Annotated[_Whole, Field(ge=1)] = MAX_LENGTH
    seed: Annotated[_Whole, Field(ge=0, le=2**32 - 1)] = 0


def lognormal(options: str) -> Lengths:
    """Draw lengths as Megatron-LM's mock data set of variable lengths does.

    ``mean`` is the mean of the distribution before values are cut to ``min`` and ``max``: the
    logarithms have mean ``ln(mean) - sigma**2 / 2`` and deviation ``sigma``. Fractions are cut
    off. With the same seed (0 there) these are its first ``n`` lengths. Source:
    ``MockSFTLowLevelDataset.generate_lognormal_samples`` of Megatron-LM's dev branch.

    Args:
        options: ``mean=1024,sigma=1.5,min=128,max=8192,n=512,seed=0``; mean and n are needed,
            sigma is 1.1 and min 1 when not given.

    Raises:
        InputError: An option that is unknown, missing, no number, or out of range.
    """
    source = plain(f"lognormal:{options}")
    pairs = [part.partition("=")[::2] for part in options.split(",") if part]
    given = {plain(name): value for name, value in pairs}
    if len(given) < len(pairs):
        raise InputError(source, "an option is given twice; leave one out")
    for name, value in given.items():
        if not _NUMBER.fullmatch(value):
            problem = f"{name} is {shown(plain(value))}, not a number from 0 on; write digits"
            raise InputError(source, problem)
    form = built(_Lognormal, given, f"{source}: ", f"write {', '.join(_Lognormal.model_fields)}")
    if form.min > form.max:
        raise InputError(source, f"min {form.min} is over max {form.max}; swap them")
    refuse_count(form.n, source)
    center, normal = math.log(form.mean) - form.sigma**2 / 2, _normal_numbers(form.seed)
    drawn = (math.exp(center + form.sigma * next(normal)) for _ in range(form.n))
    return make_lengths((int(min(max(one, form.min), form.max)) for one in drawn), source)


def _normal_numbers(seed: int) -> Iterator[float]:
    """Draw the numbers of ``numpy.random.RandomState(seed)``, with or without numpy.

    That is the Mersenne twister, seeded with one number, and the polar method, which makes two
    numbers at a time.
    """
    state = [seed]
    for place in range(1, 624):
        state.append((1812433253 * (state[-1] ^ (state[-1] >> 30)) + place) & 0xFFFFFFFF)
    twister = random.Random()
    twister.setstate((3, (*state, 624), None))
    while True:
        one, two = 2.0 * twister.random() - 1.0, 2.0 * twister.random() - 1.0
        square = one * one + two * two
        if 0.0 < square < 1.0:
            factor = math.sqrt(-2.0 * math.log(square) / square)
            yield factor * two
            yield factor * one
