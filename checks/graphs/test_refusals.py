"""What a capture refuses, with the line that did it; and that nothing of it remains."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from checks.graphs.captures import captures, equal, graph, perceptron, results, tensor
from ringproof.errors import InputError
from ringproof.reference.graphs.tape.backend import TapeBackend

THREE = tensor(3)
READS = {
    ".item()": lambda x: x * x.sum().item(),
    "bool(tensor)": lambda x: x if x.sum() > 0 else -x,
    "int(tensor)": lambda x: x * int(x.sum()),
    "float(tensor)": lambda x: x * float(x.sum()),
    "a tensor as a Python index": lambda x: [x, x][x.argmax() * 0],
    "torch.equal": lambda x: x * torch.equal(x, x),
    "torch.allclose": lambda x: x * torch.allclose(x, x),
    ".tolist()": lambda x: x * x.tolist()[0],
    ".numpy()": lambda x: x * x.detach().numpy()[0],
    "numpy.asarray(tensor)": lambda x: x * numpy.asarray(x.detach())[0],
    ".cpu()": lambda x: x * x.cpu(),
    '.to("cpu")': lambda x: x * x.to("cpu"),
    ".cuda()": lambda x: x * x.cuda(),
    ".pin_memory()": lambda x: x * x.pin_memory(),
    "torch.tensor": lambda x: x * torch.tensor([1.0, 2.0, 3.0]),
    "torch.as_tensor": lambda x: x * torch.as_tensor([1.0, 2.0, 3.0]),
    "a tensor from host data": lambda x: x[[0, 1]],
    "print(tensor)": lambda x: x * len(str(x)),
    "torch.multinomial": lambda x: x * torch.multinomial(x.exp(), 1),
    "a check of a decomposition": lambda x: torch.linalg.inv(torch.diag(x)),
    "a tensor from host data ": lambda x: x.clone().__setitem__(
        torch.arange(2, device=x.device), 1.5
    ),
    "a tensor made without device=": lambda x: x[torch.arange(2)],
    "a tensor made without device= ": lambda x: x.index_select(
        0, torch.arange(3).flip(0).to(x.device)
    ),
    "a tensor made without device=  ": lambda x: x * torch.ones(3, dtype=x.dtype).cumsum(0),
}
SHAPES = {
    "torch.nonzero": lambda x: x[torch.nonzero(x)[0]],
    "torch.masked_select": lambda x: torch.masked_select(x, x > 0).sum(),
    "torch.unique": lambda x: torch.unique(x),
    "torch.unique_consecutive": lambda x: torch.unique_consecutive(x),
    "torch.bincount": lambda x: torch.bincount(torch.arange(3, device=x.device)).sum() * x,
    "torch.repeat_interleave": lambda x: x.repeat_interleave(torch.arange(3, device=x.device)),
    "indexing by a mask": lambda x: x[x > 0].sum(),
    "indexing by a mask ": lambda x: x.clone().index_put_((x > 0,), torch.zeros((), dtype=x.dtype)),
}
MOVES = {
    ".resize_()": lambda x: torch.empty(3, dtype=x.dtype).resize_(5).zero_(),
    ".set_()": lambda x: torch.empty(0, dtype=x.dtype).set_(x.detach()),
}
CASES = {**READS, **SHAPES, **MOVES}


@pytest.mark.parametrize("what", CASES)
def test_refused_with_the_line(what: str) -> None:
    with pytest.raises(InputError) as caught:
        graph(CASES[what], tensor(3), warm_up=0)
    line = CASES[what].__code__.co_firstlineno
    expected = rf"part, forward: {re.escape(what.strip())}.* at graphs/test_refusals.py:{line}: "
    assert re.search(expected, str(caught.value))


def written(where: Callable[[torch.Tensor], Any], number: Any = 2) -> Callable[..., torch.Tensor]:
    """A number of Python written into a copy: a fill on every device, with the number baked in."""

    def function(x: torch.Tensor) -> torch.Tensor:
        copied = x * 1
        copied[where(x)] = number
        return copied

    return function


ALLOWED: dict[str, Callable[[torch.Tensor], Any]] = {
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "a number by a slice": written(lambda x: slice(1, None)),
    "a number by an integer": written(lambda x: 0, 0.1),
    "a number everywhere": written(lambda x: ..., False),
    "a number by a mask": written(lambda x: x > 0),
    "a matrix product of conjugates": lambda x: (
        (torch.complex(x, x * 2).conj() @ torch.complex(x, x * 3)).imag
    ),
    "masked_fill": lambda x: x.masked_fill(x > 0, 2.0),
    "index": lambda x: x[torch.arange(2, device=x.device)],
    "a number made on the host": lambda x: x * torch.ones((), dtype=x.dtype),
    "known repeats": lambda x: x.repeat_interleave(torch.arange(3, device=x.device), output_size=3),
    "as_tensor of a tensor": lambda x: torch.as_tensor(x) * 2,
    "to another type": lambda x: x.to(torch.float32),
    "arange": lambda x: x * torch.arange(3, device=x.device),
}


@pytest.mark.parametrize("what", ALLOWED)
def test_allowed(what: str) -> None:
    graphed = graph(ALLOWED[what], tensor(3))
    for seed in range(1, 3):
        expected = ALLOWED[what](tensor(3, seed=seed))
        assert equal([graphed(tensor(3, seed=seed))], [expected])


class ReadsSometimes(nn.Module):
    """Counts its runs in a buffer, and reads a value when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.reads = perceptron(), False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.inner(x)
        return out * out.sum().item() if self.reads else out


def test_a_refused_capture_leaves_eager_as_it_was() -> None:
    """Gradients, generators, blocks and modes; the second of two captures is the one refused."""
    module, good = ReadsSometimes(), perceptron()
    backend = TapeBackend()
    pool = backend.new_pool()
    parameters = list(module.parameters())
    expected = results(module, [tensor(5, 4, grad=True)], parameters)
    before, state = [p.grad.clone() for p in parameters], torch.get_rng_state()
    module.reads = True
    both = captures(good, module)
    with pytest.raises(InputError, match=r"slot 1, forward: \.item\(\)"):
        backend.capture(both, pool=pool)
    assert not [block for block in pool if block.born is not None]
    assert equal([p.grad for p in parameters], before)
    assert torch.equal(torch.get_rng_state(), state)
    module.reads = False
    assert equal(results(module, [tensor(5, 4, grad=True)], parameters), expected)
    graphed = backend.capture(both, pool=pool)
    assert equal(results(graphed[1], [tensor(5, 4, grad=True)], parameters), expected)


def test_a_trained_tensor_that_is_not_named_is_refused() -> None:
    weight = tensor(3, grad=True)
    with pytest.raises(InputError, match=r"`weight` float64 \[3\] at .*: requires a gradient"):
        graph(lambda x: x * weight, tensor(3, grad=True))
    pool = TapeBackend().new_pool()
    graphed = graph(
        lambda x: x * weight, tensor(3, grad=True), parameters={"weight": weight}, pool=pool
    )
    with pytest.raises(InputError, match="requires a gradient"):  # known to the pool is not enough
        graph(lambda x: x * weight, tensor(3, grad=True), pool=pool)
    graphed(tensor(3)).sum().backward()
    assert weight.grad is not None


def test_autocast_with_a_cache_is_refused() -> None:
    with torch.autocast("cpu"), pytest.raises(InputError, match="autocast: its cache"):
        graph(perceptron(), tensor(5, 4))
    with torch.autocast("cpu", cache_enabled=False):
        graph(perceptron().float(), tensor(5, 4).float())


@pytest.mark.parametrize(
    ("function", "inputs", "problem"),
    [
        (lambda x: x * 2, (tensor(3, 3).t(),), "a view or a result"),
        (lambda x: x * 2, (tensor(3, grad=True) * 2,), "a view or a result"),
        (lambda x, y: x * y, (THREE, THREE), "a tensor is there twice"),
        (lambda x: 2, (tensor(3),), "returns plain tensors only"),
        (lambda x: {"x": x}, (tensor(3),), "returns plain tensors only"),
        (lambda x: (x, "x"), (tensor(3),), "returns plain tensors only"),
    ],
)
def test_inputs_and_outputs(function: Any, inputs: Any, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        graph(function, *inputs)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ((), "captured with 1 inputs"),
        ((tensor(4),), r"captured as float64 \[3\] on cpu"),
        ((tensor(3).float(),), r"captured as float64 \[3\] on cpu"),
        ((tensor(3, grad=True),), "captured without"),
    ],
)
def test_a_call_unlike_the_capture(given: tuple[torch.Tensor, ...], problem: str) -> None:
    graphed = graph(lambda x: x * 2, tensor(3))
    with pytest.raises(InputError, match=problem):
        graphed(*given)
