"""Dynamic CP in upstream's trees: functions of dev, main, 0.18 and 0.19 alone, and who calls whom.

How to give them: `checks/skills/conftest.py`.
"""

from __future__ import annotations

import ast
import inspect
import itertools

import numpy as np
import pytest
import torch

CORE = "megatron/core/"
UTILS = f"{CORE}datasets/data_schedule_utils.py"
SCHEDULE = f"{CORE}datasets/data_schedule.py"
TRAINING = ("megatron/training/", "pretrain_gpt.py")
HYBRID = ("HybridCPDataLoaderWrapper", "hybrid_context_parallel_forward_backward")
LATER = ["megatron-lm-r0.18", "megatron-lm-r0.19", "megatron-lm-main"]


def functions(tree, path, name):
    return [
        node
        for node in ast.walk(ast.parse(tree.read(path)))
        if isinstance(node, ast.FunctionDef) and node.name == name
    ]


def first_of_a_step(tree, tokens):
    """What batch preparation on the first tensor-parallel rank does with a sample's tokens."""
    path, name = f"{CORE}utils.py", "get_batch_on_this_tp_rank"
    prepare = tree.run(path, functions(tree, path, name), {"torch": torch})[name]
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


def with_condition(tree, change):
    """Upstream's `fill_empty`, its one loop over two conditions changed."""
    (node,) = functions(tree, UTILS, "fill_empty")
    loops = [
        inner.test
        for inner in ast.walk(node)
        if isinstance(inner, ast.While) and isinstance(inner.test, ast.BoolOp)
    ]
    assert [ast.unparse(test) for test in loops] == ["sid0 in sample_id_group[i] and i >= 0"]
    change(loops[0].values)
    return tree.run(UTILS, [node], {})[node.name]


def result(function, table):
    try:
        return function([list(ids) for ids in table])
    except Exception as error:
        return type(error).__name__


def test_the_negative_index_miscounts_nothing(dynamic_upstream):
    """Index -1 is read, and the second condition ends the loop whatever stands there."""
    tree = dynamic_upstream("megatron-lm-dev")
    as_it_is = with_condition(tree, lambda values: None)
    swapped = with_condition(tree, lambda values: values.reverse())
    unguarded = with_condition(tree, lambda values: values.append(values[0]) or values.pop(1))
    tables = [
        table
        for ranks in (2, 3, 4, 5)
        for table in itertools.product(((), (0,), (1,), (2,)), repeat=ranks)
    ]
    assert len(tables) == 4**2 + 4**3 + 4**4 + 4**5
    assert [table for table in tables if result(as_it_is, table) != result(swapped, table)] == []
    assert [table for table in tables if result(as_it_is, table) != result(unguarded, table)]


def sized(tree, name, value):
    """What batch preparation makes of one number: the branch of upstream's function, alone."""
    (prepare,) = functions(tree, SCHEDULE, "get_batch_on_this_rank_for_sequence_packing")
    (branch,) = (
        node
        for node in ast.walk(prepare)
        if isinstance(node, ast.If) and ast.unparse(node.test) == f"type(batch['{name}']) == int"
    )
    batch = {name: value}
    space = {"torch": torch, "dev": "cpu", "batch": batch}
    tree.run(SCHEDULE, [branch], space)
    return batch[name]


@pytest.mark.parametrize("name", ["local_cp_size", "max_seqlen"])
def test_numbers_of_numpy_are_refused(dynamic_upstream, name):
    tree = dynamic_upstream("megatron-lm-dev")
    for value in (4, torch.tensor(4, dtype=torch.int32)):
        assert sized(tree, name, value).item() == 4
    for value in (np.int32(4), np.int64(4)):
        with pytest.raises(AssertionError) as caught:
            sized(tree, name, value)
        assert str(caught.value) == "", "without a word"
