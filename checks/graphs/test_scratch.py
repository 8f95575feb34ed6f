"""Results that only one pass needs share memory, on the tape as in the pool of a device."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch

from checks.graphs.captures import equal, graph, results, tensor
from ringproof.harness.tape import recorder, segment

ROWS, STEPS = 4096, 20
BYTES = ROWS * 8


def chain(x: torch.Tensor) -> torch.Tensor:
    """Results of which each is needed for the next one only."""
    for step in range(STEPS):
        x = torch.roll(x, 1) + step
    return x


def test_a_chain_of_results_needs_the_memory_of_a_few() -> None:
    graphed = graph(chain, tensor(ROWS))
    assert 2 * BYTES <= graphed.memory.private <= 4 * BYTES
    assert equal(results(graphed, [tensor(ROWS, seed=1)]), results(chain, [tensor(ROWS, seed=1)]))


def test_results_are_let_go_while_the_capture_runs() -> None:
    """Otherwise a capture would need the memory of all of them at once."""
    most = []
    let_go = recorder.TapePool.let_go

    def counted(pool: recorder.TapePool, one: int) -> None:
        let_go(pool, one)
        most.append(sum(block.bytes for block in pool if block.storage is not None))

    with (
        patch.object(recorder, "SWEEP_BYTES", 2 * BYTES),
        patch.object(recorder.TapePool, "let_go", counted),
    ):
        graphed = graph(chain, tensor(ROWS))
    assert len(most) > STEPS / 2
    assert max(most) <= 4 * BYTES
    assert equal(results(graphed, [tensor(ROWS, seed=1)]), results(chain, [tensor(ROWS, seed=1)]))


def test_what_a_backward_needs_is_not_shared() -> None:
    def activations(x: torch.Tensor) -> torch.Tensor:
        return chain(x.exp().sin()) * x

    graphed = graph(activations, tensor(ROWS, grad=True))
    given = [tensor(ROWS, seed=1, grad=True)]
    assert equal(results(graphed, given), results(activations, given))
    assert graphed.memory.private >= 5 * BYTES


@pytest.mark.parametrize("overlaid", [False, True])
def test_places_that_overlap_are_seen(overlaid: bool) -> None:
    """Negative control: all results at the same place."""

    def function(x: torch.Tensor) -> torch.Tensor:
        first, second = torch.roll(x, 1), torch.roll(x, 2)
        return torch.roll(first, 1) * torch.roll(second, 1)

    gap = (lambda live, size: 0) if overlaid else segment._first_gap
    with patch.object(segment, "_first_gap", gap):
        graphed = graph(function, tensor(ROWS))
    given = [tensor(ROWS, seed=1)]
    assert equal(results(graphed, given), results(function, given)) != overlaid
