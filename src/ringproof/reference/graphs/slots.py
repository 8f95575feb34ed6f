"""A slot: room for one microbatch from its entry to its last backward, and who is in it.

Its tensors are overwritten for each microbatch. So a microbatch that enters gets an object of its
own around them. Whoever replays has to show that object: one of a microbatch that was there before
is refused, since what it speaks of is gone.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import replace

import torch

from ringproof.errors import InputError
from ringproof.reference.graphs.backend import GraphedCallable, Outputs
from ringproof.reference.graphs.key import GraphKey
from ringproof.reference.model.batch import PackedBatch
from ringproof.reference.model.static import batch_tensors


class Slot:
    """See the file.

    Args:
        batches: CP size to the static microbatch.
        rows: Static rows of each part; CP sizes share them.
    """

    def __init__(
        self, batches: Mapping[int, PackedBatch], rows: Mapping[str, torch.Tensor]
    ) -> None:
        self.batches, self.rows = batches, rows
        self.graphs: dict[GraphKey, GraphedCallable] = {}
        self._inside: weakref.ref[PackedBatch] | None = None
        self._is_new = False  # entered, and nothing was replayed for it yet

    @property
    def taken(self) -> bool:
        """Whether the microbatch in it is yet to be replayed, or waits for a backward.

        One that nobody holds any more, and one whose results nobody holds, have left it: an
        exception between forward and backward takes no slot away.
        """
        waits = self._is_new and self._inside is not None and self._inside() is not None
        return waits or any(graph.in_flight for graph in self.graphs.values())

    def enter(self, size: int) -> PackedBatch:
        """The microbatch that the static tensors of a CP size now are."""
        entered = replace(self.batches[size])
        self._inside, self._is_new = weakref.ref(entered), True
        return entered

    def replay(self, graph: GraphedCallable, x: torch.Tensor, batch: PackedBatch) -> Outputs:
        """Replay one of its graphs.

        Raises:
            InputError: Another microbatch has entered since this one did.
        """
        if self._inside is None or self._inside() is not batch:
            problem = "it has left its slot: another one was entered since, or it was copied"
            raise InputError("microbatch", None, problem, "use what GraphBank.enter returned last")
        self._is_new = False
        return graph(x, *batch_tensors(batch).values())
