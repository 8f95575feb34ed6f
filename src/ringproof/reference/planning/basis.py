"""The step's time as a sum of unknown rates, each multiplied with a count.

The ring's overlap is a maximum of two such sums, so is an exchange that leaves the node, and so is
a microbatch, which lasts as long as its longest group; which of them counts depends on the rates
themselves. `counts` takes the ones that rates at hand choose, so that ``counts(...) @ rates`` is
what `StepCost` says with those rates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ringproof.reference.planning.costs import FloatArray
from ringproof.reference.planning.domain import IntArray
from ringproof.reference.planning.hardware import Hardware
from ringproof.reference.planning.samples import Measurement, Sample, Step
from ringproof.reference.planning.timing import StepCost, exchanged
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
"""Fields of `Hardware`, in the order of the rates."""
ATTENTION, LINEAR, SHORT, LAUNCH, NEAR, FAR, NEAR_MESSAGE, FAR_MESSAGE = range(len(UNKNOWNS))
REST = len(UNKNOWNS)
"""The last rate: seconds of a step that no plan changes. No field of `Hardware`."""
RATES = len(UNKNOWNS) + 1
ORDER = (ATTENTION, LINEAR, SHORT, REST, LAUNCH, NEAR, FAR, NEAR_MESSAGE, FAR_MESSAGE)
"""What is found first; what cannot be told from it keeps its value."""


def rates_of(machine: Hardware) -> FloatArray:
    """Seconds per operation, byte, message and layer; the linear unknowns."""
    attention = 1 / (machine.peak_flops_per_second * machine.attention_share)
    rates = np.empty(RATES)
    rates[ATTENTION] = attention
    rates[SHORT] = attention * machine.attention_half_rows
    rates[LINEAR] = 1 / (machine.peak_flops_per_second * machine.linear_share)
    rates[LAUNCH] = machine.layer_launch_seconds
    rates[NEAR] = 1 / machine.intra_bytes_per_second
    rates[FAR] = 1 / machine.inter_bytes_per_second
    rates[NEAR_MESSAGE] = machine.intra_latency_seconds
    rates[FAR_MESSAGE] = machine.inter_latency_seconds
    rates[REST] = 0.0
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


@dataclass(frozen=True)
class Table:
    """Measurements as arrays. A group is a load; loads and microbatches are numbered in order.

    Attributes:
        by_size: Per group size: its loads, where each begins, and the lengths in them.
        microbatch_of: Of each load.
        measurement_of: Of each microbatch.
        whole: Per measurement, 1 unless only attention was timed.
        rest: Per measurement, 1 for a whole step of a trainer.
    """

    by_size: tuple[tuple[int, IntArray, IntArray, FloatArray], ...]
    microbatch_of: IntArray
    measurement_of: IntArray
    whole: FloatArray
    rest: FloatArray


def make_table(measurements: Sequence[Measurement]) -> Table:
    """Flatten measurements; a microbatch without any sequence gets an empty load."""
    loads: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
    microbatch_of: list[int] = []
    measurement_of: list[int] = []
    for place, item in enumerate(measurements):
        for microbatch in item.microbatches:
            for size, lengths in microbatch or ((1, ()),):
                loads.setdefault(size, []).append((len(microbatch_of), lengths))
                microbatch_of.append(len(measurement_of))
            measurement_of.append(place)
    only = [isinstance(item, Sample) and item.attention_only for item in measurements]
    return Table(
        tuple((size, *_flat(found)) for size, found in sorted(loads.items())),
        np.array(microbatch_of, np.int64),
        np.array(measurement_of, np.int64),
        1.0 - np.array(only, np.float64),
        np.array([isinstance(item, Step) for item in measurements], np.float64),
    )


def _flat(loads: list[tuple[int, tuple[int, ...]]]) -> tuple[IntArray, IntArray, FloatArray]:
    owner = [place for place, lengths in loads for _ in lengths]
    lengths = [length for _, lengths in loads for length in lengths]
    places = np.array([place for place, _ in loads], np.int64)
    return places, np.array(owner, np.int64), np.array(lengths, np.float64)


def counts(table: Table, model: StepCost, rates: FloatArray) -> FloatArray:
    """How often each measurement spends each rate, shape ``(measurements, RATES)``."""
    loads = np.zeros((len(table.microbatch_of), RATES))
    for size, places, owner, lengths in table.by_size:
        np.add.at(loads, owner, _sequences(lengths, size, model, rates))
        loads[places] += _messages(size, model)
    seconds = loads @ rates
    order = np.lexsort((seconds, table.microbatch_of))
    last = np.flatnonzero(np.diff(table.microbatch_of[order], append=-1))
    microbatches = loads[order[last]]  # the longest group of each
    microbatches[:, LAUNCH] += model.shape.layers * (4 / 3 if model.recompute else 1.0)
    found = np.zeros((len(table.whole), RATES))
    np.add.at(found, table.measurement_of, microbatches)
    found[:, [LINEAR, LAUNCH]] *= table.whole[:, None]
    found[:, REST] = table.rest
    return found


def _messages(size: int, model: StepCost) -> FloatArray:
    """What a group spends whatever is in it."""
    how, found = model.layout(size), np.zeros(RATES)
    forward = how.forward_messages * (2 if model.recompute else 1)
    message = NEAR_MESSAGE if model.inside(size) else FAR_MESSAGE
    found[message] = (forward + how.backward_messages) * model.shape.attention_layers
    return found


def _sequences(lengths: FloatArray, size: int, model: StepCost, rates: FloatArray) -> FloatArray:
    """What each sequence adds to a group, shape ``(sequences, RATES)``."""
    how = model.layout(size)
    attention = np.zeros((len(lengths), RATES))
    attention[:, ATTENTION] = lengths * lengths / size * model.attention_flops_factor
    attention[:, SHORT] = lengths / how.row_share * model.attention_flops_factor
    forward = _pass(attention, lengths, (model, how, 1), rates)
    backward = _pass(
        attention * model.attention_backward, lengths, (model, how, BACKWARD_RING), rates
    )
    times = 2 if model.recompute else 1
    found = (times * forward + backward) * model.shape.attention_layers
    found[:, LINEAR] += lengths / size * model.linear_flops
    return found


def _pass(
    attention: FloatArray,
    lengths: FloatArray,
    setting: tuple[StepCost, Layout, int],
    rates: FloatArray,
) -> FloatArray:
    """One layer and direction."""
    model, how, times = setting
    share = lengths / how.size
    message = np.zeros_like(attention)
    message[:, NEAR if model.inside(how.size) else FAR] = share * model.kv_bytes * times
    step = attention / how.ring
    found = step + (how.ring - 1) * _longer(step, message, rates)
    if how.gathers:
        found = found + message * (how.size - 1)
    if how.inner > 1:
        near, far = np.zeros_like(attention), np.zeros_like(attention)
        moved = share * (model.q_and_out_bytes + model.kv_bytes)
        parts = exchanged(model.node_ranks, how.inner)
        near[:, NEAR], far[:, FAR] = moved * parts[0], moved * parts[1]
        found = found + _longer(near, far, rates)
    return found


def _longer(one: FloatArray, other: FloatArray, rates: FloatArray) -> FloatArray:
    return np.where((one @ rates >= other @ rates)[:, None], one, other)
