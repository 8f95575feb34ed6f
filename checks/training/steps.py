"""Random steps, and all ranks of a domain played in one process."""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from ringproof.reference.model.batch import IGNORED, PackedBatch
from ringproof.reference.planning import Group, Pipeline
from ringproof.reference.planning.domain import divisors
from ringproof.reference.training.data import Tokens
from ringproof.reference.training.routing import (
    BYTE,
    IdRows,
    TokenNeeds,
    build_batches,
    outgoing_rows,
    owner,
    place_rows,
    portions_by_owner,
)
from ringproof.reference.training.schedules import Schedule, StepPlan, plan_step


def random_schedule(draw: random.Random) -> Schedule:
    """Any schedule on 1 to 12 ranks, with a budget of 8 to 96 rows."""
    ranks = draw.choice([1, 2, 3, 4, 6, 8, 12])
    sizes = divisors(ranks)
    chosen = tuple(sorted(draw.sample(sizes, draw.randint(1, len(sizes)))))
    name = draw.choice(["padded", "packed", "dynamic", "forced"])
    shards = draw.choice([1, 2])
    return Schedule(
        name="dynamic" if name == "forced" else name,
        ranks=ranks,
        max_tokens_per_rank=draw.choice([8, 24, 96]),
        cp_size=draw.choice(sizes),
        cp_sizes=chosen,
        forced_sizes=tuple(draw.sample(chosen, len(chosen))) if name == "forced" else (),
        row_shards=shards,
        partition=draw.choice(["zigzag", "contiguous"]),
        pipeline=draw.choice([Pipeline(), Pipeline(2), Pipeline(2, 2), Pipeline(3, 2)]),
    )


def random_lengths(draw: random.Random, longest: int) -> list[int]:
    """1 to 20 lengths, of which some are 1 and some as long as fits."""
    return [
        draw.choice([1, longest, draw.randint(1, longest), draw.randint(1, max(1, longest // 4))])
        for _ in range(draw.randint(1, 20))
    ]


def random_step(seed: int) -> StepPlan:
    """A step of random sequences on a random schedule."""
    draw = random.Random(seed)
    schedule = random_schedule(draw)
    lengths = random_lengths(draw, schedule.domain.longest)
    return plan_step(lengths, schedule, documents=draw.sample(range(1000), len(lengths)))


def random_documents(step: StepPlan, seed: int = 0, *, vocabulary: int = 256) -> list[Tokens]:
    """Content for each sequence; no id is 0, so that padding is told apart."""
    drawn, kind = np.random.RandomState(seed), np.min_scalar_type(vocabulary - 1)
    return [drawn.randint(1, vocabulary, size=length).astype(kind) for length in step.lengths]


def played_groups(ranks: int, rank: int) -> Any:
    """The groups of one rank that is played."""

    def group(size: int) -> SimpleNamespace:
        return SimpleNamespace(size=size, rank=rank % size)

    return SimpleNamespace(domain_size=ranks, domain_rank=rank, group=group)


def sent(
    step: StepPlan,
    documents: Sequence[Tokens],
    columns: range,
    ids: np.dtype[np.unsignedinteger] = BYTE,
) -> list[list[IdRows]]:
    """What each rank sends to each."""
    ranks = step.plan.ranks
    owned: list[dict[int, Tokens]] = [{} for _ in range(ranks)]
    for sequence, document in enumerate(documents):
        owned[owner(sequence, ranks)][sequence] = document
    return [outgoing_rows(step, owned[rank], rank, columns, ids) for rank in range(ranks)]


def played(
    step: StepPlan, documents: Sequence[Tokens], needs: TokenNeeds
) -> list[list[PackedBatch]]:
    """The microbatches of every rank, with the exchange played in this process."""
    ranks = step.plan.ranks
    outgoing = sent(step, documents, needs.columns, needs.ids)
    batches = []
    for rank in range(ranks):
        received = [outgoing[source][rank] for source in range(ranks)]
        arrived = place_rows(step, rank, portions_by_owner(step, rank), received)
        batches.append(build_batches(step, arrived, played_groups(ranks, rank), needs))
    return batches


def foreign_rows(step: StepPlan, rank: int, microbatch: int, batch: PackedBatch) -> int:
    """Real rows of a batch that another rank than this one has loaded."""
    sequences = step.group_of(microbatch, rank).sequences
    foreign = [e for e, sequence in enumerate(sequences) if sequence % step.plan.ranks != rank]
    return sum(int((batch.real & (batch.entries == entry)).sum()) for entry in foreign)


def check_batches(
    step: StepPlan, documents: Sequence[Tokens], batches: Sequence[Sequence[PackedBatch]]
) -> None:
    """Every token is computed once, in its place, with what follows it in its own document.

    The expectation is made row by row from the sequence, the position and the document.
    """
    seen: list[tuple[int, int]] = []
    for rank, own in enumerate(batches):
        assert len(own) == len(step.plan.microbatches)
        for number, batch in enumerate(own):
            assert batch.rows <= step.plan.max_tokens_per_rank
            assert batch.rows % step.rank_multiple == 0
            seen += check_batch(step.group_of(number, rank), documents, batch)
    every = [(s, p) for s, length in enumerate(step.lengths) for p in range(length)]
    assert sorted(seen) == every


def check_batch(
    group: Group, documents: Sequence[Tokens], batch: PackedBatch
) -> list[tuple[int, int]]:
    """Sequence and position of each real row, once all rows are what they should be."""
    contents = [documents[sequence].tolist() for sequence in group.sequences] or [[]]
    tokens = None if batch.tokens is None else batch.tokens.tolist()
    future = [[]] * batch.rows if batch.future is None else batch.future.T.tolist()
    columns = (batch.entries.tolist(), batch.positions.tolist(), batch.real.tolist(), future)
    seen = []
    for row, (entry, position, real, following) in enumerate(zip(*columns, strict=True)):
        document = contents[entry]
        assert real == (position < len(document))
        if tokens is not None:
            assert tokens[row] == (document[position] if real else 0)
        for after, token in enumerate(following, position + 1):
            assert token == (document[after] if after < len(document) else IGNORED)
        if real:
            seen.append((group.sequences[entry], position))
    return seen
