"""Calibration: what was put in comes out; what cannot be told is kept or refused."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

from checks.planning.batches import REAL, predicted, seconds
from ringproof.errors import InputError
from ringproof.reference.attention.measure import measure_attention
from ringproof.reference.planning.calibrate import (
    UNKNOWNS,
    calibration_from_json,
    fit,
    independent,
)
from ringproof.reference.planning.hardware import A100, H100
from ringproof.reference.planning.samples import Sample, measurement_json, parse_samples
from ringproof.reference.planning.shapes import DCP_EXAMPLE, LLAMA3_8B, SHAPES
from ringproof.reference.planning.timing import StepCost

TRUE = replace(
    H100,
    attention_share=0.45,
    attention_half_rows=900,
    linear_share=0.5,
    layer_launch_seconds=1e-4,
    intra_bytes_per_second=200e9,
    inter_bytes_per_second=20e9,
    intra_latency_seconds=5e-6,
    inter_latency_seconds=50e-6,
)
MODEL = StepCost(shape=LLAMA3_8B, machine=TRUE)
LENGTHS = (512, 2048, 8192, 32768, 131072)
SIZES = (1, 2, 4, 8, 16)


def measured(model, lengths=LENGTHS, sizes=SIZES, noise=0.0, seed=0):
    rng = np.random.default_rng(seed)
    return [
        Sample(length, size, seconds(model, length, size) * float(np.exp(rng.normal(0, noise))))
        for length, size in itertools.product(lengths, sizes)
    ]


@pytest.mark.parametrize("comm_type", ["p2p", "all_gather", "a2a", "a2a+p2p"])
def test_the_basis_says_what_the_cost_model_says(comm_type):
    inner = 2 if comm_type == "a2a+p2p" else 1
    compared = 0
    for shape, recompute in itertools.product(SHAPES, (False, True)):
        model = StepCost(
            shape=shape,
            machine=TRUE,
            comm_type=comm_type,
            inner_size=inner,
            recompute=recompute,
        )
        for length, size in itertools.product((16, 1000, 100_000), (1, 2, 4)):
            here = predicted(Sample(length, size, 1.0), model)
            assert here == pytest.approx(seconds(model, length, size), rel=1e-12)
            compared += 1
    assert compared == len(SHAPES) * 18


def test_what_was_put_in_comes_out():
    found = fit(measured(MODEL), REAL)
    assert found.kept == ()
    assert found.mean_absolute_error < 1e-3
    machine = found.apply(H100)
    for name in UNKNOWNS:
        assert getattr(machine, name) == pytest.approx(getattr(TRUE, name), rel=0.06), name
        assert getattr(H100, name) != pytest.approx(getattr(TRUE, name), rel=0.06), name


@pytest.mark.parametrize("comm_type", ["all_gather", "a2a"])
def test_exposed_communication_comes_out_too(comm_type):
    shape = replace(LLAMA3_8B, kv_heads=32)
    model = StepCost(shape=shape, machine=TRUE, comm_type=comm_type)
    found = fit(measured(model), replace(model, machine=H100))
    told = {"intra_bytes_per_second", "inter_bytes_per_second", "inter_latency_seconds"}
    assert told <= found.fitted.keys()
    for name in told:
        assert found.fitted[name] == pytest.approx(getattr(TRUE, name), rel=1e-3), name
    # An exchange leaves long rows, whatever the size: what short ones cost looks like other work.
    assert found.kept == (() if comm_type == "all_gather" else ("attention_half_rows",))


def test_noise_of_three_percent_is_survived():
    lengths = np.unique(np.geomspace(256, 262144, 24).astype(int)).tolist()
    found = fit(measured(MODEL, lengths, noise=0.03), REAL)
    machine = found.apply(H100)
    assert machine.attention_share == pytest.approx(0.45, rel=0.05)
    assert machine.linear_share == pytest.approx(0.5, rel=0.05)
    assert 0.01 < found.mean_absolute_error < 0.05
    worse = [abs(predicted(row.sample, REAL) / row.sample.seconds - 1) for row in found.rows]
    assert np.mean(worse) > 3 * found.mean_absolute_error


def test_one_rank_says_nothing_of_links():
    """And short rows cost like other work: their share stays the preset's, and is said to."""
    samples = measured(MODEL, sizes=(1,))
    found = fit(samples, REAL)
    assert list(found.fitted) == [
        "attention_share",
        "linear_share",
        "layer_launch_seconds",
    ]
    assert set(found.kept) == set(UNKNOWNS) - found.fitted.keys()
    assert found.apply(H100).inter_bytes_per_second == H100.inter_bytes_per_second
    assert found.apply(H100).attention_share == pytest.approx(0.45)


def test_attention_alone_tells_its_short_rows():
    attention = StepCost(shape=LLAMA3_8B, machine=replace(TRUE, layer_launch_seconds=0))
    nothing = replace(LLAMA3_8B, vocabulary=0, ffn=1)
    rest = StepCost(shape=nothing, machine=attention.machine)
    linear = 3 * (nothing.layer_flops_per_token + nothing.head_flops_per_token) / (989.4e12 * 0.5)
    samples = [
        Sample(length, 1, seconds(rest, length, 1) - linear * length, attention_only=True)
        for length in LENGTHS
    ]
    found = fit(samples, REAL)
    assert found.fitted == pytest.approx(
        {"attention_share": 0.45, "attention_half_rows": 900}, rel=1e-6
    )


def test_it_can_be_written_and_read():
    found = fit(measured(MODEL), REAL)
    data = json.loads(json.dumps(found.as_json()))
    assert calibration_from_json(data) == found
    lines = "\n".join(json.dumps(measurement_json(row.sample)) for row in found.rows)
    assert parse_samples(lines) == tuple(row.sample for row in found.rows)
    machine = found.apply(H100)
    assert machine.name == "h100-calibrated"
    for broken in ({}, [], {**data, "version": 2}, {**data, "kept": 3}, {**data, "fitted": {}}):
        with pytest.raises(InputError, match=r"^calibration"):
            calibration_from_json(broken)


def test_a_calibration_belongs_to_its_peak():
    """Shares of one peak, taken of another, would be another machine."""
    found = fit(measured(MODEL), REAL)
    with pytest.raises(InputError, match="was fitted to a peak"):
        found.apply(A100)


@pytest.mark.slow
def test_what_is_found_has_the_error_that_noise_gives_it():
    """Over many noisy measurements, the scatter of what is found is the error that is stated."""
    lengths = np.unique(np.geomspace(256, 262144, 24).astype(int)).tolist()
    found = [
        fit(measured(MODEL, lengths, sizes=(1,), noise=0.03, seed=seed), REAL) for seed in range(20)
    ]
    for name in ("attention_share", "linear_share"):
        values = [one.fitted[name] for one in found]
        stated = float(np.mean([one.errors[name] for one in found]))
        assert stated == pytest.approx(float(np.std(values) / np.mean(values)), rel=0.6)
        assert stated > 0.001


def refused(samples):
    with pytest.raises(InputError) as caught:
        fit(samples, REAL)
    return str(caught.value)


def test_what_tells_nothing_is_refused():
    good = measured(MODEL, sizes=(1,))
    assert fit(good, REAL)
    assert "fewer than 3 different lengths" in refused([])
    assert "fewer than 3 different lengths" in refused([*good[:2], *good[:2], *good[:2]])
    assert "3 unknowns need at least 4 samples" in refused(good[:3])
    linear = [Sample(length, 1, 1e-5 * length) for length in LENGTHS]
    assert "square of the length" in refused(linear)
    fast = [replace(sample, seconds=sample.seconds / 100) for sample in good]
    assert "hardware.attention_share: is more than 1" in refused(fast)
    constant = [Sample(length, 1, 0.01) for length in LENGTHS]
    assert "so there is no" in refused(constant)
    assert "samples[1].seconds" in refused([good[0], replace(good[1], seconds=0.0), *good])
    assert "samples[0]" in refused([replace(good[0], length=0), *good])


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("length=3", "samples:2: is not JSON"),
        ("[1, 2]", "samples:2: is not a JSON object"),
        ('{"cp_size": 1, "seconds": 1}', "samples:2: length"),
        ('{"length": 1.5, "cp_size": 1, "seconds": 1}', "samples:2: length"),
        ('{"length": 1, "cp_size": true, "seconds": 1}', "samples:2: cp_size"),
        ('{"length": 1, "cp_size": 1, "seconds": "1"}', "samples:2: seconds"),
        (
            '{"length": 1, "cp_size": 1, "seconds": 1, "attention_only": 1}',
            "samples:2: attention_only",
        ),
        ("[" * 100_000, "samples:2: is not JSON"),
    ],
)
def test_bad_lines_are_named(line, problem):
    good = '{"length": 1, "cp_size": 1, "seconds": 1}'
    with pytest.raises(InputError, match=problem):
        parse_samples(f"{good}\n{line}\n")


def test_columns_that_repeat_others_are_left_out():
    rng = np.random.default_rng(0)
    one, two = rng.normal(size=(2, 8))
    columns = np.stack([one, np.zeros(8), 3 * one, two, one - two], axis=1)
    assert independent(columns) == (0, 3)


def test_attention_of_this_machine_can_be_timed():
    shape = replace(DCP_EXAMPLE, heads=2, kv_heads=1)
    samples = measure_attention(shape, (128, 512, 1024, 2048), repeats=2)
    assert [(sample.length, sample.cp_size) for sample in samples] == [
        (length, 1) for length in (128, 512, 1024, 2048)
    ]
    assert all(sample.attention_only and sample.seconds > 0 for sample in samples)
    for lengths, repeats in (((0,), 1), ((1 << 21,), 1), ((8,), 0)):
        with pytest.raises(InputError):
            measure_attention(shape, lengths, repeats=repeats)


def test_what_is_predicted_is_what_the_calibrated_machine_says():
    """Also where short rows keep their number: their rate follows that of attention."""
    samples = measured(MODEL, sizes=(1,), noise=0.02)
    found = fit(samples, REAL)
    assert "attention_half_rows" in found.kept
    model = StepCost(shape=LLAMA3_8B, machine=found.apply(H100))
    for row in found.rows:
        said = seconds(model, row.sample.length, 1)
        assert row.predicted_seconds == pytest.approx(said, rel=1e-9)


def test_noise_does_not_turn_into_rates():
    """Of a machine that is the preset's, nothing but the main rates is found anew."""
    samples = measured(REAL, noise=0.03)
    found = fit(samples, REAL)
    machine = found.apply(H100)
    for name in ("intra_bytes_per_second", "inter_bytes_per_second", "attention_half_rows"):
        assert getattr(machine, name) == pytest.approx(getattr(H100, name), rel=0.3), name
    assert len(found.kept) >= 4
    slower = replace(H100, inter_bytes_per_second=H100.inter_bytes_per_second / 3)
    other = fit(measured(StepCost(shape=LLAMA3_8B, machine=slower), noise=0.03), REAL)
    assert "inter_bytes_per_second" in other.fitted, "a real difference is found"
