"""Moves the tokens of a step from the ranks that loaded them to the ranks that compute them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from ringproof.reference.topology.census_line import field_word
from ringproof.reference.topology.dynamic import DynamicGroups
from ringproof.reference.training.documents import Documents, Tokens
from ringproof.reference.training.routes import (
    IdRows,
    LocalRows,
    Portion,
    count_rows,
    followed,
    local_rows,
    owner,
    portions,
    portions_by_owner,
)
from ringproof.reference.training.schedules import StepPlan

BYTE = np.dtype(np.uint8)


@dataclass(frozen=True, kw_only=True)
class TokenNeeds:
    """Tokens that a rank's part of the model needs.

    Args:
        comm_type: How attention communicates over a CP group.
        depths: Number of tokens predicted beyond the next one (MTP).
        embeds: Whether it has the embedding, which needs tokens.
        predicts: Whether it has the loss, which needs the tokens that follow.
        ids: Unsigned dtype in which token ids are sent, the same in the whole domain.
        device: Device of the batches.
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


def route(
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
        needs: Tokens that this rank's part of the model needs, the same in the whole domain.
        traffic: Counter of the bytes sent, or ``None``.

    Returns:
        This rank's microbatches in order.

    Raises:
        InputError: The plan is for another domain, a group does not exist, or a document is missing
            or has another length than planned.
    """
    if groups.domain_size != step.plan.ranks:
        problem = f"the domain has {groups.domain_size} ranks"
        raise InputError("plan.ranks", step.plan.ranks, problem, "plan for it")
    rank, columns = groups.domain_rank, needs.columns
    arrived: list[IdRows | None] = [None] * len(step.plan.microbatches)
    if columns:
        outgoing = outgoing_rows(step, owned, rank, columns, needs.ids)
        needed = portions_by_owner(step, rank)
        incoming = [count_rows(found) for found in needed]
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
            problem = f"was planned with {step.lengths[sequence]} tokens"
            length = len(owned.get(sequence, ()))
            raise InputError(f"sequence {sequence}", length, problem, "load what was planned")
        kind = owned[sequence].dtype
        if not np.can_cast(kind, ids):
            problem = f"its token ids do not fit in {ids}, in which they travel"
            raise InputError(f"sequence {sequence}", kind, problem, "give the needs wider ids")
    empty = np.empty((0, len(columns)), ids)
    return [
        np.concatenate(
            [
                empty,
                *(
                    followed(owned[portion.sequence], portion.positions, columns)
                    for portion in portions(step, receiver, rank)
                ),
            ]
        )
        for receiver in range(step.plan.ranks)
    ]


def place_rows(
    step: StepPlan,
    rank: int,
    needed: Sequence[Sequence[Portion]],
    received: Sequence[IdRows],
) -> list[IdRows]:
    """Put the received rows into the rank's microbatches.

    Args:
        step: The plan.
        rank: Rank of the domain that received.
        needed: Rows that it needed from each owner.
        received: ``[rows, columns]`` from each owner.

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
    """Build a rank's microbatches from the rows that arrived.

    Args:
        step: The plan.
        arrived: Rows of each microbatch from :func:`place_rows`; ``None`` if no tokens are needed.
        groups: CP groups of every size that the plan uses.
        needs: Tokens that this rank's part of the model needs.
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
            sequences=_tensor(local.entries, needs),
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
