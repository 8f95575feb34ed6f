"""The colours of CP sizes: a size has the same one on every page and picture, light and dark."""

from __future__ import annotations

import math
from typing import NamedTuple

_OF_POWERS = (
    "#8079c9", "#3f83cf", "#1c9a94", "#5f9e2f", "#b5840e", "#d65a38", "#cd4a78", "#b24dab",
    "#8f7a56",
)  # fmt: skip
"""Colours of the sizes 1, 2, 4 and so on; sizes above the last have its colour."""
_BLACK, _WHITE = "#000000", "#ffffff"
_WHITE_BELOW = 0.179
"""Luminance up to which white letters have more contrast than black ones."""


class SizeColour(NamedTuple):
    """The colour of an area, and of the letters in it, as ``#rrggbb``."""

    fill: str
    ink: str


def size_colour(size: int) -> SizeColour:
    """Return the colour of a CP size; sizes between two powers of two have one between theirs.

    Each has a contrast of at least 3 with white and with the dark ground of the pages, and its
    letters have at least 4.5 (WCAG 2.2, 1.4.11 and 1.4.3).

    >>> size_colour(4)
    SizeColour(fill='#1c9a94', ink='#000000')
    """
    power = min(math.log2(max(size, 1)), len(_OF_POWERS) - 1)
    low = min(int(power), len(_OF_POWERS) - 2)
    ends = zip(_channels(_OF_POWERS[low]), _channels(_OF_POWERS[low + 1]), strict=True)
    mixed = (round(one + (other - one) * (power - low)) for one, other in ends)
    fill = "#{:02x}{:02x}{:02x}".format(*mixed)
    return SizeColour(fill, _WHITE if luminance(fill) < _WHITE_BELOW else _BLACK)


def luminance(colour: str) -> float:
    """Return the relative luminance of WCAG 2.2 of a colour, between 0 and 1."""
    red, green, blue = (
        one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4
        for one in (channel / 255 for channel in _channels(colour))
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _channels(colour: str) -> tuple[int, ...]:
    return tuple(int(colour[place : place + 2], 16) for place in (1, 3, 5))
