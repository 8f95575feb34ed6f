"""Steps that are the same calls for every pack of a group's fixed size.

A step table (``steps``) is integers of one pack, which a captured graph would bake in. Here a step
is one tile of all local rows and all rows of the block, under a mask of tensors (``masks``).
"""

from __future__ import annotations

from ringproof.reference.attention.masks import RowMask, RowTable
from ringproof.reference.attention.steps import Step, Tile
from ringproof.reference.packing.partition import Span


def masked_steps(
    table: RowTable, rank: int, *, causal: bool, ordered: bool = False
) -> tuple[Step, ...]:
    """The steps of one rank, in the order of ``step_table``, each of one masked tile.

    Args:
        table: The rows of the ranks among which blocks move.
        ordered: Whether the rows of each rank come before those of the next in every pack, as in
            the contiguous partition. Under a causal mask the blocks of later ranks are then
            hidden as a whole, and their steps are empty.
    """
    size, rows = table.sequences.shape
    everything = Span(0, rows)
    steps = []
    for step in range(size):
        source = (rank - step) % size
        if causal and ordered and source > rank:
            steps.append(Step(source, ()))
            continue
        queries = table.sequences[rank], table.positions[rank]
        keys = table.sequences[source], table.positions[source]
        tile = Tile(everything, everything, causal=False, mask=RowMask(queries, keys, causal))
        steps.append(Step(source, (tile,)))
    return tuple(steps)
