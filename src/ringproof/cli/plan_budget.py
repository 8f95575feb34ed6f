"""Memory and time that ``ringproof plan`` needs, estimated once the batch is read.

The factors were fitted to the peaks of memory and the processor time of six runs with 100,000 to
400,000 sequences on 64 ranks, and with 64 sequences on 1,048,576 ranks. They are rather too high
than too low: slower shapes take twice the time of these.
"""

from __future__ import annotations

from ringproof.budget import Estimate, Machine, Part, check_seconds

MOST_SECONDS = 300.0
_SEQUENCE_BYTES, _RANK_BYTES = 1_000, 600
"""Of a plan with its baselines, for each sequence and each rank."""
_SETTING_BYTES = 150
"""Of a plan of a sweep, for each sequence."""
_SEQUENCE_SECONDS, _RANK_SECONDS = 2e-5, 5e-6
"""Of a plan with its baselines."""
_PLAN_SECONDS = 1e-5
"""Of a plan without baselines, for each sequence."""


def check_plan(sequences: int, ranks: int, batches: int, machine: Machine) -> None:
    """Refuse a plan, and plans of further batches, that this machine cannot make in time.

    Raises:
        InputError: Names the option that decides it, the estimate and the limit.
    """
    parts = (
        Part("--lengths", f"{sequences:,} sequences", sequences * _SEQUENCE_BYTES),
        Part("--ranks", ranks, ranks * _RANK_BYTES),
    )
    Estimate(1, parts, "--ranks", ranks).check(machine)
    one = sequences * _SEQUENCE_SECONDS + ranks * _RANK_SECONDS
    more = (batches - 1) * sequences * _PLAN_SECONDS
    option, value = ("--batches", f"{batches:,}") if more > one else ("--lengths", parts[0].value)
    check_seconds(option, value, one + more, MOST_SECONDS)


def check_sweep(sequences: int, settings: int, machine: Machine) -> None:
    """Refuse a sweep that this machine cannot make in time, or whose plans it cannot keep.

    Raises:
        InputError: Names the option that decides it, the estimate and the limit.
    """
    held = sequences * settings * _SETTING_BYTES
    value = f"{settings:,} settings of {sequences:,} sequences"
    part = Part("--max-tokens-per-rank", value, held)
    Estimate(1, (part,), "--max-tokens-per-rank", value).check(machine)
    seconds = sequences * settings * _PLAN_SECONDS
    check_seconds("--max-tokens-per-rank", value, seconds, MOST_SECONDS)
