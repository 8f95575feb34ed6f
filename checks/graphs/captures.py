"""Small functions to capture, and the comparison of a replay with the eager call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from ringproof.reference.graphs.backend import Capture
from ringproof.reference.graphs.replay import Graphed
from ringproof.reference.graphs.tape.backend import TapeBackend

Function = Callable[..., Any]


def tensor(*shape: int, seed: int = 0, grad: bool = False) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_(grad)


def perceptron() -> nn.Module:
    """Four columns to three."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        layers = nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3)
        return nn.Sequential(*layers).double()


def captures(
    *functions: Function, given: Callable[[], torch.Tensor] = lambda: tensor(5, 4, grad=True)
) -> list[Capture]:
    """Captures ``slot 0``, ``slot 1``, ... of functions of one tensor."""
    return [
        Capture(
            name=f"slot {slot}",
            function=function,
            inputs=(given(),),
            parameters=dict(function.named_parameters()) if isinstance(function, nn.Module) else {},
        )
        for slot, function in enumerate(functions)
    ]


def graph(
    function: Function,
    *inputs: torch.Tensor,
    backend: TapeBackend | None = None,
    parameters: dict[str, torch.Tensor] | None = None,
    **options: Any,
) -> Graphed:
    """One function, captured."""
    if parameters is None and isinstance(function, nn.Module):
        parameters = dict(function.named_parameters())
    capture = Capture(name="part", function=function, inputs=inputs, parameters=parameters or {})
    (graphed,) = (backend or TapeBackend()).capture([capture], **options)
    return graphed


def results(
    function: Function, arguments: Sequence[torch.Tensor], parameters: Sequence[torch.Tensor] = ()
) -> list[torch.Tensor]:
    """Outputs, then gradients of arguments and parameters, for output gradients drawn anew."""
    inputs = [a.detach().clone().requires_grad_(a.requires_grad) for a in arguments]
    for parameter in parameters:
        parameter.grad = None
    outputs = function(*inputs)
    outputs = (outputs,) if isinstance(outputs, torch.Tensor) else outputs
    kept = [o.detach().clone() for o in outputs if o is not None]
    wanted = [o for o in outputs if o is not None and o.requires_grad]
    gradients = [tensor(*o.shape, seed=7 + i).to(o.device) for i, o in enumerate(wanted)]
    torch.autograd.backward(wanted, gradients)
    return kept + [t.grad for t in (*inputs, *parameters) if t.grad is not None]


def equal(left: Sequence[torch.Tensor], right: Sequence[torch.Tensor]) -> bool:
    """Bit by bit: NaN equals NaN."""
    assert left
    return len(left) == len(right) and all(
        torch.equal(_bits(a), _bits(b)) for a, b in zip(left, right, strict=True)
    )


def _bits(one: torch.Tensor) -> torch.Tensor:
    return one.detach().contiguous().reshape(-1).view(torch.uint8)
