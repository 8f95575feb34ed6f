"""Options of a run for CUDA graphs. This module does not need torch."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ringproof.errors import InputError
from ringproof.reference.graphs.names import NAMES, OVERFLOWS, SCOPES

GRAPHS = ("off", "static", "bank")
_OF_CAPACITY = ("graphs", "graph_rows", "graph_sequences", "graphs_overflow")


@dataclass(frozen=True, kw_only=True)
class GraphOptions:
    """CUDA graphs of a run.

    Args:
        graphs: ``off``; ``static`` for packs of fixed capacity without captures; ``bank`` for the
            same computation with captured graphs.
        graph_backend: Capture backend, one of ``graphs.names.NAMES``.
        graph_scope: Part of the model that one graph captures; see ``graphs.scopes``.
        graph_warmup: Number of runs before a capture.
        graph_rows: Rows of a pack per rank; 0 for the maximum of a microbatch.
        graph_sequences: Entries of a pack, the dummy included; 0 for enough for any pack.
        graph_slots: Microbatches in flight; 0 for as many as the pipeline schedule needs.
        graphs_overflow: What happens to a microbatch that does not fit: ``error`` or ``eager``.

    Raises:
        InputError: A name is unknown, a number is negative, or an option has no effect without
            graphs.
    """

    graphs: str = "off"
    graph_backend: str = "auto"
    graph_scope: str = "layer"
    graph_warmup: int = 3
    graph_rows: int = 0
    graph_sequences: int = 0
    graph_slots: int = 0
    graphs_overflow: str = "error"

    def __post_init__(self) -> None:
        for name, known in (
            ("graphs", GRAPHS),
            ("graph_backend", NAMES),
            ("graph_scope", SCOPES),
            ("graphs_overflow", OVERFLOWS),
        ):
            value = getattr(self, name)
            if value not in known:
                raise InputError(name, value, "unknown", f"use one of {', '.join(known)}")
        for name in ("graph_warmup", "graph_rows", "graph_sequences", "graph_slots"):
            if getattr(self, name) < 0:
                raise InputError(name, getattr(self, name), "is negative", "give 0 or more")
        self._check_effect()

    def _check_effect(self) -> None:
        if self.graphs == "bank":
            return
        for field in fields(self):
            without = self.graphs == "static" and field.name in _OF_CAPACITY
            if (
                field.name != "graphs"
                and not without
                and getattr(self, field.name) != field.default
            ):
                problem = f"has no effect with --graphs {self.graphs}"
                remedy = "use bank" if field.name not in _OF_CAPACITY else "use static or bank"
                raise InputError(field.name, getattr(self, field.name), problem, remedy)


def microbatches_in_flight(microbatches: int, *, pp: int, vpp: int) -> int:
    """Return the largest number of microbatches between forward and backward in one pipeline chunk.

    The number is 1 without a pipeline. Under 1F1B it is the number of stages, or that of
    microbatches if they are fewer (GPipe). Under interleaved 1F1B it is twice the number of stages,
    since the first chunk runs a second round before its first backward.

    Args:
        microbatches: Microbatches of a step. With several chunks, a multiple of ``pp``, as in
            plans. Other numbers make longer rounds with more microbatches in flight.
        pp: Pipeline ranks.
        vpp: Chunks per pipeline rank.

    >>> [microbatches_in_flight(9, pp=pp, vpp=vpp) for pp, vpp in ((1, 1), (4, 1), (3, 2))]
    [1, 4, 6]
    """
    most = 1 if pp == 1 else pp if vpp == 1 else 2 * pp
    return min(microbatches, most)
