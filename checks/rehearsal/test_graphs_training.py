"""Megatron's own training with layer-wise CUDA graphs, eager against graphs; needs checkouts."""

from __future__ import annotations

import pytest

from checks.rehearsal.graph_cases_training import CASES, WHEEL, Case, summary
from ringproof.rehearsal.fixtures import Stage


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_graphs_train_as_recorded(stage: Stage, case: Case) -> None:
    engine = f"NVIDIA/TransformerEngine@{case.engine}" if case.engine else WHEEL
    upstream = stage.upstream(f"NVIDIA/Megatron-LM@{case.megatron}", engine)
    eager = stage.run(case.program(upstream, graphs=False))
    assert eager.failure is None, eager.failure
    graphed = stage.run(case.program(upstream, graphs=True))
    found = summary(case, eager, graphed)
    if case.equal is None:
        assert graphed.failure is not None and case.message in graphed.failure.message
        return
    assert graphed.failure is None, graphed.failure
    assert found["equal"] == case.equal, found
    assert found["graphs"] and "0" not in found["replays"]
