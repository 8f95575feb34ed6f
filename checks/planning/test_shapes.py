"""Model shapes: worked by hand, and against the parameter counts that were published."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ringproof.errors import InputError
from ringproof.reference.planning.shapes import (
    DCP_EXAMPLE,
    DEEPSEEK_V3,
    LLAMA3_8B,
    LLAMA3_70B,
    MOONLIGHT_16B_A3B,
    NEMOTRON_H_8B,
    QWEN3_30B_A3B,
    SHAPES,
    model_shape,
    shape_from_json,
)


def test_llama_by_hand():
    projections = 4096 * 4096 + 2 * 4096 * 1024 + 4096 * 4096  # q, k and v of 8 heads, out
    per_layer = projections + 3 * 4096 * 14336
    assert LLAMA3_8B.attention_weights == projections == 41_943_040
    assert LLAMA3_8B.layer_flops_per_token == 2 * 32 * per_layer == 13_958_643_712
    assert LLAMA3_8B.head_flops_per_token == 2 * 4096 * 128256
    assert LLAMA3_8B.q_bytes_per_token == LLAMA3_8B.out_bytes_per_token == 8192
    assert LLAMA3_8B.kv_bytes_per_token == 4096


def test_compressed_attention_by_hand():
    query = 7168 * 1536 + 1536 * 128 * 192
    compressed = 7168 * (512 + 64)  # the rotary part of the key is shared by all heads
    expanded = 512 * 128 * (128 + 128)
    out = 128 * 128 * 7168
    assert DEEPSEEK_V3.attention_weights == query + compressed + expanded + out == 187_105_280
    assert DEEPSEEK_V3.q_bytes_per_token == 128 * 192 * 2
    assert DEEPSEEK_V3.kv_bytes_per_token == 128 * (192 + 128) * 2
    assert DEEPSEEK_V3.out_bytes_per_token == 128 * 128 * 2
    no_query_rank = 2048 * 16 * 192 + 2048 * 576 + 512 * 16 * 256 + 16 * 128 * 2048
    assert MOONLIGHT_16B_A3B.attention_weights == no_query_rank


def experts(shape, *, count, width, dense_layers):
    """Weights of all experts and their routers, and of the dense layers before them."""
    moe_layers = shape.layers - dense_layers
    each = 3 * shape.hidden * width
    dense = dense_layers * 3 * shape.hidden * shape.ffn
    routed = moe_layers * (each * count + shape.hidden * count)
    return dense + routed


# Everything that is not active for a token, and a second embedding where it is not tied.
REST = [
    (LLAMA3_8B, 0, None),
    (LLAMA3_70B, 0, None),
    (QWEN3_30B_A3B, 48 * 2048 * 128, {"count": 128, "width": 768, "dense_layers": 0}),
    (DEEPSEEK_V3, 0, {"count": 257, "width": 2048, "dense_layers": 3}),
    (MOONLIGHT_16B_A3B, 0, {"count": 66, "width": 1408, "dense_layers": 1}),
    (NEMOTRON_H_8B, 0, None),
    (DCP_EXAMPLE, 8192 * 2048 - 131072 * 2048, None),
]


@pytest.mark.parametrize(("shape", "rest", "moe"), REST, ids=lambda item: getattr(item, "name", ""))
def test_weights_add_up_to_what_was_published(shape, rest, moe):
    """Norms, biases and convolutions are left out: less than one part in a thousand."""
    counted = shape.layer_weights
    if moe:
        matrices = 3 if shape.gated else 2
        counted -= shape.ffn_layers * matrices * shape.hidden * shape.ffn
        counted += experts(shape, **moe)
        rest = 0
    counted += 2 * shape.vocabulary * shape.hidden + rest
    assert counted == pytest.approx(shape.parameters, rel=1e-3)


def test_a_wrong_width_would_be_noticed():
    wrong = replace(LLAMA3_8B, ffn=14080)
    counted = wrong.layer_weights + 2 * wrong.vocabulary * wrong.hidden
    assert counted != pytest.approx(wrong.parameters, rel=1e-3)


def test_of_a_hybrid_only_four_layers_attend():
    pattern = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"  # the recipe's
    counts = (len(pattern), pattern.count("*"), pattern.count("-"), pattern.count("M"))
    shape = NEMOTRON_H_8B
    kinds = (shape.layers, shape.attention_layers, shape.ffn_layers, shape.recurrent_layers)
    assert kinds == counts == (52, 4, 24, 24)


def test_every_preset_is_found_by_its_name():
    assert len(SHAPES) >= 7
    assert [model_shape(shape.name) for shape in SHAPES] == list(SHAPES)
    with pytest.raises(InputError, match=r"model: unknown model .* llama3-8b"):
        model_shape("llama4")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden", 0),
        ("heads", 2.0),
        ("kv_heads", 5),
        ("layers", True),
        ("vocabulary", -1),
        ("attention_layers", 33),
        ("rope_head_dim", 129),
    ],
)
def test_impossible_shapes_are_refused(field, value):
    with pytest.raises(InputError, match=f"model.{field}"):
        replace(LLAMA3_8B, **{field: value})


def test_a_model_of_ones_own():
    data = {key: value for key, value in vars(QWEN3_30B_A3B).items() if key != "name"}
    assert shape_from_json(data) == replace(QWEN3_30B_A3B, name="custom")
    least = {
        "parameters": 10**9,
        "layers": 4,
        "hidden": 64,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 16,
        "ffn": 256,
        "vocabulary": 1000,
    }
    assert shape_from_json(least).v_head_dim == 16
    for name in least:
        with pytest.raises(InputError, match=rf"model\.{name}: is missing"):
            shape_from_json({key: value for key, value in least.items() if key != name})


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (5, "model: is not a JSON object"),
        ([["layers"]], "model: is not a JSON object"),
        ({"hidden_size": 4096}, "model.hidden_size: unknown field"),
        ({**vars(LLAMA3_8B), "layers": 10**400}, "model.layers: is not a whole number"),
        ({**vars(LLAMA3_8B), "recurrent_weights": -1}, "model.recurrent_weights: is not a whole"),
        ({**vars(LLAMA3_8B), "gated": "yes"}, "gated is neither true nor false"),
        ({**vars(LLAMA3_8B), "name": 3}, "name is not text"),
    ],
)
def test_a_file_that_holds_no_model_is_refused(data, problem):
    with pytest.raises(InputError, match=problem):
        shape_from_json(data)


def test_models_with_experts_say_so():
    assert {shape.name for shape in SHAPES if shape.experts} == {
        "qwen3-30b-a3b",
        "deepseek-v3",
        "moonlight-16b-a3b",
    }
