"""What megatron-core 0.16.1 accepts and refuses of CUDA graphs with Dynamic CP, executed on CPU.

Its names for Dynamic CP are the older ones (hybrid). What replay does is in `test_graphs_replay`.
Nothing skips: a missing megatron-core is a failure.
"""

from __future__ import annotations

import pytest
import torch.distributed as dist
from megatron.core.transformer import TransformerConfig, cuda_graphs
from megatron.core.transformer.enums import CudaGraphScope

from checks.skills.shared import (
    REPOSITORY,
    SMALL,
    check_release,
)

CARD = REPOSITORY / "cards" / "dynamic-cp-cuda-graphs" / "card.yaml"
DYNAMIC = {"hybrid_context_parallel": True, "max_seqlen_per_dp_cp_rank": 16}


def config_with(**fields):
    return TransformerConfig(**SMALL, **fields)


def test_installed_release_is_the_one_on_the_card(record_property):
    check_release(CARD, record_property)


# --- what the configuration says ---


@pytest.mark.parametrize(
    "graphs",
    [
        pytest.param({"cuda_graph_impl": "transformer_engine"}, id="layer graphs of TE"),
        pytest.param({"cuda_graph_impl": "local"}, id="local layer graphs"),
        pytest.param(
            {"cuda_graph_impl": "local", "cuda_graph_scope": "full_iteration"},
            id="one graph of the iteration",
        ),
    ],
)
@pytest.mark.parametrize("budget", [16, None])
def test_release_accepts_graphs_with_dynamic_cp(graphs, budget):
    config = config_with(hybrid_context_parallel=True, max_seqlen_per_dp_cp_rank=budget, **graphs)
    assert config.hybrid_context_parallel
    assert config.cuda_graph_impl == graphs["cuda_graph_impl"]


@pytest.mark.parametrize(
    ("graphs", "message"),
    [
        ({"cuda_graph_impl": "full_iteration"}, "Invalid cuda graph implementation"),
        (
            {"cuda_graph_impl": "transformer_engine", "cuda_graph_scope": "full_iteration"},
            "please use cuda_graph_impl=local",
        ),
    ],
)
def test_release_does_refuse_other_combinations(graphs, message):
    with pytest.raises(AssertionError, match=message):
        config_with(**DYNAMIC, **graphs)


NEW_NAMES = {
    "dynamic_context_parallel": True,
    "min_dynamic_context_parallel_size": 1,
    "sequence_packing_scheduler": "default_dynamic_cp",
    "cuda_graph_modules": ["attn"],
    "cuda_graph_dynamic_microbatches": True,
    "thd_max_packed_sequences": 8,
    "pad_packed_seq_alignment": "max",
    "pad_packed_seq_by_appending_dummy_seq": True,
    "thd_tail_padding_policy": "append_dummy_seq",
}


@pytest.mark.parametrize("name", NEW_NAMES)
def test_release_has_none_of_the_options_of_the_bank(name):
    with pytest.raises(TypeError, match=name):
        config_with(**{name: NEW_NAMES[name]})


def test_release_has_the_older_names():
    config = config_with(**DYNAMIC, cuda_graph_impl="local", cuda_graph_scope=["attn"])
    assert config.cuda_graph_scope == [CudaGraphScope.attn]
    assert config.cuda_graph_warmup_steps == 3


def layer_graphs(**fields):
    return config_with(cuda_graph_impl="transformer_engine", **fields)


SELECTIVE = {"recompute_granularity": "selective", "recompute_modules": ["core_attn"]}


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"cpu_offloading": True}, ValueError, "not supported with CPU offloading"),
        (
            {
                "recompute_granularity": "full",
                "recompute_method": "uniform",
                "recompute_num_layers": 1,
            },
            AssertionError,
            "full recompute is only supported with full iteration",
        ),
        (
            {**SELECTIVE, "attention_dropout": 0.1},
            AssertionError,
            "attention dropout is not supported with graphed attention",
        ),
        ({"cuda_graph_scope": ["moe_router"]}, AssertionError, "only supported for MoE"),
        (
            {"num_moe_experts": 4, "cuda_graph_scope": ["moe", "moe_router"]},
            AssertionError,
            "must not contain both moe and moe_router",
        ),
        (
            {"num_moe_experts": 4, "cuda_graph_scope": ["moe_preprocess"]},
            AssertionError,
            "only supported with moe_router",
        ),
        (
            {"num_moe_experts": 4, "cuda_graph_scope": ["moe"]},
            AssertionError,
            "only supported with drop-padding MoE",
        ),
    ],
)
def test_layer_graphs_refuse(fields, error, message):
    with pytest.raises(error, match=message):
        layer_graphs(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {**SELECTIVE, "attention_dropout": 0.0},
        {**SELECTIVE, "attention_dropout": 0.1, "cuda_graph_scope": ["mlp"]},
        {"num_moe_experts": 4, "cuda_graph_scope": ["moe_router", "moe_preprocess"]},
    ],
)
def test_layer_graphs_allow(fields):
    assert layer_graphs(**fields).cuda_graph_impl == "transformer_engine"


def test_helper_needs_transformer_engine():
    with pytest.raises(AssertionError, match="not supported without TE"):
        cuda_graphs.TECudaGraphHelper([], layer_graphs(), 64, 1)


@pytest.mark.parametrize(
    ("environment", "refused"),
    [
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, True),
        (
            {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "NCCL_GRAPH_REGISTER": "0"},
            False,
        ),
        ({}, False),
    ],
)
def test_helper_refuses_expandable_segments(monkeypatch, environment, refused):
    monkeypatch.setattr(cuda_graphs, "HAVE_TE_GRAPHS", True)
    monkeypatch.setattr(cuda_graphs, "log_on_each_pipeline_stage", lambda **_: None)
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "NCCL_GRAPH_REGISTER"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    if refused:
        with pytest.raises(AssertionError, match="NCCL_GRAPH_REGISTER=0"):
            cuda_graphs.TECudaGraphHelper([], layer_graphs(), 64, 1)
    else:
        assert cuda_graphs.TECudaGraphHelper([], layer_graphs(), 64, 1).flattened_callables == []
