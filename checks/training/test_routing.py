"""Every rank gets the rows it computes, once, with the right token and the right ones after it.

All ranks are played in one process; ``smoke/test_batch_routing.py`` does it with real ones.
"""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from checks.training import steps as steps_module
from checks.training.steps import (
    check_batches,
    foreign_rows,
    played,
    random_documents,
    random_step,
    sent,
)
from ringproof.errors import InputError
from ringproof.reference.model.batch import IGNORED
from ringproof.reference.packing.capacity import Rows, row_arrays
from ringproof.reference.training import routing
from ringproof.reference.training.data import Tokens
from ringproof.reference.training.routing import (
    IdRows,
    LocalRows,
    Portion,
    TokenNeeds,
    outgoing_rows,
    totals,
)
from ringproof.reference.training.schedules import Schedule, StepPlan, plan_step

steps = st.integers(0, 2**32).map(random_step)


def forced_step() -> StepPlan:
    """Six sequences on groups of 1, 2 and 4."""
    schedule = Schedule(name="dynamic", ranks=4, max_tokens_per_rank=64, forced_sizes=(1, 2, 4))
    return plan_step([5, 9, 14, 3, 30, 8], schedule)


@given(steps, st.integers(0, 3))
def test_every_row_arrives_once_with_what_follows_it(step: StepPlan, depths: int) -> None:
    documents = random_documents(step)
    check_batches(step, documents, played(step, documents, TokenNeeds(depths=depths)))


@pytest.mark.parametrize("vocabulary", [300, 151_936])
def test_token_ids_wider_than_a_byte_arrive(vocabulary: int) -> None:
    step, ids = forced_step(), np.min_scalar_type(vocabulary - 1)
    documents = random_documents(step, vocabulary=vocabulary)
    assert max(int(document.max()) for document in documents) > 255
    check_batches(step, documents, played(step, documents, TokenNeeds(depths=1, ids=ids)))
    with pytest.raises(InputError, match="do not fit in uint8, in which they travel"):
        played(step, documents, TokenNeeds(depths=1))


@given(steps)
def test_metadata_are_those_of_the_packing(step: StepPlan) -> None:
    """Positions and real rows, from the pack itself; under ``padded`` more rows count as real."""
    batches = played(step, random_documents(step), TokenNeeds())
    for rank, own in enumerate(batches):
        for number, batch in enumerate(own):
            place = rank - step.group_of(number, rank).first_rank
            arrays = row_arrays(batch.packed, batch.group.size, step.partition)
            computed = torch.from_numpy(arrays.sequences[place] >= 0)
            positions = np.concatenate([np.arange(rows) for rows in batch.packed.padded_lengths])
            assert batch.positions.tolist() == positions[arrays.places[place]].tolist()
            assert not (batch.real & ~computed).any()
            if step.computed == tuple(step.lengths):
                assert batch.real.equal(computed)
            assert len(computed) == batch.rows


@given(steps, st.integers(0, 2), st.booleans(), st.booleans())
def test_no_byte_moves_that_is_not_needed(
    step: StepPlan, depths: int, embeds: bool, predicts: bool
) -> None:
    """A rank receives of other ranks' documents exactly its real rows of them, and once."""
    needs = TokenNeeds(depths=depths, embeds=embeds, predicts=predicts)
    assume(needs.columns)
    documents = random_documents(step)
    moved = sent(step, documents, needs.columns)
    batches = played(step, documents, needs)
    for rank, own in enumerate(batches):
        needed = sum(foreign_rows(step, rank, number, batch) for number, batch in enumerate(own))
        received = sum(
            moved[source][rank].nbytes for source in range(step.plan.ranks) if source != rank
        )
        assert received == needed * (embeds + (1 + depths) * predicts)


@given(steps, st.integers(0, 3))
def test_totals_are_the_labels_that_there_are(step: StepPlan, depths: int) -> None:
    batches = played(step, random_documents(step), TokenNeeds(depths=depths))
    every = [batch for own in batches for batch in own]
    counts = totals(step, depths)
    assert counts.tokens == sum(int(batch.real.sum()) for batch in every)
    labels = [sum(int((b.future[d] != IGNORED).sum()) for b in every) for d in range(depths + 1)]
    assert counts.predictions == tuple(labels)
    assert all(batch.totals == counts for batch in every)


def test_a_dummy_group_runs_on_the_least_rows() -> None:
    schedule = Schedule(
        name="dynamic", ranks=4, max_tokens_per_rank=32, forced_sizes=(2,), row_shards=2
    )
    step = plan_step([6], schedule)
    batches = played(step, random_documents(step), TokenNeeds(depths=1))
    assert [own[0].rows for own in batches] == [4, 4, 4, 4]
    for own in batches[2:]:
        assert own[0].packed.sequences == 0 and not own[0].real.any()
        assert own[0].future.eq(IGNORED).all() and own[0].tokens.eq(0).all()


@pytest.mark.parametrize(
    ("needs", "columns", "holds"),
    [
        (TokenNeeds(depths=2), range(4), (True, True)),
        (TokenNeeds(depths=2, predicts=False), range(1), (True, False)),
        (TokenNeeds(depths=2, embeds=False), range(1, 4), (False, True)),
        (TokenNeeds(embeds=False, predicts=False), range(1, 1), (False, False)),
    ],
)
def test_a_stage_gets_what_it_takes(
    needs: TokenNeeds, columns: range, holds: tuple[bool, bool]
) -> None:
    step = forced_step()
    assert needs.columns == columns
    if not columns:
        return
    documents = random_documents(step)
    batches = played(step, documents, needs)
    check_batches(step, documents, batches)
    for batch in (batch for own in batches for batch in own):
        assert (batch.tokens is not None, batch.future is not None) == holds


def test_what_was_not_planned_is_refused() -> None:
    step = forced_step()
    documents = random_documents(step)
    owned = {0: documents[0], 4: documents[4]}
    for short, tokens in (({**owned, 4: documents[4][1:]}, 29), ({0: documents[0]}, 0)):
        message = f"sequence 4: it was planned with 30 tokens and loaded with {tokens}"
        with pytest.raises(InputError, match=message):
            outgoing_rows(step, short, 0, range(2))


def wrong_order(step: StepPlan, rank: int) -> list[list[Portion]]:
    """The receiver lists what it needs the other way round."""
    return [found[::-1] for found in routing.portions_by_owner(step, rank)]


def on_own_rows(document: Tokens, positions: Rows, columns: range) -> IdRows:
    """What follows is looked for among the rank's own rows: wrong where a chunk ends."""
    own = document[positions]
    return np.stack([np.concatenate([own[c:], own[:c]]) for c in columns], axis=1)


def no_end(rows: IdRows, local: LocalRows, needs: TokenNeeds) -> tuple[Any, Any]:
    """Labels where the sequence has ended."""
    longer = replace(local, lengths=local.lengths + 1)
    return build_columns(rows, longer, needs)


build_columns = routing._columns
FAULTS = [
    (steps_module, "portions_by_owner", wrong_order),
    (routing, "followed", on_own_rows),
    (routing, "_columns", no_end),
]


@pytest.mark.parametrize(("module", "name", "fault"), FAULTS, ids=[name for _, name, _ in FAULTS])
def test_the_check_sees_a_fault(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str, fault: object
) -> None:
    step = forced_step()
    documents = random_documents(step)
    check_batches(step, documents, played(step, documents, TokenNeeds(depths=1)))
    monkeypatch.setattr(module, name, fault)
    with pytest.raises((AssertionError, ValueError)):
        check_batches(step, documents, played(step, documents, TokenNeeds(depths=1)))
