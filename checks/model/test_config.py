"""Model configurations: the presets have what their names promise, and nonsense is refused."""

from __future__ import annotations

import pytest

from ringproof.errors import InputError
from ringproof.reference.model.config import PRESETS, LayerKind, preset


def test_presets_are_what_they_are_named_after() -> None:
    assert tuple(PRESETS) == ("qwen3-tiny", "moonlight-tiny", "nemotron-h-tiny")
    assert all(config.name == name for name, config in PRESETS.items())
    qwen3, moonlight, nemotron = PRESETS.values()
    assert qwen3.attention is not None
    assert qwen3.attention.kv_heads < qwen3.attention.heads
    assert qwen3.attention.normalise
    assert {kind.mixer for kind in moonlight.layers} == {"latent"}
    assert moonlight.layers[0].feed_forward == "swiglu"
    assert {kind.feed_forward for kind in moonlight.layers[1:]} == {"experts"}
    assert nemotron.attention is not None
    assert not nemotron.attention.rotary
    # Each layer of a Nemotron-H is one part only.
    assert all((kind.mixer is None) != (kind.feed_forward is None) for kind in nemotron.layers)


def test_unknown_preset_names_the_known_ones() -> None:
    with pytest.raises(InputError, match="qwen3-tiny, moonlight-tiny, nemotron-h-tiny"):
        preset("qwen4")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("qwen3-tiny", LayerKind("attention", "swiglu")),
        ("moonlight-tiny", LayerKind("latent", "experts")),
        ("nemotron-h-tiny", LayerKind("attention", None)),
    ],
)
def test_multi_token_prediction_attends(name: str, kind: LayerKind) -> None:
    assert preset(name).mtp_layer == kind
