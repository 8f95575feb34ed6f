"""The step's time as a sum of eight unknown rates, each multiplied with a count.

The ring's overlap is a maximum of two such sums, and so is an exchange that leaves the node; which
of the two counts depends on the rates themselves. `counts` takes the ones that rates at hand
choose, so that ``counts(...) @ rates`` is what `StepCost` says with those rates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ringproof.reference.planning.costs import FloatArray
from ringproof.reference.planning.hardware import Hardware
from ringproof.reference.planning.timing import ATTENTION_BACKWARD, StepCost, exchanged
from ringproof.reference.planning.traffic import BACKWARD_RING, Layout

UNKNOWNS = (
    "attention_share",
    "linear_share",
    "attention_half_rows",
    "layer_launch_seconds",
    "intra_bytes_per_second",
    "inter_bytes_per_second",
    "intra_latency_seconds",
    "inter_latency_seconds",
)
"""Fields of `Hardware`, in the order of the rates; the first ones are found first."""
ATTENTION, LINEAR, SHORT, LAUNCH, NEAR, FAR, NEAR_MESSAGE, FAR_MESSAGE = range(len(UNKNOWNS))


@dataclass(frozen=True)
class Sample:
    """One measurement.

    Attributes:
        length: Tokens of the sequence.
        cp_size: Ranks that shared it.
        seconds: Forward and backward of a microbatch with only this sequence, pipeline and
            gradient reduction left out.
        attention_only: Only the attention of all layers was timed, nothing else.
    """

    length: int
    cp_size: int
    seconds: float
    attention_only: bool = False


def rates_of(machine: Hardware) -> FloatArray:
    """Seconds per operation, byte, message and layer; the linear unknowns."""
    attention = 1 / (machine.peak_flops_per_second * machine.attention_share)
    rates = np.empty(len(UNKNOWNS))
    rates[ATTENTION] = attention
    rates[SHORT] = attention * machine.attention_half_rows
    rates[LINEAR] = 1 / (machine.peak_flops_per_second * machine.linear_share)
    rates[LAUNCH] = machine.layer_launch_seconds
    rates[NEAR] = 1 / machine.intra_bytes_per_second
    rates[FAR] = 1 / machine.inter_bytes_per_second
    rates[NEAR_MESSAGE] = machine.intra_latency_seconds
    rates[FAR_MESSAGE] = machine.inter_latency_seconds
    return rates


def machine_of(rates: FloatArray, machine: Hardware) -> Hardware:
    """The machine with these rates; peak and node as they were.

    Raises:
        InputError: A rate that no machine can have: a share above the peak.
    """
    peak = machine.peak_flops_per_second
    return replace(
        machine,
        attention_share=float(1 / (peak * rates[ATTENTION])),
        attention_half_rows=float(rates[SHORT] / rates[ATTENTION]),
        linear_share=float(1 / (peak * rates[LINEAR])),
        layer_launch_seconds=float(rates[LAUNCH]),
        intra_bytes_per_second=float(1 / rates[NEAR]),
        inter_bytes_per_second=float(1 / rates[FAR]),
        intra_latency_seconds=float(rates[NEAR_MESSAGE]),
        inter_latency_seconds=float(rates[FAR_MESSAGE]),
    )


def counts(sample: Sample, model: StepCost, rates: FloatArray) -> FloatArray:
    """How often a sample spends each rate, shape ``(len(UNKNOWNS),)``."""
    how = model.layout(sample.cp_size)
    length = float(sample.length)
    attention = np.zeros(len(UNKNOWNS))
    attention[ATTENTION] = length * length / how.size * model.attention_flops_factor
    attention[SHORT] = length / how.row_share * model.attention_flops_factor
    forward = _pass(attention, length, (model, how, 1), rates)
    backward = _pass(attention * ATTENTION_BACKWARD, length, (model, how, BACKWARD_RING), rates)
    times = 2 if model.recompute else 1
    found = (times * forward + backward) * model.shape.attention_layers
    messages = times * how.forward_messages + how.backward_messages
    message = NEAR_MESSAGE if model.inside(how.size) else FAR_MESSAGE
    found[message] += messages * model.shape.attention_layers
    if not sample.attention_only:
        found[LINEAR] += length / how.size * model.linear_flops
        found[LAUNCH] += model.shape.layers * (4 / 3 if model.recompute else 1.0)
    return found


def _pass(
    attention: FloatArray, length: float, setting: tuple[StepCost, Layout, int], rates: FloatArray
) -> FloatArray:
    """One layer and direction."""
    model, how, times = setting
    share = length / how.size
    message = np.zeros(len(UNKNOWNS))
    message[NEAR if model.inside(how.size) else FAR] = share * model.kv_bytes * times
    step = attention / how.ring
    found = step + (how.ring - 1) * _longer(step, message, rates)
    if how.gathers:
        found = found + message * (how.size - 1)
    if how.inner > 1:
        near, far = np.zeros(len(UNKNOWNS)), np.zeros(len(UNKNOWNS))
        moved = share * (model.q_and_out_bytes + model.kv_bytes)
        parts = exchanged(model.node_ranks, how.inner)
        near[NEAR], far[FAR] = moved * parts[0], moved * parts[1]
        found = found + _longer(near, far, rates)
    return found


def _longer(one: FloatArray, other: FloatArray, rates: FloatArray) -> FloatArray:
    return one if float(one @ rates) >= float(other @ rates) else other
