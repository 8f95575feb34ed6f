"""Random numbers: registered generators go on from replay to replay, others repeat themselves."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn.functional import dropout
from torch.utils.checkpoint import checkpoint

from checks.graphs.captures import equal, graph, results, tensor
from ringproof.errors import InputError
from ringproof.reference.graphs.tape.backend import TapeBackend


def dropped(x: torch.Tensor) -> torch.Tensor:
    return dropout(x * 2, 0.5)


def several(function: Callable[[torch.Tensor], torch.Tensor], times: int = 3) -> list[torch.Tensor]:
    return [part for _ in range(times) for part in results(function, [tensor(64, grad=True)])]


def test_replays_draw_what_eager_would_have_drawn() -> None:
    torch.manual_seed(5)
    expected = several(dropped)
    torch.manual_seed(5)
    graphed = graph(dropped, tensor(64, grad=True))  # leaves the generator where it was
    assert equal(several(graphed), expected)
    assert not equal(expected[:2], expected[2:4])


def test_a_repeated_draw_leaves_the_generator_as_it_was() -> None:
    generator = torch.Generator().manual_seed(3)

    def function(x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(x.shape, generator=generator, dtype=x.dtype)

    graphed = graph(function, tensor(64), backend=TapeBackend(repeat_unregistered=True))
    before = generator.manual_seed(4).get_state()
    graphed(tensor(64))
    assert torch.equal(generator.get_state(), before)


def test_recompute_that_sets_the_state_is_refused() -> None:
    """Activation checkpointing replays its random numbers by setting the state: no graph does."""
    with pytest.raises(InputError, match="part, backward: the state of a random generator"):
        graph(lambda x: checkpoint(dropped, x, use_reentrant=False), tensor(64, grad=True))
