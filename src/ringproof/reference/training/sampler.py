"""Which documents a step has: a function of seed, global batch and step, of nothing else.

No state is kept, so a run is resumed from its step number, and two runs see the same samples
however many ranks they have.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ringproof.errors import InputError
from ringproof.reference.planning.domain import IntArray


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """Every document once per epoch, in an order drawn anew for each.

    Args:
        seed: Of the orders, from 0 to 2**32 - 1.
        global_batch: Documents of a step.
        documents: How many there are.

    Raises:
        InputError: A number out of range.
    """

    seed: int
    global_batch: int
    documents: int

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**32:
            raise InputError("seed", self.seed, "is not in [0, 2**32)", "choose another")
        for name in ("global_batch", "documents"):
            if getattr(self, name) < 1:
                raise InputError(name, getattr(self, name), "is less than 1", "give 1 or more")

    def indices(self, step: int) -> IntArray:
        """The documents of a step, ``(global_batch,)``; steps count from 0.

        A step that begins in one epoch may end in the next.
        """
        first = step * self.global_batch
        places = np.arange(first, first + self.global_batch)
        epochs = places // self.documents
        found = np.empty(self.global_batch, np.int64)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            found[here] = self._order(epoch)[places[here] % self.documents]
        return found

    def _order(self, epoch: int) -> IntArray:
        """numpy's ``RandomState``, whose numbers never change."""
        return np.random.RandomState([self.seed, epoch]).permutation(self.documents)
