"""Hardware presets against datasheets and published kernel speeds; custom machines."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ringproof.errors import InputError
from ringproof.reference.planning.hardware import (
    H100,
    PRESETS,
    hardware,
    hardware_from_json,
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
    assert hardware(machine.name) is machine


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


def test_custom_hardware_needs_every_field():
    data = H100.as_json()
    assert hardware_from_json(data) == H100
    nameless = {name: data[name] for name in data if name != "name"}
    assert hardware_from_json(nameless) == replace(H100, name="custom")
    for name in nameless:
        with pytest.raises(InputError, match=rf"hardware\.{name}: is missing"):
            hardware_from_json({key: value for key, value in data.items() if key != name})
    with pytest.raises(InputError, match=r"hardware\.speed: unknown field"):
        hardware_from_json({**data, "speed": 1})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("peak_flops_per_second", 0),
        ("peak_flops_per_second", float("nan")),
        ("attention_share", 1.01),
        ("linear_share", -0.1),
        ("inter_bytes_per_second", "50e9"),
        ("intra_latency_seconds", -1e-6),
        ("gpus_per_node", 7.5),
        ("gpus_per_node", True),
        ("layer_launch_seconds", float("inf")),
        ("peak_flops_per_second", 10**400),
        ("peak_flops_per_second", 1e-300),
        ("intra_bytes_per_second", 1e300),
        ("name", ["h100"]),
    ],
)
def test_impossible_machines_are_refused(field, value):
    with pytest.raises(InputError, match=rf"hardware\.{field}"):
        hardware_from_json({**H100.as_json(), field: value})


def test_unknown_names_are_refused():
    with pytest.raises(InputError, match=r"unknown hardware .* a100, h100"):
        hardware("h300")


@pytest.mark.parametrize("data", [5, None, [1], [[1]], "h100"])
def test_a_file_that_holds_no_machine_is_refused(data):
    with pytest.raises(InputError, match="hardware: is not a JSON object"):
        hardware_from_json(data)


def test_a_whole_number_of_gpus_may_be_written_as_a_float():
    found = hardware_from_json({**H100.as_json(), "gpus_per_node": 8.0})
    assert isinstance(found.gpus_per_node, int)
    assert found.gpus_per_node == 8
