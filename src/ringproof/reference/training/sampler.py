"""Chooses the documents of a step from seed, global batch and step alone.

There is no state, so a run is resumed from its step number, and runs on any number of ranks use the
same samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ringproof.errors import InputError
from ringproof.reference.planning.domain import IntArray


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """Samples every document once per epoch, in a new random order for each epoch.

    Args:
        seed: Seed of the orders, from 0 to 2**32 - 1.
        global_batch: Documents per step.
        documents: Number of documents.

    Raises:
        InputError: A number is out of range.
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
        """Return the documents of a step, shape ``(global_batch,)``. Steps count from 0.

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
        """Return the order of an epoch from numpy's ``RandomState``, whose streams never change."""
        return np.random.RandomState([self.seed, epoch]).permutation(self.documents)
