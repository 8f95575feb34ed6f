"""In which order passes are captured: it decides which of them may share memory.

Graphs of one pool reuse what earlier captures have freed. An activation is alive from its forward
to its backward; whatever was captured in between has other addresses, and may be replayed in
between. Whatever was captured before or after may have the same, and must not. So a pool is safe
for replays in the very order of its captures, begun anew only when nothing waits for a backward:

====================  ========================  ===============================================
captured in one pool  activations at the peak   also safe
====================  ========================  ===============================================
F0 F1 B1 B0           of both (default)         F0 B0 and F1 B1, one after the other
F0 F1 B0 B1           of both                   the same; *not* F0 again while B1 is to come
F0 B0 F1 B1           of one                    one after the other only
====================  ========================  ===============================================

Callables that are to wait for their backwards in changing company, as the slots of a pipeline
that are used again and again in one step, need a pool each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from ringproof.errors import InputError


class Pass(NamedTuple):
    """Forward or backward of one of the captures.

    Args:
        capture: Which one, counted from 0.
        direction: ``forward`` or ``backward``.
    """

    capture: int
    direction: Literal["forward", "backward"]


def default_order(captures: int) -> tuple[Pass, ...]:
    """All forwards, then all backwards in reverse, as ``make_graphed_callables`` has it.

    >>> [f"{p.direction[0]}{p.capture}" for p in default_order(2)]
    ['f0', 'f1', 'b1', 'b0']
    """
    return (
        *(Pass(index, "forward") for index in range(captures)),
        *(Pass(index, "backward") for index in reversed(range(captures))),
    )


def one_after_another(captures: int) -> tuple[Pass, ...]:
    """Each backward right after its forward: no two captures are ever in flight together.

    >>> [f"{p.direction[0]}{p.capture}" for p in one_after_another(2)]
    ['f0', 'b0', 'f1', 'b1']
    """
    return tuple(
        one
        for index in range(captures)
        for one in (Pass(index, "forward"), Pass(index, "backward"))
    )


def checked_order(order: Sequence[Pass] | None, captures: int) -> tuple[Pass, ...]:
    """The order, or the default.

    Raises:
        InputError: A pass is missing, twice there, or a backward comes before its forward.
    """
    if order is None:
        return default_order(captures)
    seen: set[Pass] = set()
    for one in order:
        early = one.direction == "backward" and Pass(one.capture, "forward") not in seen
        if one in seen or early or not 0 <= one.capture < captures:
            raise InputError(
                "order",
                f"{one.direction} {one.capture}",
                f"out of place among the passes of {captures} captures",
                "name each forward once and its backward once, later",
            )
        seen.add(one)
    if len(seen) != 2 * captures:
        raise InputError(
            "order",
            len(seen),
            f"{captures} captures have {2 * captures} passes",
            "name every forward and every backward",
        )
    return tuple(order)
