"""Microbatches for model tests: whole sequences in, what one rank holds of them out.

Independent of the trainer's routing: every rank has all sequences and cuts its own rows. On
microbatches of fixed capacity, all packs lead to the same stream of operations.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from ringproof.reference.model.batch import IGNORED, PackedBatch, Totals
from ringproof.reference.model.static import with_metadata
from ringproof.reference.packing.capacity import local_to_global, padding_pack, to_capacity
from ringproof.reference.packing.partition import round_up
from ringproof.reference.packing.sequences import Capacity, pack
from ringproof.reference.topology.dynamic import ContextParallelGroup

Tokens = Sequence[Sequence[int]]
LENGTHS = (13, 1, 32, 7)
"""Sequences of one token, with chunks of padding, and longer ones."""


def random_sequences(
    lengths: Sequence[int] = LENGTHS, *, seed: int = 0, vocabulary: int = 256
) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(vocabulary) for _ in range(length)] for length in lengths]


def totals(sequences: Tokens, depths: int = 0) -> Totals:
    """Of a global batch that consists of these sequences."""
    predictions = tuple(
        sum(max(0, len(tokens) - 1 - depth) for tokens in sequences) for depth in range(depths + 1)
    )
    return Totals(tokens=sum(map(len, sequences)), predictions=predictions)


def rank_batch(
    sequences: Tokens,
    group: ContextParallelGroup,
    *,
    comm_type: str = "p2p",
    partition: str = "zigzag",
    depths: int = 0,
    multiple: int = 8,
    tail_rows: int = 0,
    total: Totals | None = None,
    device: torch.device | str = "cpu",
) -> PackedBatch:
    """This rank's rows of a microbatch.

    Args:
        sequences: Tokens of each; the next token of each row but the last is its label.
        group: The ranks that share the microbatch.
        comm_type: Of attention.
        partition: How rows are cut.
        depths: Further tokens predicted.
        multiple: Rows of each sequence are padded to it: at least ``2 * CP * TP`` for zigzag
            with sequence parallelism.
        tail_rows: Rows of a dummy tail; a multiple of ``multiple``.
        total: Of the global batch; of these sequences when ``None``.
        device: Where the tensors live.
    """
    padded = sum(-(-len(tokens) // multiple) * multiple for tokens in sequences)
    capacity = Capacity(rows=padded + tail_rows, entries=len(sequences) + 1)
    packed = padding_pack(capacity)
    if any(map(len, sequences)):
        packed = to_capacity(pack(list(map(len, sequences)), multiple=multiple), capacity)
    whole = torch.full((2 + depths, packed.rows), IGNORED, dtype=torch.int64)
    entries, positions = torch.zeros(2, packed.rows, dtype=torch.int64)
    real = torch.zeros(packed.rows, dtype=torch.bool)
    for entry, rows in enumerate(packed.padded_lengths):
        start = packed.cu_seqlens_padded[entry]
        entries[start : start + rows] = entry
        positions[start : start + rows] = torch.arange(rows)  # padding counts on, as upstream's
        tokens = torch.tensor(sequences[entry] if entry < len(sequences) else [])
        real[start : start + len(tokens)] = True
        for shift in range(min(2 + depths, len(tokens))):
            whole[shift, start : start + len(tokens) - shift] = tokens[shift:]
    mine = torch.from_numpy(local_to_global(packed, group.size, group.rank, partition))
    return PackedBatch(
        packed=packed,
        group=group,
        comm_type=comm_type,
        partition=partition,
        positions=positions[mine].to(device),
        entries=entries[mine].to(device),
        real=real[mine].to(device),
        tokens=whole[0, mine].clamp(min=0).to(device),
        future=whole[1:, mine].to(device),
        totals=total or totals(sequences, depths),
    )


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


@contextmanager
def group_of_one() -> Iterator[ContextParallelGroup]:
    """A world of one rank in this process: the CP group of single-rank tests."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        world = dist.group.WORLD
        yield ContextParallelGroup(flat=world, levels=(world, world))
    finally:
        dist.destroy_process_group()


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
