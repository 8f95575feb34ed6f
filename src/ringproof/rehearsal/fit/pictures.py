"""The picture of a rank's memory over its last step, with one area for each kind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ringproof.rehearsal.fit.gpus import CONTEXT_BYTES, CUBLAS_BYTES, GIB, Gpu
from ringproof.rehearsal.fit.result import RankMemory

WIDTH, HEIGHT = 1000.0, 100.0
"""Size of the drawing's coordinates, which a page stretches."""
STACK = (
    "parameters", "gradients", "optimizer", "buffers", "activations", "communication",
    "temporaries",
)  # fmt: skip
"""Kinds of memory from the bottom up: first those that stay."""
CUBLAS = "cuBLAS"
NEAR = 2.0
"""A GPU's memory is drawn if it is less than so many times the peak."""
LABELS = 5


@dataclass(frozen=True)
class Area:
    """One kind of memory.

    Attributes:
        points: Corners of its polygon.
        at_peak: Bytes of this kind when all memory is highest in the step.
    """

    kind: str
    points: str
    at_peak: int


@dataclass(frozen=True)
class Picture:
    """Memory over a step.

    Attributes:
        areas: From the bottom up.
        peak: Highest bytes of the step.
        peak_x: Where that is, from 0 to 1.
        peak_y: Its height, from 0 to 1 of the axis.
        axis: Labels in GiB with their heights from 0 to 1.
        limit: Height of what the GPU leaves to torch; ``None`` where it is not drawn.
        moments: Points along the step.
    """

    areas: tuple[Area, ...]
    peak: int
    peak_x: float
    peak_y: float
    axis: tuple[tuple[str, float], ...]
    limit: float | None
    moments: int


def picture(rank: RankMemory, gpu: Gpu | None) -> Picture | None:
    """Return the picture of a rank's last step; ``None`` where nothing was noted.

    Args:
        gpu: What it shall fit on; ``None`` where nobody asked.
    """
    moments = [{CUBLAS: CUBLAS_BYTES, **moment} for moment in rank.memory.timeline]
    if not moments:
        return None
    totals = [sum(moment.values()) for moment in moments]
    highest = max(range(len(totals)), key=totals.__getitem__)
    room = None if gpu is None else gpu.bytes - CONTEXT_BYTES
    drawn = room is not None and 0 < room < NEAR * totals[highest]
    top = 1.04 * max(totals[highest], room if drawn and room else 0)
    return Picture(
        tuple(_areas(moments, top, highest)),
        totals[highest],
        highest / max(len(moments) - 1, 1),
        totals[highest] / top,
        tuple(_axis(top)),
        room / top if drawn and room else None,
        len(moments),
    )


def _areas(moments: list[dict[str, int]], top: float, highest: int) -> Iterator[Area]:
    below = [0] * len(moments)
    for kind in (CUBLAS, *STACK):
        above = [low + moment.get(kind, 0) for low, moment in zip(below, moments, strict=True)]
        if above != below:
            points = [*_line(above, top), *reversed(list(_line(below, top)))]
            yield Area(kind, " ".join(points), moments[highest].get(kind, 0))
        below = above


def _line(levels: list[int], top: float) -> Iterator[str]:
    """Yield the corners of a line; one moment is a line, too."""
    wide = [*levels, levels[-1]] if len(levels) == 1 else levels
    for place, level in enumerate(wide):
        yield f"{WIDTH * place / (len(wide) - 1):.1f},{HEIGHT * (1 - level / top):.2f}"


def _axis(top: float) -> Iterator[tuple[str, float]]:
    """Yield round numbers of GiB."""
    whole = top / GIB
    step = 10.0**-3
    while whole / step > LABELS:
        step *= 2.5 if f"{step:e}".startswith("2") else 2
    for place in range(int(whole / step) + 1):
        yield f"{place * step:g}", place * step / whole


def kinds(pictures: Iterable[Picture | None]) -> list[str]:
    """Return the kinds of memory that any of some pictures has, from the bottom up."""
    drawn = {area.kind for picture in pictures if picture for area in picture.areas}
    return [kind for kind in (CUBLAS, *STACK) if kind in drawn]
