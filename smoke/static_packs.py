"""Microbatches of fixed capacity for tests, and the stream of operations that a pack leads to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from ringproof.reference.model.batch import PackedBatch
from ringproof.reference.model.static import with_metadata
from ringproof.reference.packing.capacity import to_capacity
from ringproof.reference.packing.padding import round_up
from ringproof.reference.packing.sequences import Capacity
from ringproof.reference.topology.dynamic import ContextParallelGroup
from smoke.model_batches import Tokens, rank_batch


def capacity_batch(
    sequences: Tokens,
    group: ContextParallelGroup,
    capacity: Capacity,
    *,
    multiple: int = 16,
    **options: Any,
) -> PackedBatch:
    """This rank's rows of a microbatch at capacity, with metadata; options as of ``rank_batch``."""
    used = sum(round_up(len(tokens), multiple) for tokens in sequences)
    batch = rank_batch(
        sequences, group, multiple=multiple, tail_rows=capacity.rows - used, **options
    )
    packed = to_capacity(batch.packed, capacity)
    return with_metadata(replace(batch, packed=packed), capacity)


_PLAIN = (int, float, str, type(None), torch.dtype, torch.device, torch.memory_format)


class OpStream(TorchDispatchMode):
    """Writes down every operation: its name, numbers, shapes, and which memory it works on.

    Memory is numbered as it is first met. What is met first as an input was made outside; unless
    it is said to be an input of the graph, what it holds is written down, too: a graph would bake
    it in.

    Args:
        inputs: Tensors that are overwritten before a replay.
    """

    def __init__(self, inputs: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()
        self.lines: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []  # so that no address is given out twice
        self._outputs: set[int] = set()
        for tensor in inputs:
            self._outputs.add(self._number(tensor))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = tree_map(self._input, (args, kwargs or {}))
        result = func(*args, **(kwargs or {}))
        self.lines.append((str(func), given, tree_map(self._output, result)))
        return result

    def _input(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return str(value if isinstance(value, _PLAIN) else type(value))
        number = self._number(value)
        baked = None
        if number not in self._outputs:
            self._outputs.add(number)
            baked = tuple(value.detach().flatten().tolist())
        return number, self._layout(value), baked

    def _output(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return str(type(value))
        number = self._number(value)
        self._outputs.add(number)
        return number, self._layout(value)

    def _number(self, tensor: torch.Tensor) -> int:
        storage = tensor.untyped_storage()
        self._kept.append(storage)
        return self._numbers.setdefault(storage._cdata, len(self._numbers))

    @staticmethod
    def _layout(tensor: torch.Tensor) -> Any:
        place = tensor.storage_offset()
        return str(tensor.dtype), tuple(tensor.shape), tuple(tensor.stride()), place


def op_stream(inputs: Iterable[torch.Tensor], call: Callable[[], Any]) -> list[Any]:
    """What a call does, operation by operation."""
    with OpStream(inputs) as stream:
        call()
    return stream.lines


def first_difference(streams: Sequence[list[Any]]) -> str:
    """Where two streams part; empty if they do not."""
    one, other = streams
    for index, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return f"operation {index}: {left} and {right}"[:400]
    return "" if len(one) == len(other) else f"{len(one)} and {len(other)} operations"
