"""A stage against the plain dense model, in float64, and that any cut into stages is the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from checks.model.dense import dense_loss
from checks.model.whole_model import gradients, run, whole, worst
from ringproof.errors import InputError
from ringproof.reference.model.batch import IGNORED, Totals
from ringproof.reference.model.config import PRESETS, AttentionShape, LayerKind, ModelConfig, preset
from ringproof.reference.model.stage import Stage, split_layers
from ringproof.reference.topology.dynamic import ContextParallelGroup
from smoke.model_batches import random_sequences, rank_batch

TOLERANCE = 1e-10
QWEN3 = preset("qwen3-tiny")
PLAIN = ModelConfig(
    name="plain",
    hidden=32,
    feed_forward=48,
    layers=(
        LayerKind("attention", None),
        LayerKind(None, "swiglu"),
        LayerKind("attention", "swiglu"),
    ),
    attention=AttentionShape(heads=4, kv_heads=2, head_width=8),
)
Record = Callable[[str, object], None]


def run_dense(stage: Stage, sequences: list[list[int]]) -> tuple[float, dict[str, torch.Tensor]]:
    weights = {
        name: parameter.detach().clone().requires_grad_()
        for name, parameter in stage.named_parameters()
    }
    loss = dense_loss(stage.config, weights, sequences)
    loss.backward()
    return float(loss.detach()), {name: weight.grad for name, weight in weights.items()}


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("depths", [0, 1, 3])
@pytest.mark.parametrize("config", [QWEN3, PLAIN], ids=lambda config: config.name)
def test_loss_and_gradients_equal_a_dense_model(
    config: ModelConfig,
    depths: int,
    recompute: bool,
    alone: ContextParallelGroup,
    record_property: Record,
) -> None:
    stage = whole(replace(config, mtp_depths=depths), recompute=recompute)
    sequences = random_sequences()
    loss, found = run(stage, rank_batch(sequences, alone, depths=depths, tail_rows=8))
    expected_loss, expected = run_dense(stage, sequences)
    record_property("loss_difference", abs(loss - expected_loss))
    record_property("worst_gradient_difference", worst(found, expected))
    assert loss == pytest.approx(expected_loss, rel=TOLERANCE)
    assert worst(found, expected) < TOLERANCE


def test_packing_changes_nothing(alone: ContextParallelGroup) -> None:
    """Microbatches of one sequence each add up to the pack of all."""
    sequences = random_sequences()
    stage = whole(replace(QWEN3, mtp_depths=2))
    together = rank_batch(sequences, alone, depths=2, multiple=16)
    loss, found = run(stage, together)
    stage.zero_grad()
    apart = 0.0
    for tokens in reversed(sequences):
        batch = rank_batch([tokens], alone, depths=2, multiple=1, total=together.totals)
        output = stage(batch.tokens, batch)
        output.value.backward()
        apart += float(output.value.detach())
    assert apart == pytest.approx(loss, rel=1e-13)
    assert worst(gradients(stage), found) < 1e-12


def test_a_microbatch_without_tokens_adds_nothing(alone: ContextParallelGroup) -> None:
    batch = rank_batch([[]], alone, depths=1, tail_rows=8, total=Totals(10, (9, 8)))
    loss, found = run(whole(replace(QWEN3, mtp_depths=1)), batch)
    assert loss == 0.0
    assert all(not gradient.any() for gradient in found.values())


@pytest.mark.parametrize(("recompute", "forwards"), [(False, 1), (True, 2)])
def test_recompute_runs_layers_again(
    recompute: bool, forwards: int, alone: ContextParallelGroup
) -> None:
    stage = whole(replace(QWEN3, mtp_depths=1), recompute=recompute)
    seen: list[nn.Module] = []
    watched = [stage.layers["2"], stage.mtp["1"]]
    for module in watched:
        module.register_forward_pre_hook(lambda module, _: seen.append(module))
    run(stage, rank_batch(random_sequences(), alone, depths=1))
    assert sorted(map(seen.count, watched)) == [forwards] * 2


def test_auxiliary_loss_reaches_the_router(alone: ContextParallelGroup) -> None:
    """Negative control of the hand-on: without it the router learns of the language alone."""
    config = preset("moonlight-tiny")
    experts = config.experts
    assert experts is not None
    batch = rank_batch(random_sequences(), alone)
    name = "layers.1.moe.router.weight"
    _, with_loss = run(whole(config), batch)
    _, without = run(whole(replace(config, experts=replace(experts, auxiliary=0.0))), batch)
    assert float((with_loss[name] - without[name]).norm()) > 1e-4


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 1e-6), ("bfloat16", 2e-2), ("float16", 3e-3)]
)
@pytest.mark.parametrize("name", ["qwen3-tiny"])
def test_lower_precision(
    name: str, dtype: str, tolerance: float, alone: ContextParallelGroup
) -> None:
    config = replace(preset(name), mtp_depths=1)
    batch = rank_batch(random_sequences(), alone, depths=1)
    expected, _ = run(whole(config), batch)
    stage = whole(config, dtype=getattr(torch, dtype))
    output = stage(batch.tokens, batch)
    output.value.backward()
    assert output.value.dtype == torch.float32
    assert float(output.value.detach()) == pytest.approx(expected, rel=tolerance)
    assert all(bool(gradient.isfinite().all()) for gradient in gradients(stage).values())


def test_a_batch_of_other_rows_is_refused(alone: ContextParallelGroup) -> None:
    batch = rank_batch(random_sequences(), alone)
    with pytest.raises(InputError, match="positions"):
        replace(batch, positions=batch.positions[:-1])
    with pytest.raises(InputError, match="future"):
        replace(batch, future=torch.full((1, batch.rows + 1), IGNORED))


UNTIED = replace(preset("qwen3-tiny"), tied=False)


@pytest.mark.parametrize("name", PRESETS)
def test_stages_one_after_the_other_are_the_model(name: str, alone: ContextParallelGroup) -> None:
    """Any cut has the same parameters by name, and the same loss and gradients."""
    config = replace(preset(name), mtp_depths=1)
    batch = rank_batch(random_sequences(), alone, depths=1)
    one = whole(config)
    assert set(one.kinds) == {key for key, _ in one.named_parameters()}
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


@pytest.mark.parametrize("count", range(1, 9))
def test_split_layers(count: int) -> None:
    for stages in range(1, count + 1):
        runs = split_layers(count, stages)
        assert [i for layers in runs for i in layers] == list(range(count))
        lengths = [len(layers) for layers in runs]
        assert max(lengths) - min(lengths) <= 1
        assert lengths == sorted(lengths, reverse=True)


def test_presets_are_what_they_are_named_after() -> None:
    assert tuple(PRESETS) == ("qwen3-tiny", "moonlight-tiny")
    assert all(config.name == name for name, config in PRESETS.items())
    qwen3, moonlight = PRESETS.values()
    assert qwen3.attention is not None
    assert qwen3.attention.kv_heads < qwen3.attention.heads
    assert qwen3.attention.normalise
    assert {kind.mixer for kind in moonlight.layers} == {"latent"}
    assert moonlight.layers[0].feed_forward == "swiglu"
    assert {kind.feed_forward for kind in moonlight.layers[1:]} == {"experts"}


def test_unknown_preset_names_the_known_ones() -> None:
    with pytest.raises(InputError, match="qwen3-tiny, moonlight-tiny"):
        preset("qwen4")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("qwen3-tiny", LayerKind("attention", "swiglu")),
        ("moonlight-tiny", LayerKind("latent", "experts")),
    ],
)
def test_multi_token_prediction_attends(name: str, kind: LayerKind) -> None:
    assert preset(name).mtp_layer == kind


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"layers": ()}, "layers"),
        ({"layers": (LayerKind("convolution", None),)}, "layers"),
        ({"layers": (LayerKind("swiglu", None),)}, "layers"),
        ({"layers": (LayerKind("latent", None),)}, "latent"),
        ({"attention": None}, "attention"),
        ({"mtp_depths": -1}, "mtp_depths"),
    ],
)
def test_nonsense_is_refused(change: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as refusal:
        replace(QWEN3, **change)
    assert refusal.value.field == field


def test_heads_that_do_not_group_are_refused() -> None:
    assert QWEN3.attention is not None
    with pytest.raises(InputError, match="kv_heads"):
        replace(QWEN3.attention, kv_heads=3)
    with pytest.raises(InputError, match="head_width"):
        replace(QWEN3.attention, head_width=15)


def test_missing_labels_are_refused(alone: ContextParallelGroup) -> None:
    stage = whole(replace(QWEN3, mtp_depths=2))
    batch = rank_batch(random_sequences(), alone, depths=1)
    for short in (batch, replace(batch, future=None)):
        with pytest.raises(InputError, match="future"):
            stage(batch.tokens, short)


@pytest.mark.parametrize("stages", [0, 5])
def test_split_layers_refuses(stages: int) -> None:
    with pytest.raises(InputError, match="stages"):
        split_layers(4, stages)


@pytest.mark.parametrize("name", PRESETS)
def test_modules_can_be_moved(name: str) -> None:
    """A helper that has taken the name of one of torch's own would break this."""
    stage = whole(replace(preset(name), mtp_depths=1)).to(torch.float32)
    assert {parameter.dtype for parameter in stage.parameters()} == {torch.float32}
