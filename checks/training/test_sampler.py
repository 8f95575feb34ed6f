"""The samples of a step follow from seed, global batch and step: every document once per epoch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringproof.errors import InputError
from ringproof.reference.training.data import Sampler


@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 2**32 - 1))
def test_every_document_once_per_epoch(documents: int, batch: int, seed: int) -> None:
    sampler = Sampler(seed=seed, global_batch=batch, documents=documents)
    steps = -(-3 * documents // batch)
    seen = np.concatenate([sampler.indices(step) for step in range(steps)])
    for epoch in range(3):
        assert sorted(seen[epoch * documents : (epoch + 1) * documents]) == [*range(documents)]


def test_a_step_needs_no_step_before_it() -> None:
    sampler = Sampler(seed=3, global_batch=8, documents=20)
    forward = [sampler.indices(step).tolist() for step in range(10)]
    again = Sampler(seed=3, global_batch=8, documents=20)
    assert [again.indices(step).tolist() for step in reversed(range(10))] == forward[::-1]


def test_epochs_and_seeds_have_their_own_orders() -> None:
    orders = [
        tuple(Sampler(seed=seed, global_batch=50, documents=50).indices(epoch).tolist())
        for seed in range(3)
        for epoch in range(3)
    ]
    assert len(set(orders)) == 9


def test_batches_of_other_sizes_walk_the_same_order() -> None:
    large = Sampler(seed=1, global_batch=12, documents=30)
    small = Sampler(seed=1, global_batch=4, documents=30)
    parts = [small.indices(step) for step in range(3)]
    assert large.indices(0).tolist() == np.concatenate(parts).tolist()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"seed": -1}, "seed: -1 is not in"),
        ({"seed": 2**32}, "seed: 4294967296 is not in"),
        ({"global_batch": 0}, "global_batch: 0 is less than 1"),
        ({"documents": 0}, "documents: 0 is less than 1"),
    ],
)
def test_numbers_out_of_range_are_refused(fields: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Sampler(**{"seed": 0, "global_batch": 1, "documents": 1, **fields})
