"""What a CUDA graph of a stage asks for: no value is read by the host, no shape depends on data.

The dispatch of a mixture of experts is the exception, and is left out of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from checks.model.whole_model import whole
from ringproof.reference.model.config import preset
from ringproof.reference.topology.dynamic import ContextParallelGroup
from smoke.model_batches import random_sequences, rank_batch


class NoReadBack(TorchDispatchMode):
    """Refuses what a CUDA graph cannot record: values read by the host, shapes made of data."""

    REFUSED = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "bincount")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        masks = [a for a in args[1:2] if name == "index" and a is not None]
        boolean = any(i is not None and i.dtype == torch.bool for mask in masks for i in mask)
        if boolean or any(refused in name for refused in self.REFUSED):
            raise AssertionError(f"{name} depends on data")
        return func(*args, **(kwargs or {}))


@contextmanager
def no_read_back() -> Iterator[None]:
    with NoReadBack():
        yield


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("name", ["qwen3-tiny", "nemotron-h-tiny"])
def test_nothing_depends_on_data(name: str, recompute: bool, alone: ContextParallelGroup) -> None:
    stage = whole(replace(preset(name), mtp_depths=1), recompute=recompute)
    batch = rank_batch(random_sequences(), alone, depths=1)
    with no_read_back():
        stage(batch.tokens, batch).value.backward()


@pytest.mark.parametrize("touch", [torch.Tensor.item, torch.nonzero, lambda x: x[x > 0]])
def test_the_watch_over_data_sees_it(touch: Callable[[torch.Tensor], Any]) -> None:
    with no_read_back(), pytest.raises(AssertionError, match="depends on data"):
        touch(torch.ones(1))
