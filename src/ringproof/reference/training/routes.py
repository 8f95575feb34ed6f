"""The rows of documents that each rank needs, computed from the plan for any rank.

The loader puts sequence ``i`` of a step on rank ``i % ranks`` of the domain, its *owner*. A rank
needs the real rows of its part of every microbatch: for each row the token, and the tokens that
follow it in the same sequence. Owner and receiver compute the same list of rows in the same order,
so that they do not have to exchange it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ringproof.reference.packing.maps import Rows, local_to_global
from ringproof.reference.packing.sequences import PackedSequences
from ringproof.reference.planning import Group
from ringproof.reference.training.documents import Tokens
from ringproof.reference.training.schedules import StepPlan

IdRows = npt.NDArray[np.unsignedinteger]
"""Token ids, ``[rows, columns]``."""


@dataclass(frozen=True)
class Portion:
    """Real rows of one sequence that one rank needs in one microbatch; at least one row.

    Args:
        rank: Rank of the domain that needs the rows.
        microbatch: Index of the microbatch.
        sequence: Index of the sequence in the step.
        positions: Positions of the rows in the sequence, ascending.
        local: Positions of the rows in the rank's part of the microbatch.
    """

    rank: int
    microbatch: int
    sequence: int
    positions: Rows
    local: Rows


@dataclass(frozen=True)
class LocalRows:
    """Description of the rows of one rank in one microbatch, padding included.

    Args:
        entries: ``[R]``, entry of the pack that each row belongs to.
        positions: ``[R]``, position in that entry. Padding continues the count.
        lengths: ``[R]``, real tokens in that entry; 0 in a dummy.
    """

    entries: Rows
    positions: Rows
    lengths: Rows

    @property
    def real(self) -> npt.NDArray[np.bool_]:
        """``[R]``, whether a row holds a real token."""
        return self.positions < self.lengths


def owner(sequence: int, ranks: int) -> int:
    """Return the rank of the domain on which the loader puts a sequence of the step."""
    return sequence % ranks


def local_rows(step: StepPlan, group: Group, packed: PackedSequences, place: int) -> LocalRows:
    """Describe the rows of the rank with index ``place`` in a group."""
    rows = local_to_global(packed, group.size, place, step.partition)
    starts = np.asarray(packed.cu_seqlens_padded)
    # Of several entries that start here, only the last one has rows: side="right".
    entries = np.searchsorted(starts, rows, side="right") - 1
    lengths = np.zeros(len(starts) - 1, np.int64)
    lengths[: len(group.sequences)] = [step.lengths[s] for s in group.sequences]
    return LocalRows(entries, rows - starts[entries], lengths[entries])


def portions(step: StepPlan, rank: int, source: int | None = None) -> Iterator[Portion]:
    """Yield the rows that one rank needs, by microbatch and then in the order of the pack.

    Args:
        step: The plan.
        rank: Rank of the domain that needs the rows.
        source: Owner of the rows; all owners when ``None``.
    """
    for microbatch in range(len(step.plan.microbatches)):
        group = step.group_of(microbatch, rank)
        wanted = [
            source is None or owner(sequence, step.plan.ranks) == source
            for sequence in group.sequences
        ]
        if not any(wanted):
            continue
        local = local_rows(step, group, step.pack(group), rank - group.first_rank)
        for entry in np.flatnonzero(wanted).tolist():
            found = np.flatnonzero((local.entries == entry) & local.real)
            if len(found):
                sequence = group.sequences[entry]
                yield Portion(rank, microbatch, sequence, local.positions[found], found)


def portions_by_owner(step: StepPlan, rank: int) -> tuple[tuple[Portion, ...], ...]:
    """Return the rows that one rank needs from each owner, in the order of sending."""
    needed = tuple(portions(step, rank))
    ranks = step.plan.ranks
    return tuple(
        tuple(portion for portion in needed if owner(portion.sequence, ranks) == source)
        for source in range(ranks)
    )


def count_rows(found: Iterable[Portion]) -> int:
    """Count the rows of portions."""
    return sum(len(portion.positions) for portion in found)


def followed(document: Tokens, positions: Rows, columns: range) -> IdRows:
    """Return rows of a document: column ``c`` is the token ``c`` positions after the row's.

    After the end of the document the value is 0. The receiver knows where the sequence ends.

    Args:
        document: ``[L]``.
        positions: ``[n]``, positions of the rows.
        columns: Columns to return; 0 is the row's own token.

    Returns:
        ``[n, len(columns)]``.

    >>> followed(np.array([7, 8, 9], np.uint8), np.array([0, 2]), range(0, 2)).tolist()
    [[7, 8], [9, 0]]
    """
    wanted = positions[:, None] + np.asarray(columns)
    rows = document[np.minimum(wanted, len(document) - 1)]
    rows[wanted >= len(document)] = 0
    return rows
