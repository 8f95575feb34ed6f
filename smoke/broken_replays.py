"""Replays that are broken on purpose, for trainings by graphs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any
from unittest import mock

import torch

from ringproof.cluster import RankContext
from ringproof.reference.graphs import bank
from ringproof.reference.graphs.replay import Graphed
from ringproof.reference.model.batch import PackedBatch
from ringproof.reference.model.static import batch_tensors, load


def _stale(rank: RankContext) -> AbstractContextManager[Any]:
    """No replay gets anything of its microbatch: each computes the empty one of the capture."""
    return mock.patch.object(bank, "load", lambda static, batch: None)


def _one_behind(rank: RankContext) -> AbstractContextManager[Any]:
    """A replay's attention has the boundaries of the microbatch before, of the same CP size."""
    tables: dict[PackedBatch, dict[str, torch.Tensor]] = {}

    def behind(static: PackedBatch, batch: PackedBatch) -> None:
        load(static, batch)
        into = {
            name: tensor
            for name, tensor in batch_tensors(static).items()
            if name.startswith("metadata.table")
        }
        own = {name: tensor.clone() for name, tensor in into.items()}
        for name, tensor in tables.get(static, own).items():
            into[name].copy_(tensor)
        tables[static] = own

    return mock.patch.object(bank, "load", behind)


def _one_bit(rank: RankContext) -> AbstractContextManager[Any]:
    """After its hundredth replay rank 0 turns over the last bit of one number of the result."""
    replay, calls = Graphed.replay_forward, itertools.count(1)

    def turned(graphed: Graphed, *arguments: Any, **options: Any) -> int:
        number = replay(graphed, *arguments, **options)
        if next(calls) == 100 and rank.rank == 0:
            first = graphed.static.outputs[0]
            assert first is not None, "a layer returns rows"
            first.view(torch.int64)[0, 0].bitwise_xor_(1)
        return number

    return mock.patch.object(Graphed, "replay_forward", turned)


CONTROLS: Mapping[str, Callable[[RankContext], AbstractContextManager[Any]]] = MappingProxyType(
    {"stale": _stale, "one-behind": _one_behind, "one-bit": _one_bit}
)
BROKEN = MappingProxyType(
    {
        "stale": "no replay gets anything of its microbatch",
        "one-behind": "attention has the boundaries of the microbatch before, of the same CP size",
        "one-bit": "the last bit of one number is turned over, once, after the hundredth replay",
    }
)
"""What each control does, for the table."""
