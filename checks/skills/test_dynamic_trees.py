"""Dynamic CP in upstream's other trees: main, 0.18, 0.19 and Bridge, from checkouts.

How to give them: `checks/skills/conftest.py`.
"""

from __future__ import annotations

import ast
import inspect

import pytest
import torch

CORE = "megatron/core/"
TRAINING = ("megatron/training/", "pretrain_gpt.py")
HYBRID = ("HybridCPDataLoaderWrapper", "hybrid_context_parallel_forward_backward")
LATER = ["megatron-lm-r0.18", "megatron-lm-r0.19", "megatron-lm-main"]


def function(tree, path, name):
    """One of upstream's functions, alone; it may use torch."""
    (node,) = (
        node
        for node in ast.parse(tree.read(path)).body
        if isinstance(node, ast.FunctionDef) and node.name == name
    )
    return tree.run(path, [node], {"torch": torch})[name]


def first_of_a_step(tree, tokens):
    """What batch preparation on the first tensor-parallel rank does with a sample's tokens."""
    prepare = function(tree, f"{CORE}utils.py", "get_batch_on_this_tp_rank")
    arguments = dict.fromkeys(inspect.signature(prepare).parameters)
    chosen = {"batch": {"tokens": tokens}, "is_hybrid_cp": True, "tp_rank": 0}
    prepare(**{**arguments, **chosen})


class PastTheShape(Exception):
    """The next thing it does is to ask for the GPU."""


@pytest.mark.parametrize("version", LATER)
def test_a_bare_sample_has_no_second_dimension(dynamic_upstream, version, monkeypatch):
    """The loader yields one dimension; `test_dynamic_groups.py` shows that on 0.16.1."""
    tree = dynamic_upstream(version)
    with pytest.raises(IndexError):
        first_of_a_step(tree, torch.arange(8))

    def reached():
        raise PastTheShape

    monkeypatch.setattr(torch.cuda, "current_device", reached)
    with pytest.raises(PastTheShape):
        first_of_a_step(tree, torch.arange(8)[None])


def uses(tree, under, names):
    """Names and the files that call them; definitions, imports and comments do not count."""
    found = set()
    for path in tree.paths(under):
        text = tree.read(path) if path.endswith(".py") else b""
        if any(name.encode() in text for name in names):
            found |= {(name, path) for name in called(text) & set(names)}
    return found


def called(text):
    return {
        name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        for name in (getattr(node.func, "id", ""), getattr(node.func, "attr", ""))
    }


def all_uses(tree, names):
    return set().union(*(uses(tree, under, names) for under in (CORE, *TRAINING)))


def test_nothing_on_dev_calls_the_hybrid_line(dynamic_upstream):
    dev = dynamic_upstream("megatron-lm-dev")
    assert all_uses(dev, HYBRID) == set()
    assert {name for name, _ in all_uses(dev, ("wrap_data_iterator",))} == {"wrap_data_iterator"}


def test_nothing_on_main_calls_the_packing_library(dynamic_upstream):
    main = dynamic_upstream("megatron-lm-main")
    assert all_uses(main, ("wrap_data_iterator",)) == set()
    assert {name for name, _ in all_uses(main, HYBRID)} == set(HYBRID)


SCHEDULING = ("wrap_data_iterator", "DefaultDynamicCPScheduler", *HYBRID, "BalancedCPScheduler")


def test_bridge_calls_no_scheduler(dynamic_upstream):
    bridge = dynamic_upstream("megatron-bridge-head")
    assert uses(bridge, "src/", SCHEDULING) == set()
    example = "examples/training_features/long_context/dynamic_context_parallel.py"
    assert uses(bridge, "examples/", SCHEDULING) == {("DefaultDynamicCPScheduler", example)}
    (initialize,) = (
        path for path in bridge.paths("src/") if path.endswith("bridge/training/initialize.py")
    )
    assert b"dynamic_context_parallel" in bridge.read(initialize), "the flag is handed on"
