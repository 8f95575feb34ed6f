"""Which rows of which document a rank needs, from the plan alone. Plain arrays, for any rank.

Sequence ``i`` of a step lies where the loader put it: on rank ``i % ranks`` of the domain, its
*owner*. A rank needs the real rows of its share of every microbatch, and of each row the token and
those that follow it in the same sequence. Owner and receiver list the same rows in the same order,
so that neither has to tell the other what it sends.
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
    """The real rows of one sequence that one rank needs in one microbatch; at least one.

    Args:
        rank: Of the domain; who needs them.
        microbatch: When.
        sequence: Of which sequence of the step.
        positions: Where they stand in the sequence, ascending.
        local: Where they stand in the rank's rows of the microbatch.
    """

    rank: int
    microbatch: int
    sequence: int
    positions: Rows
    local: Rows


@dataclass(frozen=True)
class LocalRows:
    """What the rows of one rank in one microbatch are, padding included.

    Args:
        entries: ``[R]``, entry of the pack that each row belongs to.
        positions: ``[R]``, position in that entry; padding goes on counting.
        lengths: ``[R]``, tokens of the data in that entry; 0 in a dummy.
    """

    entries: Rows
    positions: Rows
    lengths: Rows

    @property
    def real(self) -> npt.NDArray[np.bool_]:
        """``[R]``, whether a row holds a token of the data."""
        return self.positions < self.lengths


def owner(sequence: int, ranks: int) -> int:
    """The rank of the domain on which the loader put a sequence of the step."""
    return sequence % ranks


def local_rows(step: StepPlan, group: Group, packed: PackedSequences, place: int) -> LocalRows:
    """The rows of the rank with index ``place`` in a group."""
    rows = local_to_global(packed, group.size, place, step.partition)
    starts = np.asarray(packed.cu_seqlens_padded)
    # Among entries without rows the last one that starts here is meant: side="right".
    entries = np.searchsorted(starts, rows, side="right") - 1
    lengths = np.zeros(len(starts) - 1, np.int64)
    lengths[: len(group.sequences)] = [step.lengths[s] for s in group.sequences]
    return LocalRows(entries, rows - starts[entries], lengths[entries])


def portions(step: StepPlan, rank: int, source: int | None = None) -> Iterator[Portion]:
    """What one rank needs, by microbatch and then in the order of the pack.

    Args:
        step: The plan.
        rank: Of the domain; who needs it.
        source: From which owner; from all of them when ``None``.
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
    """What one rank needs from each owner, in the order in which the owner sends it."""
    needed = tuple(portions(step, rank))
    ranks = step.plan.ranks
    return tuple(
        tuple(portion for portion in needed if owner(portion.sequence, ranks) == source)
        for source in range(ranks)
    )


def count_rows(found: Iterable[Portion]) -> int:
    """Rows of some portions."""
    return sum(len(portion.positions) for portion in found)


def followed(document: Tokens, positions: Rows, columns: range) -> IdRows:
    """Rows of a document: column ``c`` is the token ``c`` places behind the row's.

    Behind the end it is 0: who receives the row knows where the sequence ends.

    Args:
        document: ``[L]``.
        positions: ``[n]``, of the rows.
        columns: Which columns; 0 is the row's own token.

    Returns:
        ``[n, len(columns)]``.

    >>> followed(np.array([7, 8, 9], np.uint8), np.array([0, 2]), range(0, 2)).tolist()
    [[7, 8], [9, 0]]
    """
    wanted = positions[:, None] + np.asarray(columns)
    rows = document[np.minimum(wanted, len(document) - 1)]
    rows[wanted >= len(document)] = 0
    return rows
