"""Stages: where a model is cut, and that any cut is the same model."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from checks.model.whole_model import gradients, whole, worst
from ringproof.errors import InputError
from ringproof.reference.model.config import PRESETS, preset
from ringproof.reference.model.stage import split_layers
from ringproof.reference.topology.dynamic import ContextParallelGroup
from smoke.model_batches import random_sequences, rank_batch

UNTIED = replace(preset("qwen3-tiny"), tied=False)


@pytest.mark.parametrize("name", PRESETS)
def test_stages_one_after_the_other_are_the_model(name: str, alone: ContextParallelGroup) -> None:
    """Any cut has the same parameters by name, and the same loss and gradients."""
    config = replace(preset(name), mtp_depths=1)
    batch = rank_batch(random_sequences(), alone, depths=1)
    one = whole(config)
    output = one(batch.tokens, batch)
    output.value.backward()
    runs = split_layers(len(config.layers), 3)
    stages = [
        whole(config, layers=layers, first=i == 0, last=i == len(runs) - 1)
        for i, layers in enumerate(runs)
    ]
    x, losses = batch.tokens, {}
    for stage in stages:
        middle = replace(batch, tokens=None, future=None)
        part = stage(x, batch if stage.first or stage.last else middle)
        x = part.value
        for key, loss in part.losses.items():
            losses[key] = losses.get(key, 0.0) + loss
    x.backward()
    assert losses.keys() == output.losses.keys()
    for key, loss in output.losses.items():
        torch.testing.assert_close(losses[key], loss, rtol=1e-14, atol=0)
    total: dict[str, torch.Tensor] = {}
    for stage in stages:
        for key, gradient in gradients(stage).items():
            assert key not in total or stage.kinds[key].shared
            total[key] = total.get(key, torch.zeros(())) + gradient
    assert worst(total, gradients(one)) < 1e-12


def test_shared_says_what_lives_twice() -> None:
    for config, expected in (
        (replace(UNTIED, tied=True), True),
        (replace(UNTIED, mtp_depths=1), True),
        (UNTIED, False),
    ):
        first = whole(config, layers=range(1), last=False)
        assert first.kinds["embedding.weight"].shared is expected
        last = whole(config, layers=range(1, 4), first=False)
        assert ("embedding.weight" in last.kinds) is expected
        assert not whole(config).kinds["embedding.weight"].shared


def test_kinds_name_every_parameter() -> None:
    for name in PRESETS:
        stage = whole(replace(preset(name), mtp_depths=1))
        assert set(stage.kinds) == {key for key, _ in stage.named_parameters()}


@pytest.mark.parametrize("count", range(1, 9))
def test_split_layers(count: int) -> None:
    for stages in range(1, count + 1):
        runs = split_layers(count, stages)
        assert [i for layers in runs for i in layers] == list(range(count))
        lengths = [len(layers) for layers in runs]
        assert max(lengths) - min(lengths) <= 1
        assert lengths == sorted(lengths, reverse=True)


@pytest.mark.parametrize("stages", [0, 5])
def test_split_layers_refuses(stages: int) -> None:
    with pytest.raises(InputError, match="stages"):
        split_layers(4, stages)


@pytest.mark.parametrize("name", PRESETS)
def test_modules_can_be_moved(name: str) -> None:
    """A helper that has taken the name of one of torch's own would break this."""
    stage = whole(replace(preset(name), mtp_depths=1)).to(torch.float32)
    assert {parameter.dtype for parameter in stage.parameters()} == {torch.float32}
