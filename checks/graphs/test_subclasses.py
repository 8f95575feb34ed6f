"""Tensor subclasses: their parts are recorded, and they do not cross the border of a graph."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DeviceMesh, DTensor, Replicate, Shard, init_device_mesh

from checks.graphs.captures import equal, graph, results, tensor
from ringproof.errors import InputError
from smoke.model_batches import group_of_one


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    with group_of_one():
        yield init_device_mesh("cpu", (1,))


def test_distributed_tensors_inside(mesh: DeviceMesh) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        whole = DTensor.from_local(x, mesh, [Shard(0)]).redistribute(mesh, [Replicate()])
        return (whole * 2 + whole.exp()).to_local()

    graphed = graph(function, tensor(4, 4, grad=True))
    names = {one.function.name() for one in graphed._segments[0].operations}
    assert names >= {"aten::mul.Tensor", "aten::exp", "aten::add.Tensor"}
    given = [tensor(4, 4, seed=1, grad=True)]
    assert equal(results(graphed, given), results(function, given))


def test_distributed_tensors_do_not_cross(mesh: DeviceMesh) -> None:
    wrapped = DTensor.from_local(tensor(4), mesh, [Replicate()])
    with pytest.raises(InputError, match="part: input 0 is a tensor subclass"):
        graph(lambda x: x * 2, wrapped)
    with pytest.raises(InputError, match="part: weight is a tensor subclass"):
        graph(lambda x: x * 2, tensor(4), parameters={"weight": nn.Parameter(wrapped)})
    with pytest.raises(InputError, match="part: a graph returns plain tensors only"):
        graph(lambda x: DTensor.from_local(x, mesh, [Replicate()]), tensor(4))
