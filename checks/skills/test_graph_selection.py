"""Which graphs a layer of the banks takes before a replay, asked of the layer's own function."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

HERE = "checks.skills.test_graph_selection"


def select(sizes: list[int]) -> list[Any]:
    """Return what a layer has in place after it was given microbatches of these sizes in turn."""
    from megatron.core import parallel_state
    from megatron.core.transformer.transformer_layer import TransformerLayer

    groups = {size: object() for size in (1, 2, 4)}
    state: Any = parallel_state
    state.get_dynamic_data_context_parallel_groups = lambda group_size: groups[group_size]
    layer: Any = SimpleNamespace(
        cuda_graphs_by_dynamic_cp_size={size: [f"graphs of {size}"] for size in groups},
        activate_te_cuda_graph_static_hidden_inputs=lambda size: None,
    )
    taken = []
    for size in sizes:
        pack: Any = SimpleNamespace(local_cp_size=size, cp_group=groups[size])
        TransformerLayer._activate_dynamic_cp_cuda_graph(layer, pack)
        taken += layer.cuda_graphs
    return taken


@pytest.mark.slow
@pytest.mark.parametrize("line", ["megatron-lm-pr6479", "megatron-lm-pr5618"])
def test_a_layer_takes_the_entry_of_the_size(line, stage, graph_line):
    (taken,) = stage.call(f"{HERE}:select", 1, [2, 1, 4, 2], upstream=graph_line(line))
    assert taken == ["graphs of 2", "graphs of 1", "graphs of 4", "graphs of 2"]
