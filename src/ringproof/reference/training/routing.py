"""Moves the tokens of a step from the ranks that loaded them to the ranks that compute them.

The loader puts sequence ``i`` of a step on rank ``i % ranks`` of the domain, its *owner*. A rank
needs the real rows of its part of every microbatch: for each row the token, and the tokens that
follow it in the same sequence. Owner and receiver compute the same list of rows in the same order
from the plan, so that they do not have to exchange it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from ringproof.errors import InputError
from ringproof.reference.attention.communicator import Traffic
from ringproof.reference.model.batch import IGNORED, PackedBatch, Totals
from ringproof.reference.model.static import with_metadata
from ringproof.reference.packing.capacity import Rows, local_to_global
from ringproof.reference.packing.sequences import PackedSequences
from ringproof.reference.planning import Group
from ringproof.reference.topology.census_line import field_word
from ringproof.reference.topology.dynamic import DynamicGroups
from ringproof.reference.training.data import Documents, Tokens
from ringproof.reference.training.schedules import StepPlan

IdRows = npt.NDArray[np.unsignedinteger]
"""Token ids, ``[rows, columns]``."""
BYTE = np.dtype(np.uint8)


@dataclass(frozen=True)
class Portion:
    """Real rows of one sequence that one rank of the domain needs in one microbatch.

    ``positions`` are those of the rows in the sequence, ascending, and ``local`` those in the
    rank's part of the microbatch.
    """

    microbatch: int
    sequence: int
    positions: Rows
    local: Rows


@dataclass(frozen=True)
class LocalRows:
    """Description of the rows ``[R]`` of one rank in one microbatch, padding included.

    A row belongs to an entry of the pack, which has that many real tokens; 0 in a dummy. Padding
    continues the count of positions.
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

    With ``source``, only the rows of that owner.
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
                yield Portion(microbatch, sequence, local.positions[found], found)


def portions_by_owner(step: StepPlan, rank: int) -> list[list[Portion]]:
    """Return the rows that one rank needs from each owner, in the order of sending."""
    needed: list[list[Portion]] = [[] for _ in range(step.plan.ranks)]
    for portion in portions(step, rank):
        needed[owner(portion.sequence, step.plan.ranks)].append(portion)
    return needed


def followed(document: Tokens, positions: Rows, columns: range) -> IdRows:
    """Return rows ``[n, columns]`` of a document: column ``c`` is the token ``c`` places later.

    After the end of the document the value is 0. The receiver knows where the sequence ends.

    >>> followed(np.array([7, 8, 9], np.uint8), np.array([0, 2]), range(0, 2)).tolist()
    [[7, 8], [9, 0]]
    """
    wanted = positions[:, None] + np.asarray(columns)
    rows = document[np.minimum(wanted, len(document) - 1)]
    rows[wanted >= len(document)] = 0
    return rows


@dataclass(frozen=True, kw_only=True)
class TokenNeeds:
    """Tokens that a rank's part of the model needs.

    The embedding needs tokens, and the loss the tokens that follow: one, and ``depths`` more (MTP).
    Token ids are sent in the dtype ``ids``, the same in the whole domain.
    """

    comm_type: str = "p2p"
    depths: int = 0
    embeds: bool = True
    predicts: bool = True
    ids: np.dtype[np.unsignedinteger] = BYTE
    device: torch.device | None = None

    @property
    def columns(self) -> range:
        """Columns that it needs: 0 is the row's token, the others are the tokens after it."""
        return range(0 if self.embeds else 1, 2 + self.depths if self.predicts else 1)


def totals(step: StepPlan, depths: int) -> Totals:
    """Return the counts of the global batch, which follow from the lengths."""
    predictions = (sum(max(0, n - 1 - depth) for n in step.lengths) for depth in range(1 + depths))
    return Totals(step.tokens, tuple(predictions))


def owned_documents(documents: Documents, step: StepPlan, rank: int) -> dict[int, Tokens]:
    """Read the documents of a step that a rank of the domain loads, by their number in the step.

    Raises:
        InputError: A document cannot be read.
    """
    return {
        sequence: documents.read(document)
        for sequence, document in enumerate(step.documents)
        if owner(sequence, step.plan.ranks) == rank
    }


def route_batches(
    step: StepPlan,
    owned: Mapping[int, Tokens],
    groups: DynamicGroups,
    needs: TokenNeeds,
    *,
    traffic: Traffic | None = None,
) -> list[PackedBatch]:
    """Send every rank of a domain the rows that it computes, for all microbatches of a step.

    A collective over the domain, unless this part of the model needs no tokens.

    Args:
        step: Plan of the step, the same on all ranks.
        owned: Documents of this rank; see :func:`owned_documents`.
        groups: CP groups of every size that the plan uses.
        needs: The same in the whole domain.
        traffic: Counter of the bytes sent.

    Returns:
        This rank's microbatches in order.

    Raises:
        InputError: The plan is for another domain, a group does not exist, or a document is missing
            or has another length than planned.
    """
    if groups.domain_size != step.plan.ranks:
        problem = f"{step.plan.ranks} are not the {groups.domain_size} ranks of the domain"
        raise InputError("plan.ranks", f"{problem}; plan for these")
    rank, columns = groups.domain_rank, needs.columns
    arrived: list[IdRows | None] = [None] * len(step.plan.microbatches)
    if columns:
        outgoing = outgoing_rows(step, owned, rank, columns, needs.ids)
        needed = portions_by_owner(step, rank)
        incoming = [sum(len(portion.local) for portion in found) for found in needed]
        received = _exchange(outgoing, incoming, groups.domain, needs, traffic)
        arrived = [*place_rows(step, rank, needed, received)]
    return build_batches(step, arrived, groups, needs)


def outgoing_rows(
    step: StepPlan,
    owned: Mapping[int, Tokens],
    rank: int,
    columns: range,
    ids: np.dtype[np.unsignedinteger] = BYTE,
) -> list[IdRows]:
    """Collect the rows that a rank sends to each rank of the domain.

    Each is ``[rows, columns]`` of dtype ``ids``.

    Raises:
        InputError: A document is missing, has another length than planned, or has a wider dtype
            than ``ids``.
    """
    for sequence in range(rank, len(step.lengths), step.plan.ranks):
        if len(owned.get(sequence, ())) != step.lengths[sequence]:
            planned, found = step.lengths[sequence], len(owned.get(sequence, ()))
            problem = f"it was planned with {planned} tokens and loaded with {found}"
            raise InputError(f"sequence {sequence}", f"{problem}; load what was planned")
        kind = owned[sequence].dtype
        if not np.can_cast(kind, ids):
            problem = f"token ids of type {kind} do not fit in {ids}, in which they travel"
            raise InputError(f"sequence {sequence}", f"{problem}; give the needs wider ids")
    outgoing = []
    for receiver in range(step.plan.ranks):
        rows = [np.empty((0, len(columns)), ids)]
        for portion in portions(step, receiver, rank):
            rows.append(followed(owned[portion.sequence], portion.positions, columns))
        outgoing.append(np.concatenate(rows))
    return outgoing


def place_rows(
    step: StepPlan,
    rank: int,
    needed: Sequence[Sequence[Portion]],
    received: Sequence[IdRows],
) -> list[IdRows]:
    """Put the rows ``[rows, columns]`` from each owner into the rank's microbatches.

    Returns:
        ``[R, columns]`` for each microbatch, 0 in padding.
    """
    columns = received[0].shape[1]
    placed = [
        np.zeros((step.pack(group).rows // group.size, columns), received[0].dtype)
        for group in (step.group_of(k, rank) for k in range(len(step.plan.microbatches)))
    ]
    for found, rows in zip(needed, received, strict=True):
        taken = 0
        for portion in found:
            after = taken + len(portion.positions)
            placed[portion.microbatch][portion.local] = rows[taken:after]
            taken = after
    return placed


def _exchange(
    outgoing: list[IdRows],
    incoming: list[int],
    domain: dist.ProcessGroup,
    needs: TokenNeeds,
    traffic: Traffic | None,
) -> tuple[IdRows, ...]:
    """Exchange rows as bytes in one all-to-all. Both sides know the sizes from the plan."""
    width = len(needs.columns) * needs.ids.itemsize
    sizes = [rows.nbytes for rows in outgoing]
    send = torch.from_numpy(np.concatenate([rows.reshape(-1) for rows in outgoing]).view(np.uint8))
    send = send.to(needs.device)
    receive = torch.empty(sum(incoming) * width, dtype=torch.uint8, device=needs.device)
    if traffic is not None:
        to_others = sum(sizes) - sizes[domain.rank()]
        traffic.add(field_word(domain.group_desc), "all_to_all", to_others)
    dist.all_to_all_single(receive, send, [n * width for n in incoming], sizes, group=domain)
    rows = receive.cpu().numpy().view(needs.ids).reshape(-1, len(needs.columns))
    return tuple(np.split(rows, np.cumsum(incoming)[:-1]))


def build_batches(
    step: StepPlan,
    arrived: Sequence[IdRows | None],
    groups: DynamicGroups,
    needs: TokenNeeds,
) -> list[PackedBatch]:
    """Build a rank's microbatches from the result of :func:`place_rows`.

    The rows are ``None`` if no tokens are needed.
    """
    counts = totals(step, needs.depths)
    batches = []
    for microbatch, rows in enumerate(arrived):
        planned = step.group_of(microbatch, groups.domain_rank)
        group = groups.group(planned.size)
        packed = step.pack(planned)
        local = local_rows(step, planned, packed, groups.domain_rank - planned.first_rank)
        tokens, future = _columns(rows, local, needs)
        batch = PackedBatch(
            packed=packed,
            group=group,
            comm_type=needs.comm_type,
            partition=step.partition,
            positions=_tensor(local.positions, needs),
            entries=_tensor(local.entries, needs),
            real=_tensor(local.real, needs),
            tokens=tokens,
            future=future,
            totals=counts,
        )
        capacity = step.capacity
        if capacity is not None and capacity.has(packed, group.size):
            batch = with_metadata(batch, capacity.of_group(group.size))
        batches.append(batch)
    return batches


def _columns(
    rows: IdRows | None, local: LocalRows, needs: TokenNeeds
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return the tokens of the rows and the tokens that follow, as far as they are needed."""
    if rows is None:
        return None, None
    ids = rows.astype(np.int64)
    tokens = _tensor(ids[:, 0], needs) if needs.embeds else None
    if not needs.predicts:
        return tokens, None
    behind = ids[:, 1 if needs.embeds else 0 :].T
    distances = np.arange(1, 2 + needs.depths)[:, None]
    inside = local.positions + distances < local.lengths
    return tokens, _tensor(np.where(inside, behind, IGNORED), needs)


def _tensor(array: npt.NDArray[Any], to: TokenNeeds) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(to.device)
