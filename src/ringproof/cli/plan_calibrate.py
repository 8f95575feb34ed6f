"""``ringproof plan calibrate``: replace a preset's rates by measured ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ringproof.budget import Estimate, EstimatePart, Machine, check_seconds
from ringproof.cli.lengths import read_bytes
from ringproof.cli.plan_setup import PlanOptions, as_options, positive_numbers
from ringproof.errors import InputError
from ringproof.reference.planning.calibrate import Calibration, fit
from ringproof.reference.planning.lengths import plain
from ringproof.reference.planning.samples import Measurement, Sample, parse_samples
from ringproof.reference.planning.timing import StepCost

_MAX_BYTES = 256 * 1024 * 1024
_MOST_LENGTHS = 32
_SHOWN = 40
_COPIES = 16
"""Tensors of the size of all queries and values at the peak."""
_OPERATIONS = 28
"""Operations for each pair of a causal mask and each channel: four runs, forward and backward."""
_RATE = 2e10
"""Operations per second of attention on a CPU core, rather too low than too high."""
_MOST_SECONDS = 600.0
_UNSURE = 0.2
"""Relative standard error above which a note asks for more measurements."""


def run(
    options: PlanOptions, comm: str, source: str, skip: int | None, *, force: bool = False
) -> tuple[Calibration, Iterator[str]]:
    """Fit measurements, and describe the result line by line.

    ``source`` is a file of measurements, of which ``skip`` steps are left out; where ``skip`` is
    ``None``, it lists lengths to measure here.

    Raises:
        InputError: Measurements that cannot be read or fitted.
    """
    with as_options():
        setting = options.step_cost(comm)
        if skip is None:
            lengths = positive_numbers(source, "--measure", digits=7, what="lengths")
            if len(lengths) > _MOST_LENGTHS:
                problem = f"over {_MOST_LENGTHS} lengths"
                raise InputError("--measure", len(lengths), problem, "give fewer")
            if not force:
                _check_budget(max(lengths), setting)
            found: tuple[Measurement, ...] = measured(lengths, setting)
        else:
            found = _read(source, skip)
        result = fit(found, setting)
    return result, _lines(result, setting, measured_here=skip is None)


def _check_budget(length: int, setting: StepCost) -> None:
    """Refuse a length that takes too long or too much memory here."""
    shape, machine = setting.shape, Machine.here()
    heads = max(shape.heads // setting.tp, 1)
    width = heads * (shape.head_dim + shape.v_head_dim)
    Estimate(
        1, (EstimatePart("--measure", length, _COPIES * length * width * 4),), "--measure", 1
    ).check(machine)
    seconds = length**2 * width * _OPERATIONS / _RATE
    check_seconds("--measure", length, seconds, _MOST_SECONDS)


def _lines(result: Calibration, setting: StepCost, *, measured_here: bool) -> Iterator[str]:
    yield f"{'length':>12} {'cp':>4} {'measured ms':>12} {'predicted ms':>12} {'error':>7}"
    for row in result.rows[:_SHOWN]:
        what = f"{'step':>12} {'':>4}"
        if isinstance(row.sample, Sample):
            what = f"{row.sample.length:>12} {row.sample.cp_size:>4}"
        times = f"{1e3 * row.sample.seconds:>12.3f} {1e3 * row.predicted_seconds:>12.3f}"
        yield f"{what} {times} {row.error:>+7.1%}"
    if len(result.rows) > _SHOWN:
        yield f"… {len(result.rows) - _SHOWN:,} more; --json has all"
    yield f"mean absolute error: {result.mean_absolute_error:.1%}"
    for name, value in result.fitted.items():
        sure = "as far as it can go"
        if name in result.errors:
            sure = f"standard error {result.errors[name]:.1%}"
        yield f"fitted: {name} = {value:.4g}, {sure}"
    if result.rest_seconds:
        yield f"fitted: {1e3 * result.rest_seconds:.4g} ms of each step that no plan changes"
    yield f"kept: {', '.join(result.kept) or 'nothing'}"
    unsure = [name for name, error in result.errors.items() if error > _UNSURE]
    if unsure:
        yield f"note: measure more, the scatter leaves open: {', '.join(unsure)}"
    if measured_here:
        import torch

        device = "a GPU, in bf16" if torch.cuda.is_available() else "the CPU, in fp32"
        yield f"note: measured on {device}; what is kept is that of {setting.machine.name}"


def _read(path: str, skip: int) -> tuple[Measurement, ...]:
    content = read_bytes(path, "SAMPLES", _MAX_BYTES)
    source = "standard input" if path == "-" else plain(path)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError("SAMPLES", path, "is not text", "give JSON lines") from error
    found = parse_samples(text, source, skip)
    if not found:
        raise InputError(source, None, "has no measurements", "see --help for their form")
    return found


def measured(lengths: Sequence[int], setting: StepCost) -> tuple[Sample, ...]:
    """Time causal attention, forward and backward, at some lengths on one device.

    See `ringproof.reference.attention.measure`. Nothing is learnt of links and other work.

    Raises:
        InputError: torch is not installed, a length is too long, or the memory does not suffice.
    """
    try:
        from ringproof.reference.attention.measure import measure_attention
    except ImportError as error:
        remedy = "install torch, or give SAMPLES"
        raise InputError("--measure", None, "needs the package torch", remedy) from error
    heads = setting.shape.heads // setting.tp
    try:
        return measure_attention(
            replace(setting.shape, heads=heads, kv_heads=setting.kv_heads), lengths
        )
    except InputError as error:
        raise InputError("--measure", error.value, error.problem, error.remedy) from error
    except (RuntimeError, MemoryError) as error:
        problem = "attention failed: " + str(error).split("\n", 1)[0][:120]
        raise InputError("--measure", max(lengths), problem, "give shorter lengths") from error
