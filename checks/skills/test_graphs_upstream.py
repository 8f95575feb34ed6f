"""What megatron-core 0.16.1 accepts, refuses and replays of CUDA graphs with Dynamic CP, on CPU.

Its names for Dynamic CP are the older ones (hybrid). No graph is captured here. Nothing skips: a
missing megatron-core is a failure.
"""

from __future__ import annotations

import dataclasses
import types

import pytest
import torch
import torch.distributed as dist
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer import TransformerConfig, cuda_graphs
from megatron.core.transformer.enums import CudaGraphScope
from megatron.core.transformer.module import GraphableMegatronModule
from megatron.core.transformer.transformer_layer import TransformerLayer

from checks.skills.shared import REPOSITORY, SMALL, check_release

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


# --- which graph is replayed: what is executed is the Python around the graphs ---

TENSORS_ONLY = "CUDA graph accepts only Tensor inputs"


def packed(**fields):
    boundaries = torch.tensor([0, 4, 8], dtype=torch.int32)
    return PackedSeqParams(qkv_format="thd", cu_seqlens_q=boundaries, **fields)


def test_packed_metadata_carries_size_and_group():
    names = {field.name for field in dataclasses.fields(PackedSeqParams)}
    assert {"local_cp_size", "cp_group", "cu_seqlens_q", "cu_seqlens_q_padded"} <= names
    assert "pad_between_seqs" not in names


class GraphLayer(TransformerLayer):
    """A layer reduced to what replay asks of it; attention left eager returns its input."""

    def __init__(self, scope, graphs):
        torch.nn.Module.__init__(self)
        self.config = types.SimpleNamespace(
            cuda_graph_scope=scope, overlap_moe_expert_parallel_comm=False
        )
        self.is_moe_layer = False
        self.cuda_graphs = graphs
        self.cuda_graph_manual_hooks = []
        self.eager_metadata = []

    def _get_te_cuda_graph_replay_args(self, *args, **kwargs):
        # The layer's own asks for Transformer Engine; its base class does the same without masks.
        return GraphableMegatronModule._get_te_cuda_graph_replay_args(self, *args, **kwargs)

    def _forward_attention(self, hidden_states, **kwargs):
        self.eager_metadata.append(kwargs.get("packed_seq_params"))
        return hidden_states, None


def echo(hidden_states, **_):
    return (hidden_states,)


@pytest.mark.parametrize("local_cp_size", [1, 2])
def test_replay_refuses_packed_metadata(local_cp_size):
    layer = GraphLayer([], [echo])
    metadata_of_batch = packed(local_cp_size=local_cp_size)
    with pytest.raises(AssertionError, match=TENSORS_ONLY):
        layer._te_cuda_graph_replay(torch.ones(2), packed_seq_params=metadata_of_batch)
    output, _ = layer._te_cuda_graph_replay(torch.ones(2))
    assert output.tolist() == [1.0, 1.0], "without packed metadata it replays"


def test_scope_without_attention_keeps_metadata_out_of_the_graph():
    layer = GraphLayer([CudaGraphScope.mlp], [echo])
    metadata_of_batch = packed(local_cp_size=2)
    layer._te_cuda_graph_replay(torch.ones(2), packed_seq_params=metadata_of_batch)
    assert layer.eager_metadata == [metadata_of_batch]


@pytest.mark.parametrize("value", [2, "thd", (torch.ones(1),)])
def test_replay_refuses_what_is_no_tensor(value):
    layer = GraphLayer([], [echo])
    with pytest.raises(AssertionError, match=TENSORS_ONLY):
        GraphableMegatronModule._te_cuda_graph_replay(layer, torch.ones(1), extra=value)
    GraphableMegatronModule._te_cuda_graph_replay(layer, torch.ones(1), extra=None)


def slots_used(slots, microbatches):
    used = []
    graphs = [lambda *_, slot=slot, **__: used.append(slot) for slot in range(slots)]
    layer = GraphLayer([], graphs)
    for index in range(microbatches):
        layer.current_microbatch = index
        GraphableMegatronModule._te_cuda_graph_replay(layer, torch.ones(1))
    return used


def test_slots_are_reused_by_modulo_without_a_word():
    assert slots_used(slots=2, microbatches=5) == [0, 1, 0, 1, 0]
    assert slots_used(slots=5, microbatches=5) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("training", "graphs", "replayed"), [(1, 1, 1), (0, 1, 0), (1, 0, 0)])
def test_graphs_are_replayed_in_training_only(training, graphs, replayed):
    layer = GraphLayer([], [echo] * graphs)
    layer.config = layer_graphs()
    layer.train(bool(training))
    assert bool(layer._should_call_te_cudagraph()) is bool(replayed)


@pytest.mark.parametrize(("context_parallel_size", "rows"), [(1, 64), (4, 16)])
def test_static_rows_follow_the_static_size(monkeypatch, context_parallel_size, rows):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: torch.device("cpu"))
    config = layer_graphs(**DYNAMIC, context_parallel_size=context_parallel_size)
    layer = types.SimpleNamespace(config=config)
    inputs = GraphableMegatronModule.get_layer_static_inputs(layer, 64, 1)
    assert inputs["hidden_states"].shape == (rows, 1, 16)
    assert set(inputs) == {"hidden_states"}, "no packed metadata among the static inputs"


# --- the local implementation ---


def mismatches(captured, given, rows=4):
    meta = cuda_graphs.ArgMetadata
    runner = types.SimpleNamespace(
        fwd_graph_input_arg_metas=[meta(torch.zeros(4, 1))],
        fwd_graph_input_kwarg_metas={"packed_seq_params": meta(captured)},
    )
    return cuda_graphs._CudaGraphRunner.get_mismatch_errors(
        runner, (torch.zeros(rows, 1),), {"packed_seq_params": given}
    )


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"local_cp_size": 2, "max_seqlen_q": 8}, "local_cp_size: 2 vs 1"),
        ({"local_cp_size": 1, "max_seqlen_q": 9}, "max_seqlen_q: 9 vs 8"),
    ],
)
def test_local_graphs_refuse_another_size(given, named):
    captured = packed(local_cp_size=1, max_seqlen_q=8)
    (error,) = mismatches(captured, packed(**given))
    assert "Value mismatch" in error
    assert named in error


def test_local_graphs_accept_what_was_captured():
    first = packed(local_cp_size=1, max_seqlen_q=8)
    assert mismatches(first, packed(local_cp_size=1, max_seqlen_q=8)) == []
    (error,) = mismatches(first, first, rows=3)
    assert "Tensor mismatch" in error


def test_local_graphs_take_no_process_group():
    group = dist.ProcessGroup(0, 1)
    with pytest.raises(AssertionError, match=r"ProcessGroup.* which is not supported"):
        mismatches(packed(cp_group=group), packed(cp_group=group))
    assert mismatches(packed(cp_group=None), packed(cp_group=None)) == []
