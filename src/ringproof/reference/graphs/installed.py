"""The forward of a captured part: replays in place of the computation, until it is taken out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from ringproof.errors import InputError
from ringproof.reference.graphs.backend import GraphedCallable
from ringproof.reference.graphs.scopes import Part
from ringproof.reference.graphs.slots import Slot
from ringproof.reference.model.batch import Metadata, PackedBatch

Places = Mapping[Metadata, tuple[Slot, GraphedCallable]]
"""Metadata of a static microbatch to its slot, and the part's graph there."""

_ABSENT = object()
"""What an attribute was that a module had not."""


class Installed:
    """A replay for the microbatch of a slot, the part's own forward for any other.

    It takes the place of the module's forward when it is made. Hooks of the module itself run
    around it, as around the forward; they are not in the graph.

    Args:
        part: What was captured.
        places: Its graphs.

    Raises:
        InputError: The module has graphs already.
    """

    def __init__(self, part: Part, places: Places) -> None:
        check_free(part)
        self._part, self._places = part, places
        self._eager = part.module.forward
        self._before = {
            name: part.module.__dict__.get(name, _ABSENT) for name in ("forward", "recomputes")
        }
        part.module.forward = self
        if part.recompute:
            part.module.recomputes = True

    def __call__(self, x: torch.Tensor, batch: PackedBatch) -> Any:
        """What the module returns."""
        place = None if batch.metadata is None else self._places.get(batch.metadata)
        if place is None:
            return self._part.restored(self._part.run(self._eager, x, batch))
        slot, graph = place
        return self._part.restored(slot.replay(graph, x, batch))

    def remove(self) -> None:
        """Give the module back what it had. Wrapped since, it keeps that, and computes eagerly."""
        self._places = {}
        module: nn.Module = self._part.module
        if module.__dict__.get("forward") is not self:
            return
        for name, value in self._before.items():
            module.__dict__.pop(name, None)
            if value is not _ABSENT:
                setattr(module, name, value)


def check_free(part: Part) -> None:
    """Refuse a part that another bank holds: the two would replay for each other's microbatches.

    Raises:
        InputError: See above.
    """
    if isinstance(part.module.__dict__.get("forward"), Installed):
        raise InputError("parts", part.name, "has graphs already", "reset their bank first")
