"""Batches on which upstream's schedulers fail, so that ours is shown the very same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Batch:
    """Lengths, and what they are to be planned for.

    Attributes:
        multiple: The number of microbatches is a multiple of this (virtual pipeline stages).
        smallest: Size of the smallest group.
    """

    lengths: tuple[int, ...]
    ranks: int
    budget: int = 1024
    multiple: int = 1
    smallest: int = 1


TOO_FEW = Batch((1000, 3000), ranks=16, budget=512, multiple=4)
LOOPS = Batch((625, 367, 42, 833, 926, 492, 703, 206, 199, 995), ranks=24, budget=512, multiple=4)
ODD_SMALLEST = Batch((100, 200), ranks=8, smallest=3)
ROUNDED_PAST_THE_DOMAIN = Batch((3000,), ranks=6, budget=512)
MISALIGNED = Batch((1189, 1277, 3768, 1717, 1550, 3374, 1114, 387, 3753, 1685), ranks=8)
NO_SUCH_GROUP = Batch((1500, 4000), ranks=6)
NO_SUCH_GROUP_OF_TWELVE = Batch((167, 3231), ranks=12)
INDEX_ERROR = Batch((4000, 4000), ranks=10)
SHARED_LISTS = Batch((2000, 2000), ranks=8)
ONE_SAMPLE_FOR_FOUR = Batch((8000,), ranks=8, multiple=4)

PLANNED_BY_DEV: Mapping[str, Batch] = MappingProxyType(
    {
        "too few": TOO_FEW,
        "too few, no virtual stages": replace(TOO_FEW, multiple=1),
        "loops": LOOPS,
        "loops, 32 ranks": replace(LOOPS, ranks=32),
        "smallest 3": ODD_SMALLEST,
        "smallest 2": replace(ODD_SMALLEST, smallest=2),
        "smallest 4": replace(ODD_SMALLEST, smallest=4),
        "rounded past the domain": ROUNDED_PAST_THE_DOMAIN,
        "misaligned": MISALIGNED,
        "shared lists": SHARED_LISTS,
    }
)
TIMED = ((1024, 32), (2048, 64), (4096, 128))
"""Sequences and ranks of the batches whose planning is timed."""


def lognormal(count: int) -> npt.NDArray[np.int64]:
    """Lengths as in upstream's example: mean 1,024, sigma 1.5, cut to 128 ... 8,192."""
    drawn = np.random.default_rng(0).standard_normal(count)
    lengths = np.exp(np.log(1024) - 1.5**2 / 2 + 1.5 * drawn)
    return np.clip(np.rint(lengths), 128, 8192).astype(np.int64)
