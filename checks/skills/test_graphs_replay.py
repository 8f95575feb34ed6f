"""Which graph megatron-core 0.16.1 replays, and what it refuses to replay, executed on CPU.

No graph is captured here: what is executed is the Python around the graphs. Its names for
Dynamic CP are the older ones (hybrid). Nothing skips: a missing megatron-core is a failure.
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

from checks.skills.shared import SMALL

DYNAMIC = {"hybrid_context_parallel": True, "max_seqlen_per_dp_cp_rank": 16}
TENSORS_ONLY = "CUDA graph accepts only Tensor inputs"


def layer_graphs(**fields):
    return TransformerConfig(**SMALL, cuda_graph_impl="transformer_engine", **fields)


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
