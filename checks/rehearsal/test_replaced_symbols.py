"""What torch reads of its own functions is still there where a stand-in has taken their place."""

from __future__ import annotations

import json

import pytest

from ringproof.programs import python, run

WALK = """
import json, types
from unittest import mock
import torch
import torch.distributed
from ringproof.rehearsal.standins import communication, compiler, cuda, guard
from ringproof.rehearsal.standins.graphs import cuda_graph

real, found = guard.put, []

def noting(replacements):
    for holder, name, value in list(replacements):
        before = getattr(holder, name, None)
        held = dict(vars(before)) if isinstance(before, types.FunctionType) else {}
        real([(holder, name, value)])
        after = getattr(holder, name)
        found.append({
            "symbol": f"{holder.__name__}.{name}",
            "lost": sorted(set(held) - set(getattr(after, "__dict__", {}))),
            "callable": callable(before) <= callable(after),
            "class": isinstance(before, type) <= isinstance(after, type),
        })

with (
    mock.patch.object(cuda, "put", noting),
    mock.patch.object(compiler, "put", noting),
    mock.patch.object(cuda_graph, "put", noting),
    mock.patch.object(communication, "put", noting),
):
    cuda.install(2)
    compiler.install()
    cuda_graph.install(2)
    communication.install(None, None)
import torch._dynamo  # which reads many of them
print(json.dumps(found))
"""
NO_CLASSES = {"torch.cuda.device", "torch.cuda.graphs.graph", "torch.cuda.graph"}
"""Context managers: nobody asks what they are instances of."""


@pytest.fixture(scope="module")
def replaced() -> list[dict[str, object]]:
    ended = run(python(code=WALK), seconds=200)
    assert ended.code == 0, ended.log[-2000:]
    found: list[dict[str, object]] = json.loads(ended.out.splitlines()[-1])
    return found


@pytest.mark.slow
def test_all_replaced_symbols_keep_what_torch_reads(replaced: list[dict[str, object]]) -> None:
    assert len(replaced) > 150
    assert [one for one in replaced if one["lost"] or not one["callable"]] == []
    no_classes = {one["symbol"] for one in replaced if not one["class"]}
    no_classes = {
        name for name in no_classes if not name.startswith("torch._C.")
    }  # dummies on CPUs
    assert no_classes == NO_CLASSES
