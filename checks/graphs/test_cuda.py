"""CUDA graphs on a GPU: what the tape promises, on the device that it speaks for."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch.nn.functional import dropout

from checks.graphs.captures import captures, equal, perceptron, results, tensor
from ringproof.errors import InputError
from ringproof.reference.graphs.backend import CaptureBackend
from ringproof.reference.graphs.replay import Graphed
from ringproof.reference.graphs.tape.backend import choose_backend

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
GPU = torch.device("cuda", 0)


def rows(seed: int = 0) -> torch.Tensor:
    return tensor(5, 4, seed=seed).to(GPU).requires_grad_()


@pytest.fixture
def backend() -> CaptureBackend:
    return choose_backend("cuda", GPU)


def test_replays_equal_eager(backend: CaptureBackend) -> None:
    module = perceptron().to(GPU)
    parameters = list(module.parameters())
    (graphed,) = backend.capture(captures(module, given=rows))
    for seed in (1, 2):
        expected = results_on_gpu(module, seed, parameters)
        assert equal(results_on_gpu(graphed, seed, parameters), expected)
    assert (graphed.replays.forward, graphed.replays.backward) == (2, 2)
    assert graphed.memory.inputs == 5 * 4 * 8
    graphed.reset()
    with pytest.raises(InputError, match="the graph was reset"):
        graphed(rows())


def results_on_gpu(function: Any, seed: int, parameters: list[torch.Tensor]) -> list[torch.Tensor]:
    return results(function, [rows(seed)], parameters)


def test_two_in_flight_in_one_pool(backend: CaptureBackend) -> None:
    module = perceptron().to(GPU)
    graphed = backend.capture(captures(module, module, given=rows))
    found = []
    for functions in ([module, module], graphed):
        module.zero_grad()
        outputs = [function(rows(seed)) for seed, function in enumerate(functions)]
        for output in reversed(outputs):
            output.sum().backward()
        found.append([parameter.grad.clone() for parameter in module.parameters()])
    assert equal(*found)


def test_random_numbers_go_on(backend: CaptureBackend) -> None:
    found = []
    for graphed in (False, True):
        torch.cuda.manual_seed(1)
        one: Any = partial(dropout, p=0.5)
        if graphed:
            (one,) = backend.capture(captures(one, given=rows))
        found.append([one(rows()).detach().clone() for _ in range(2)])
    assert equal(*found)


def test_what_the_tape_refuses_is_refused() -> None:
    module = perceptron().to(GPU)
    backend = choose_backend("cuda", GPU)

    def reads(x: torch.Tensor) -> torch.Tensor:
        return x * x.sum().item()

    stream = torch.cuda.current_stream()
    good, bad = captures(module, reads, given=rows)
    with pytest.raises(InputError, match="slot 1, forward: it cannot be captured"):
        backend.capture([good, bad])
    assert torch.cuda.current_stream() == stream
    assert module(rows()).isfinite().all()
    (graphed,) = backend.capture([good])
    assert isinstance(graphed, Graphed)
    assert equal([graphed(rows(3))], [module(rows(3))])


def by_a_slice(x: torch.Tensor) -> None:
    x[1:] = 2


def by_a_mask(x: torch.Tensor) -> None:
    x[x > 0] = 2


def by_rows(x: torch.Tensor) -> None:
    x[torch.arange(2, device=x.device)] = 2


def by_a_mask_from_the_device(x: torch.Tensor) -> None:
    x[x > 0] = torch.ones((), dtype=x.dtype, device=x.device)


HOST = {
    "an index": lambda x: x[torch.arange(2)],
    "an index that is copied": lambda x: x.index_select(0, torch.arange(3).to(x.device)),
}


@pytest.mark.parametrize("what", HOST)
def test_a_tensor_of_the_host_is_refused_as_on_the_tape(what: str) -> None:
    (capture,) = captures(HOST[what], given=rows)
    with pytest.raises(InputError, match="slot 0, forward: it cannot be captured"):
        choose_backend("cuda", GPU).capture([capture])
    with pytest.raises(InputError, match="slot 0, forward: a tensor made without device="):
        graph_on_tape(HOST[what])


def graph_on_tape(function: Any) -> None:
    (capture,) = captures(function, given=partial(tensor, 5, 4, grad=True))
    choose_backend("tape", torch.device("cpu")).capture([capture])


def test_a_number_of_the_host_is_a_number_of_the_graph() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x * torch.full((), 3.0, dtype=x.dtype)

    (graphed,) = choose_backend("cuda", GPU).capture(captures(function, given=rows))
    assert equal(results_on_gpu(graphed, 3, []), results_on_gpu(function, 3, []))


@pytest.mark.parametrize("write", [by_a_slice, by_a_mask, by_rows, by_a_mask_from_the_device])
def test_numbers_are_written_as_the_tape_has_it(write: Any) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        out = x * 1
        write(out)
        return out

    backend = choose_backend("cuda", GPU)
    (capture,) = captures(function, given=rows)
    if write in (by_rows, by_a_mask_from_the_device):
        with pytest.raises(InputError, match="slot 0, forward: it cannot be captured"):
            backend.capture([capture])
        return
    (graphed,) = backend.capture([capture])
    assert equal(results_on_gpu(graphed, 3, []), results_on_gpu(function, 3, []))
