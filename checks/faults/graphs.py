"""Defects of a program with layer-wise CUDA graphs: what a replay reads, and what it gives."""

from __future__ import annotations

from typing import Any

import torch

from checks.faults.planting import Run, planted, remembering

LAYER = "megatron.core.transformer.transformer_layer:TransformerLayer"
GIVEN = f"{LAYER}._get_te_cuda_graph_replay_args"
Given = dict[str, Any]


@planted(GIVEN)
def angles_moved(given: Given, run: Run) -> Any:
    """The rotary embedding that a graph reads is that of the positions before."""
    arguments, named = run()
    return arguments, {**named, "rotary_pos_emb": named["rotary_pos_emb"].roll(1, dims=0)}


@planted(GIVEN)
@remembering
def lengths_of_the_replay_before(given: Given, run: Run, kept: Given) -> Any:
    """The lengths of sequences that a graph reads are those of the replay before."""
    arguments, named = run()
    now = {name: one.clone() for name, one in named.items() if name.startswith("cu_seqlens")}
    before = kept.get(id(given["self"]), now)
    kept[id(given["self"])] = now
    return arguments, {**named, **before}


@planted(f"{LAYER}._activate_dynamic_cp_cuda_graph")
def graph_of_the_largest_size(given: Given, run: Run) -> Any:
    """Each microbatch replays the graphs of the largest CP size."""
    run()
    layer = given["self"]
    layer.cuda_graphs = layer.cuda_graphs_by_dynamic_cp_size[
        max(layer.cuda_graphs_by_dynamic_cp_size)
    ]


@planted("megatron.core.transformer.module:GraphableMegatronModule._te_cuda_graph_replay")
@remembering
def output_of_the_replay_before(given: Given, run: Run, kept: Given) -> Any:
    """The first output of a graph is not copied: its memory has that of the replay before."""
    found = run()
    output = found if isinstance(found, torch.Tensor) else found[0]
    now = output.detach().clone()
    output.detach().copy_(kept.get(id(given["self"]), now))
    kept[id(given["self"])] = now
    return found
