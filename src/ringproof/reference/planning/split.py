"""More microbatches than the sequences need: one is split in two."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ringproof.reference.planning.costs import Batch
from ringproof.reference.planning.domain import Domain
from ringproof.reference.planning.pack import Packing, assembled


def split_to_multiple(
    packings: tuple[Packing, ...], batch: Batch, domain: Domain
) -> tuple[Packing, ...]:
    """Split the longest until the count is a multiple, or every microbatch has one sequence."""
    found = list(packings)
    while len(found) % domain.microbatch_multiple:
        able = [index for index, packing in enumerate(found) if len(packing.members) > 1]
        if not able:
            break
        longest = max(able, key=lambda index: found[index].ticks)
        found[longest : longest + 1] = _halves(found[longest], batch, domain)
    return tuple(found)


def _halves(packing: Packing, batch: Batch, domain: Domain) -> list[Packing]:
    """Every other group by time, or of a single group every other sequence."""
    if len(packing.groups) > 1:
        place = np.empty(len(packing.groups), np.int64)
        place[np.argsort(-packing.groups.time, kind="stable")] = np.arange(len(packing.groups))
        second = (place % 2 == 1)[packing.home]
    else:
        second = np.arange(len(packing.members)) % 2 == 1
    return [_part(packing, keep, batch, domain) for keep in (~second, second)]


def _part(packing: Packing, keep: npt.NDArray[np.bool_], batch: Batch, domain: Domain) -> Packing:
    """A microbatch of some of the sequences, their groups as they were, then widened."""
    members = packing.members[keep]
    old, home = np.unique(packing.home[keep], return_inverse=True)
    by_length = np.argsort(members, kind="stable")
    members, home = members[by_length], home[by_length]
    items = batch.items(members, packing.sizes)
    return assembled(items, home, packing.groups.level[old], domain, even=False)
