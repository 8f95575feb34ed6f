"""Whether a run computes on packs of fixed capacity, and which of it is replayed. No torch."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ringproof.errors import InputError
from ringproof.reference.graphs.names import NAMES, OVERFLOWS, SCOPES

GRAPHS = ("off", "static", "bank")
_OF_CAPACITY = ("graphs", "graph_rows", "graph_sequences", "graphs_overflow")


@dataclass(frozen=True, kw_only=True)
class GraphOptions:
    """Graphs of a run.

    Args:
        graphs: ``off``; ``static``: every pack has the capacity, nothing is captured; ``bank``:
            the same computation, replayed.
        graph_backend: What captures: one of ``graphs.names.NAMES``.
        graph_scope: What one graph holds: see ``graphs.scopes``.
        graph_warmup: Runs before a capture.
        graph_rows: Rows on a rank; 0: as many as a rank may have in a microbatch.
        graph_sequences: Entries of a pack, a dummy included; 0: enough for any pack.
        graph_slots: Microbatches in flight; 0: as many as the pipeline's schedule needs.
        graphs_overflow: What becomes of a microbatch that does not fit: ``error`` or ``eager``.

    Raises:
        InputError: An unknown name, a negative number, or what has no effect without graphs.
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
    """The most that wait for their backwards in one chunk of a pipeline rank.

    One without a pipeline; one for each stage under 1F1B (GPipe, for fewer microbatches than
    stages, has all of them); under interleaved 1F1B, where the first chunk has run a second round
    before its first backward, two for each stage.

    Args:
        microbatches: Of a step; with several chunks a multiple of ``pp``, as plans are. Other
            numbers make longer rounds, and more of them wait.
        pp: Pipeline ranks.
        vpp: Chunks of each.

    >>> [microbatches_in_flight(9, pp=pp, vpp=vpp) for pp, vpp in ((1, 1), (4, 1), (3, 2))]
    [1, 4, 6]
    """
    most = 1 if pp == 1 else pp if vpp == 1 else 2 * pp
    return min(microbatches, most)
