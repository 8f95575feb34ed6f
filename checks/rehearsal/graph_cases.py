"""Transformer Engine's own ``make_graphed_callables`` on its own modules, in one rank or more."""

from __future__ import annotations

import itertools
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn

from ringproof.errors import InputError

HEADS, WIDTH, ROWS, BATCH = 4, 32, 8, 2


class Block(nn.Module):
    """Attention with a residual, made of Transformer Engine's modules."""

    def __init__(self, number: int, group: Any = None) -> None:
        from transformer_engine.pytorch import DotProductAttention, LayerNormLinear, Linear

        super().__init__()
        options = {"params_dtype": torch.float64, "bias": False}
        self.qkv = LayerNormLinear(WIDTH, 3 * WIDTH, normalization="RMSNorm", **options)
        self.attention = DotProductAttention(
            HEADS, WIDTH // HEADS, qkv_format="sbhd", attn_mask_type="causal",
            attention_dropout=0.0, layer_number=number,
        )  # fmt: skip
        self.out = Linear(WIDTH, WIDTH, **options)
        if group is not None:
            ranks = dist.get_process_group_ranks(group)
            self.attention.set_context_parallel_group(group, ranks, torch.cuda.Stream(), "p2p")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [rows, batch, width] to the same."""
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, HEADS, WIDTH // HEADS).unbind(2)
        return x + self.out(self.attention(q.contiguous(), k.contiguous(), v.contiguous()))


def blocks(count: int, group: Any = None) -> list[Block]:
    """Make the same blocks each time."""
    torch.manual_seed(1)
    return [Block(number + 1, group) for number in range(count)]


def batch(step: int) -> torch.Tensor:
    """The same rows each time, others on each rank."""
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    return torch.randn(ROWS, BATCH, WIDTH, dtype=torch.float64, generator=generator)


def train(modules: list[Any], steps: int, parameters: list[Any]) -> list[str]:
    """Return losses and gradient norms of some SGD steps, exactly."""
    optimizer = torch.optim.SGD(parameters, lr=0.5)
    found = []
    for step in range(steps):
        x = batch(step).requires_grad_()
        y = x
        for module in modules:
            y = module(y)
        loss = y.square().mean()
        loss.backward()
        norm = torch.stack([p.grad.norm() for p in parameters]).norm()
        found.append(f"{loss.item().hex()} {norm.item().hex()} {x.grad.norm().item().hex()}")
        optimizer.step()
        optimizer.zero_grad()
    return found


def graphed(modules: list[Block]) -> list[Any]:
    """Capture modules with Transformer Engine's own function."""
    from transformer_engine.pytorch import make_graphed_callables

    samples = tuple((batch(99).requires_grad_(),) for _ in modules)
    return list(make_graphed_callables(tuple(modules), samples))


def free_a_weight(modules: list[Block]) -> None:
    """Free memory that the graphs read."""
    old = modules[0].qkv.weight
    old.data = old.data.clone()


def replace_a_weight(modules: list[Block]) -> None:
    """Put other values into a new weight, and keep the one that the graphs read alive."""
    modules[0].qkv.old = modules[0].qkv.weight.data
    modules[0].qkv.weight.data = modules[0].qkv.weight.data * 2


def write_a_weight(modules: list[Block]) -> None:
    """Write other values to where the graphs read them, as eager code would see it."""
    modules[0].qkv.weight.data.mul_(2)


def replay_a_graph_between(modules: list[Block]) -> None:
    """Replay the first graph alone, which overwrites what its backward graph reads later."""
    tapes = torch.cuda.CUDAGraph.tapes
    forward = modules[1].forward

    def between(x: torch.Tensor) -> torch.Tensor:
        result = forward(x)
        modules[0].forward(batch(7).requires_grad_())
        return result

    assert len(tapes.uses) == 4
    modules[1].forward = between  # type: ignore[method-assign] # on purpose


def compare(case: dict[str, Any]) -> dict[str, Any]:
    """Train eager and graphed; ``fault`` names what is done wrong after the capture."""
    group = dist.group.WORLD if dist.get_world_size() > 1 else None
    eager = blocks(2, group)
    expected = train(eager, case["steps"], [p for m in eager for p in m.parameters()])
    modules = blocks(2, group)
    captured = graphed(modules)
    parameters = [p for m in modules for p in m.parameters()]
    error = ""
    try:
        if case.get("fault"):
            globals()[case["fault"]](modules)
        found = train(captured, case["steps"], parameters)
    except (RuntimeError, InputError) as raised:
        found, error = [], str(raised)
    uses = torch.cuda.CUDAGraph.tapes.uses
    return {
        "equal": [a == b for a, b in zip(expected, found, strict=False)],
        "nan": any("nan" in step for step in found),
        "error": error,
        "graphs": len(uses),
        "replays": sorted({use.replays for use in uses}),
        "kernels": sum(use.kernels for use in uses),
        "transfers": sum(use.transfers for use in uses),
    }


def copies(case: dict[str, Any]) -> dict[str, Any]:
    """Replay a captured block with its own input, with another one, and with its own rewritten.

    Args:
        case: With ``always``, Transformer Engine takes every address for another one: the control.

    Returns:
        For each call the inputs that were copied, and whether the output follows the values.
    """
    from transformer_engine.pytorch import make_graphed_callables

    (block,), (eager,) = blocks(1), blocks(1)
    own, copied = batch(99).requires_grad_(), list[int]()
    (replay,) = make_graphed_callables((block,), ((own,),))
    copy = torch.Tensor.copy_

    def counted(target: torch.Tensor, source: torch.Tensor, *more: Any) -> torch.Tensor:
        copied.append(source.untyped_storage().data_ptr())
        return copy(target, source, *more)

    def call(given: torch.Tensor) -> dict[str, Any]:
        copied.clear()
        with patch.object(torch.Tensor, "copy_", counted), _addresses(always=case["always"]):
            first = replay(given).detach().clone()
        times = copied.count(given.untyped_storage().data_ptr())
        return {"copied": times, "right": first.equal(eager(given))}

    found = {"its own": call(own), "another": call(batch(1).requires_grad_())}
    with torch.no_grad():
        own.mul_(2)
    return {**found, "its own, rewritten": call(own)}


def _addresses(*, always: bool) -> AbstractContextManager[Any]:
    """Let each question for an address have another answer."""
    if not always:
        return nullcontext()
    numbers = itertools.count(1)
    return patch.object(torch.Tensor, "data_ptr", lambda tensor: next(numbers))
