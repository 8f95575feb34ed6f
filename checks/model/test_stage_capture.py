"""Without metadata, too, no value of a stage is read by the host, and no shape depends on data.

The tape refuses both by name. The dispatch of a mixture of experts is the exception.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from checks.graphs.captures import graph
from checks.model.whole_model import gradients, run, whole
from ringproof.reference.model.config import preset
from ringproof.reference.topology.dynamic import ContextParallelGroup
from smoke.model_batches import random_sequences, rank_batch


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("name", ["qwen3-tiny", "nemotron-h-tiny"])
def test_nothing_depends_on_data(name: str, recompute: bool, alone: ContextParallelGroup) -> None:
    stage = whole(replace(preset(name), mtp_depths=1), recompute=recompute)
    batch = rank_batch(random_sequences(), alone, depths=1)
    _, expected = run(stage, batch)
    parameters = dict(stage.named_parameters())
    captured = graph(lambda: stage(batch.tokens, batch).value, parameters=parameters)
    stage.zero_grad()
    captured().backward()
    for key, gradient in gradients(stage).items():
        assert torch.equal(gradient, expected[key]), key
