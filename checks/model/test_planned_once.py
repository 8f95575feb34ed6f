"""What layers derive from the pack alone is derived once for a microbatch, not in each call."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest

from checks.model.whole_model import run, whole
from ringproof.reference.attention import exchange
from ringproof.reference.attention import plan as attention_plan
from ringproof.reference.model import batch as model_batch
from ringproof.reference.model.config import preset
from ringproof.reference.model.static import with_metadata
from ringproof.reference.packing.sequences import Capacity
from ringproof.reference.topology.dynamic import ContextParallelGroup
from smoke.model_batches import random_sequences, rank_batch

PLANNINGS = (
    (attention_plan, "step_table"),
    (attention_plan, "masked_steps"),
    (exchange, "segments_in_order"),
    (model_batch, "row_segments"),
)
"""Functions that take host time in the number of sequences or of ranks."""


def counted(function: Callable[[], Any]) -> dict[str, int]:
    """How often a function plans, by the names of :data:`PLANNINGS`; others were not called."""
    with ExitStack() as stack:
        spies = {
            name: stack.enter_context(patch.object(module, name, wraps=getattr(module, name)))
            for module, name in PLANNINGS
        }
        function()
    return {name: spy.call_count for name, spy in spies.items() if spy.called}


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize(
    ("name", "plannings"),
    [
        ("qwen3-tiny", {"step_table": 1}),
        ("moonlight-tiny", {"step_table": 1}),
        ("nemotron-h-tiny", {"step_table": 1, "segments_in_order": 1, "row_segments": 1}),
    ],
)
def test_a_microbatch_is_planned_once(
    name: str, plannings: dict[str, int], recompute: bool, alone: ContextParallelGroup
) -> None:
    stage = whole(preset(name), recompute=recompute)
    for lengths in ((13, 1), (7, 24)):
        batch = rank_batch(random_sequences(lengths), alone)
        assert counted(partial(run, stage, batch)) == plannings


def test_a_static_microbatch_is_planned_once(alone: ContextParallelGroup) -> None:
    stage = whole(preset("qwen3-tiny"))
    batch = rank_batch(random_sequences((13, 1)), alone)
    capacity = Capacity(rows=batch.packed.rows, entries=len(batch.packed.lengths))
    static = with_metadata(batch, capacity)
    assert counted(lambda: run(stage, static)) == {"masked_steps": 1}
    assert counted(lambda: run(stage, static)) == {}
