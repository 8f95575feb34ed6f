"""Hierarchical groups: one context parallel group divided into nested levels.

Level 0 is the innermost: consecutive members, where the all-to-all runs. Each further level
joins the same position of neighbouring blocks of the level below. Sizes are listed inner to
outer, as in Megatron-LM's ``--hierarchical-context-parallel-sizes``.

Worked table, 8 members, sizes (2, 4):

    level 0   {0,1} {2,3} {4,5} {6,7}
    level 1   {0,2,4,6} {1,3,5,7}

and with sizes (2, 2, 2):

    level 0   {0,1} {2,3} {4,5} {6,7}
    level 1   {0,2} {1,3} {4,6} {5,7}
    level 2   {0,4} {1,5} {2,6} {3,7}
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ringproof.errors import InputError

FIELD = "hierarchical_context_parallel_sizes"
"""Upstream's name of the option."""


def check_sizes(sizes: Sequence[int], group_size: int) -> tuple[int, ...]:
    """The level sizes as a tuple, once their product is the group's size.

    Raises:
        InputError: No level, a level below 1, or a product other than ``group_size``. Upstream
            ends the same mistake with a bare ``AssertionError``.
    """
    if not sizes or any(size < 1 for size in sizes):
        problem = f"{list(sizes)} is not a list of sizes of 1 or more"
        raise InputError(FIELD, f"{problem}; list them inner to outer, such as 2,4")
    if math.prod(sizes) != group_size:
        problem = f"the product of {list(sizes)} is {math.prod(sizes)}"
        raise InputError(FIELD, f"{problem}, and the CP size {group_size}; make them equal")
    return tuple(sizes)


def level_groups(
    members: Sequence[int], sizes: Sequence[int], *, level: int
) -> Iterator[tuple[int, ...]]:
    """Every group of a level, in upstream's order of creation.

    >>> list(level_groups(range(8), (2, 4), level=1))
    [(0, 2, 4, 6), (1, 3, 5, 7)]
    """
    sizes = check_sizes(sizes, len(members))
    stride = math.prod(sizes[:level])
    block = stride * sizes[level]
    for start in range(0, len(members), block):
        for offset in range(stride):
            yield tuple(members[start + offset + step * stride] for step in range(sizes[level]))
