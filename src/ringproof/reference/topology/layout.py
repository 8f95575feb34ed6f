"""Rank layout: the grid of tensor, context, data and pipeline parallel ranks.

Integers only: no process group is needed. The group of one rank is computed without visiting the
other ranks of the world; only ``groups`` visits them.

The order string is Megatron-LM's (``--use-tp-pp-dp-mapping`` and the ``order`` argument of
``initialize_model_parallel``): the first axis varies fastest over consecutive ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ringproof.errors import InputError, shown

AXES = ("tp", "cp", "ep", "dp", "pp")
DEFAULT_ORDER = "tp-cp-ep-dp-pp"


@dataclass(frozen=True, kw_only=True)
class RankLayout:
    """Sizes of the parallel axes and the order in which ranks run through them.

    Args:
        tp: Tensor parallel size.
        cp: Context parallel size.
        dp: Data parallel size.
        pp: Pipeline parallel size.
        ep: Expert parallel size; only 1 is laid out here (upstream lays experts out in a grid
            of their own, in which context parallelism does not occur).
        order: Axis names joined by ``-``, fastest first. An axis of size 1 may be left out.

    Raises:
        InputError: A size below 1, an ``ep`` other than 1, an unknown or repeated axis, or an
            axis larger than 1 that the order leaves out.

    >>> layout = RankLayout(tp=2, cp=2, dp=2, order="tp-cp-ep-dp-pp")
    >>> layout.world_size
    8
    >>> layout.group(("cp",), rank=5)
    (5, 7)
    >>> layout.group(("dp", "cp"), rank=0)
    (0, 2, 4, 6)
    """

    tp: int = 1
    cp: int = 1
    dp: int = 1
    pp: int = 1
    ep: int = 1
    order: str = DEFAULT_ORDER

    def __post_init__(self) -> None:
        for axis in AXES:
            if self.size(axis) < 1:
                raise InputError(axis, f"{self.size(axis)} is less than 1; give 1 or more")
        if self.ep != 1:
            problem = f"{self.ep} is given, and expert parallelism has a grid of its own"
            raise InputError("ep", f"{problem}; lay it out with ep=1")
        named = self.order.lower().split("-")
        for axis in named:
            if axis not in AXES or named.count(axis) > 1:
                problem = f"axis {axis!r} of {shown(self.order)} is unknown or repeated"
                raise InputError("order", f"{problem}; use each of {', '.join(AXES)} once")
        for axis in AXES:
            if axis not in named and self.size(axis) > 1:
                problem = f"{shown(self.order)} leaves out axis {axis!r} of size {self.size(axis)}"
                raise InputError("order", f"{problem}; name it")

    def size(self, axis: str) -> int:
        """Ranks along one axis."""
        return int(getattr(self, axis))

    @property
    def world_size(self) -> int:
        """Ranks in the whole grid."""
        return math.prod(self.size(axis) for axis in AXES)

    @property
    def axes(self) -> tuple[str, ...]:
        """The ordered axes, fastest first."""
        return tuple(self.order.lower().split("-"))

    def stride(self, axis: str) -> int:
        """Distance in global rank between neighbours along an axis (1 for an unnamed axis)."""
        if axis not in self.axes:
            return 1
        return math.prod(self.size(other) for other in self.axes[: self.axes.index(axis)])

    def coordinate(self, axis: str, rank: int) -> int:
        """Position of ``rank`` along ``axis``.

        Raises:
            InputError: The rank is outside the world.
        """
        self._check_rank(rank)
        return rank // self.stride(axis) % self.size(axis)

    def group(self, axes: tuple[str, ...], rank: int) -> tuple[int, ...]:
        """Global ranks of the group over a product of axes that contains ``rank``.

        The members run with the axis that comes first in the order string fastest, however
        ``axes`` is written; that is upstream's order of a product group.
        """
        self._check_rank(rank)
        _check_axes(axes)
        base = rank - sum(self.coordinate(axis, rank) * self.stride(axis) for axis in axes)
        return tuple(self._members(base, axes))

    def groups(self, axes: tuple[str, ...]) -> Iterator[tuple[int, ...]]:
        """Every group over a product of axes, in upstream's order of creation."""
        _check_axes(axes)
        others = tuple(axis for axis in self.axes if axis not in axes)
        for base in self._members(0, others):
            yield tuple(self._members(base, axes))

    def _members(self, base: int, axes: tuple[str, ...]) -> list[int]:
        ranks = [base]
        for axis in (axis for axis in self.axes if axis in axes):
            steps = range(0, self.size(axis) * self.stride(axis), self.stride(axis))
            ranks = [rank + step for step in steps for rank in ranks]
        return ranks

    def _check_rank(self, rank: int) -> None:
        if not 0 <= rank < self.world_size:
            problem = f"{rank} is not a rank of a world of {self.world_size}"
            raise InputError("rank", f"{problem}; give one from 0 to {self.world_size - 1}")


def _check_axes(axes: tuple[str, ...]) -> None:
    if any(axis not in AXES or axes.count(axis) > 1 for axis in axes):
        problem = f"an axis of {axes} is unknown or repeated"
        raise InputError("axes", f"{problem}; choose from {', '.join(AXES)}")
