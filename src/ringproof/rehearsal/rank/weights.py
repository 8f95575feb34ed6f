"""The same initial weights in every layout of ranks.

Megatron draws weights from generators that depend on the rank, so that TP 2 starts from another
model than TP 1. Here each parameter is drawn again by its name and its place in the global tensor,
both of which Megatron's own ``sharded_state_dict`` gives.
"""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

DEVIATION = 0.02
BUILDERS = "megatron.training.models"
METHOD = "build_model"


Finish = Callable[[torch.nn.Module], None]
"""Called with each model chunk that was built, before anything wraps it: FSDP cuts parameters."""


def wrap_get_model(get_model: Callable[..., Any], finish: Finish) -> Callable[..., Any]:
    """Return Megatron's ``get_model`` with what its provider builds finished, as by `draw`."""

    def build(provider: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        return get_model(_finishing(provider, finish), *arguments, **named)

    return build


def _finishing(provider: Callable[..., Any], finish: Finish) -> Callable[..., Any]:
    @functools.wraps(provider)
    def build(*arguments: Any, **named: Any) -> Any:
        model = provider(*arguments, **named)
        finish(model)
        return model

    return build


def wrap_builders(finish: Finish) -> None:
    """Do the same where Megatron builds models by classes instead of ``get_model``."""
    for name, module in list(sys.modules.items()):
        if not name.startswith(BUILDERS):
            continue
        for kind in vars(module).values():
            if isinstance(kind, type) and kind.__module__ == name and METHOD in vars(kind):
                setattr(kind, METHOD, _finishing(vars(kind)[METHOD], finish))


def draw(model: torch.nn.Module) -> None:
    """Draw the parameters of a model chunk by name and global place, in place.

    Parameters that are constant (norm weights of one, biases of zero) keep their value.
    """
    with torch.no_grad():
        for part in _weights(model):
            data = part.data
            # Norm weights and biases: other values would train another model than upstream's.
            if data.numel() and data.dim() and bool((data == data.reshape(-1)[0]).all()):
                continue
            data.copy_(_local(part).to(data.dtype))  # also to a GPU


def disturb(model: torch.nn.Module) -> None:
    """Move each parameter of a model chunk by one unit in the last place, up or down, in place.

    In bfloat16 training, where upstream rounds the parameters afterwards, it is one of bfloat16.
    """
    coarse = bool(getattr(getattr(model, "config", None), "bf16", False))
    with torch.no_grad():
        for part in _weights(model):
            data = part.data
            up = _local(part, "disturbed").reshape(data.shape) > 0
            towards = torch.where(up, torch.inf, -torch.inf).to(data.dtype)
            last = (data.bfloat16() if coarse else data).cpu()
            data.copy_(torch.nextafter(last, towards.to(last.dtype)))


def _weights(model: torch.nn.Module) -> Iterator[Any]:
    """All sharded tensors of a model chunk that hold real numbers."""
    while hasattr(model, "module"):
        model = model.module
    for part in _parts(model.sharded_state_dict()):
        if isinstance(part.data, torch.Tensor) and part.data.is_floating_point():
            yield part


def _parts(state: Any) -> Iterator[Any]:
    """All sharded tensors of a state dictionary; factories are split by their own rule."""
    for leaf in tree_leaves(state):
        if hasattr(leaf, "build") and hasattr(leaf, "merge_fn"):
            yield from _parts(leaf.build())
        elif hasattr(leaf, "global_offset") and hasattr(leaf, "global_shape"):
            yield leaf


def _local(part: Any, kind: str = "") -> torch.Tensor:
    """The local block of a parameter's global tensor; another one for each ``kind``."""
    shape = tuple(int(size) for size in part.global_shape)
    seed = int.from_bytes(hashlib.sha256(f"{part.key}{kind}".encode()).digest()[:8], "little")
    whole = np.random.default_rng(seed).standard_normal(int(np.prod(shape))).reshape(shape)
    skipped = len(shape) - part.data.dim()
    offset = [int(start) for start in part.global_offset]
    slices = [slice(start, start + 1) for start in offset[:skipped]]
    slices += [
        slice(start, start + size)
        for start, size in zip(offset[skipped:], part.data.shape, strict=True)
    ]
    return torch.from_numpy(DEVIATION * whole[tuple(slices)]).reshape(part.data.shape)
