"""The samples of a step follow from seed, global batch and step: every document once per epoch."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ringproof.reference.training.data import Sampler


@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 2**32 - 1))
def test_every_document_once_per_epoch(documents: int, batch: int, seed: int) -> None:
    sampler = Sampler(seed=seed, global_batch=batch, documents=documents)
    steps = -(-3 * documents // batch)
    seen = np.concatenate([sampler.indices(step) for step in range(steps)])
    for epoch in range(3):
        assert sorted(seen[epoch * documents : (epoch + 1) * documents]) == [*range(documents)]


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
