"""Presets and files of models and machines: datasheets, published counts, and what is refused."""

from __future__ import annotations

from dataclasses import MISSING, fields, replace

import pytest

from ringproof.cli.plan_options import from_fields, preset
from ringproof.errors import InputError
from ringproof.reference.planning.hardware import H100, PRESETS, Hardware
from ringproof.reference.planning.shapes import (
    DCP_EXAMPLE,
    DEEPSEEK_V3,
    LLAMA3_8B,
    LLAMA3_70B,
    MOONLIGHT_16B_A3B,
    NEMOTRON_H_8B,
    QWEN3_30B_A3B,
    SHAPES,
)

# Dense bf16 TFLOP/s, NVLink GB/s and network Gb/s in one direction, as in the datasheets.
DATASHEETS = {
    "a100": (312, 600 / 2, 200),
    "h100": (989.4, 900 / 2, 400),
    "h200": (989.4, 900 / 2, 400),
    "b200": (2250, 1800 / 2, 400),
    "gb200": (180_000 / 72, 1800 / 2, 400),
}
# FlashAttention-3, figures 5 and 6, head dimension 128: TFLOP/s by rows.
FORWARD = {512: 292, 1024: 423, 2048: 521, 4096: 579, 8192: 602, 16384: 616}
BACKWARD = {512: 316, 1024: 424, 2048: 501, 4096: 542, 8192: 559, 16384: 561}


@pytest.mark.parametrize("machine", PRESETS, ids=lambda machine: machine.name)
def test_presets_are_the_datasheets(machine):
    peak, link, network = DATASHEETS[machine.name]
    assert machine.peak_flops_per_second == pytest.approx(peak * 1e12)
    assert machine.intra_bytes_per_second == link * 1e9
    assert machine.inter_bytes_per_second == network * 1e9 / 8


def worst_error(machine):
    """Of the rate in the model, against both figures weighted like their operations."""
    errors = []
    for rows, forward in FORWARD.items():
        measured = 3.5 / (1 / forward + 2.5 / BACKWARD[rows]) * 1e12
        share = machine.attention_share * rows / (rows + machine.attention_half_rows)
        errors.append(abs(machine.peak_flops_per_second * share / measured - 1))
    return max(errors)


def test_attention_follows_the_published_speeds():
    assert worst_error(H100) < 0.08
    assert worst_error(replace(H100, attention_half_rows=0)) > 0.5
    assert worst_error(replace(H100, attention_share=0.75)) > 0.2


def test_a_whole_number_of_gpus_may_be_written_as_a_float():
    found = from_fields(Hardware, {**vars(H100), "gpus_per_node": 8.0}, "hardware")
    assert isinstance(found.gpus_per_node, int)
    assert found.gpus_per_node == 8


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


@pytest.mark.parametrize(
    ("good", "field", "value", "problem"),
    [
        (H100, "peak_flops_per_second", 0, "hardware.peak_flops_per_second"),
        (H100, "peak_flops_per_second", float("nan"), "hardware.peak_flops_per_second"),
        (H100, "attention_share", 1.01, "hardware.attention_share"),
        (H100, "linear_share", -0.1, "hardware.linear_share"),
        (H100, "inter_bytes_per_second", "50e9", "hardware.inter_bytes_per_second"),
        (H100, "intra_latency_seconds", -1e-6, "hardware.intra_latency_seconds"),
        (H100, "gpus_per_node", 7.5, "hardware.gpus_per_node"),
        (H100, "gpus_per_node", True, "hardware.gpus_per_node"),
        (H100, "layer_launch_seconds", float("inf"), "hardware.layer_launch_seconds"),
        (H100, "peak_flops_per_second", 10**400, "hardware.peak_flops_per_second"),
        (H100, "peak_flops_per_second", 1e-300, "hardware.peak_flops_per_second"),
        (H100, "intra_bytes_per_second", 1e300, "hardware.intra_bytes_per_second"),
        (H100, "name", ["h100"], "hardware.name"),
        (LLAMA3_8B, "hidden", 0, "model.hidden"),
        (LLAMA3_8B, "heads", 2.0, "model.heads"),
        (LLAMA3_8B, "kv_heads", 5, "model.kv_heads"),
        (LLAMA3_8B, "layers", True, "model.layers"),
        (LLAMA3_8B, "layers", 10**400, "model.layers: 10+… is more than"),
        (LLAMA3_8B, "vocabulary", -1, "model.vocabulary"),
        (LLAMA3_8B, "attention_layers", 33, "model.attention_layers"),
        (LLAMA3_8B, "rope_head_dim", 129, "model.rope_head_dim"),
        (LLAMA3_8B, "recurrent_weights", -1, "model.recurrent_weights: -1 is less than 0"),
        (LLAMA3_8B, "gated", "yes", "model.gated: 'yes' is not a valid boolean"),
        (LLAMA3_8B, "name", 3, "model.name: 3 is not a valid string"),
    ],
)
def test_impossible_machines_and_shapes_are_refused(good, field, value, problem):
    what = "hardware" if good is H100 else "model"
    with pytest.raises(InputError, match=problem):
        from_fields(type(good), {**vars(good), field: value}, what)


def test_models_with_experts_say_so():
    assert {shape.name for shape in SHAPES if shape.experts} == {
        "qwen3-30b-a3b",
        "deepseek-v3",
        "moonlight-16b-a3b",
    }


@pytest.mark.parametrize(
    ("what", "presets", "known"),
    [("model", SHAPES, "llama3-8b"), ("hardware", PRESETS, "a100, h100")],
)
def test_every_preset_is_found_by_its_name(what, presets, known):
    assert len(presets) >= 5
    assert [preset(presets, one.name, what) for one in presets] == list(presets)
    with pytest.raises(InputError, match=rf"--{what}: .* is unknown; .*{known}"):
        preset(presets, "h300", what)


@pytest.mark.parametrize(
    ("what", "one"), [("hardware", H100), ("model", replace(QWEN3_30B_A3B, experts=0))]
)
def test_a_preset_of_ones_own(what, one):
    """Fields without a default are needed, others are refused, and the name may be left out."""

    def read(data):
        return from_fields(type(one), data, what)

    data = {key: value for key, value in vars(one).items() if key != "name"}
    optional = {item.name for item in fields(one) if item.default is not MISSING}
    assert len(optional) == (0 if what == "hardware" else 10)
    assert read(data) == replace(one, name="custom")
    assert read({**data, "name": one.name}) == one
    assert read({key: data[key] for key in data if key not in optional}) == read(data)
    for name in set(data) - optional:
        with pytest.raises(InputError, match=rf"{what}\.{name}: is missing"):
            read({key: value for key, value in data.items() if key != name})
    with pytest.raises(InputError, match=rf"{what}\.speed: is an unknown field"):
        read({**data, "speed": 1})
    for other in (5, None, [1], [["layers"]], "h100"):
        with pytest.raises(InputError, match=f"{what}: is not a JSON object"):
            read(other)
