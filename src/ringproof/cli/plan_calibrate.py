"""``ringproof plan calibrate``: replace a preset's rates by measured ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from ringproof.cli.output import write_json
from ringproof.cli.plan_options import (
    HardwareOption,
    InnerOption,
    JsonOption,
    ModelOption,
    TensorOption,
    need_numpy,
)
from ringproof.errors import InputError

if TYPE_CHECKING:
    from ringproof.reference.planning.calibrate import Calibration, Row
    from ringproof.reference.planning.samples import Measurement
    from ringproof.reference.planning.timing import StepCost

EXAMPLE = (
    "Example: ringproof plan calibrate samples.jsonl --model llama3-8b --hardware h200 "
    "--json calibration.json; then ringproof plan ... --calibration calibration.json"
)
_MAX_BYTES = 256 * 1024 * 1024
_SHOWN = 40
_UNSURE = 0.2


MeasureOption = Annotated[
    str,
    typer.Option(
        metavar="LENGTHS",
        help="Measure attention on this machine instead, at lengths such as 512,1024,2048,4096 "
        "(needs torch).",
    ),
]
SkipOption = Annotated[
    int,
    typer.Option(metavar="N", help="Leave out the first N steps, in which kernels are compiled."),
]
SamplesOption = Annotated[
    str,
    typer.Argument(
        metavar="[SAMPLES]",
        help="File of JSON lines, - for standard input. A line is the forward and backward of "
        'one sequence, {"length": 8192, "cp_size": 2, "seconds": 0.012}, or a step of a log, '
        '{"step_seconds": 0.81, "plan": {...}}. A step may have "microbatches": '
        '[[{"cp_size": 2, '
        '"lengths": [8192, 512]}, ...], ...] in place of the plan. Other records are skipped.',
    ),
]


def calibrate(
    samples: SamplesOption = "",
    *,
    measure: MeasureOption = "",
    skip: SkipOption = 0,
    model: ModelOption = "",
    hardware: HardwareOption = "",
    comm: Annotated[
        str, typer.Option(metavar="TYPE", help="Communication type of the measured run.")
    ] = "p2p",
    inner_size: InnerOption = None,
    tp: TensorOption = 1,
    json_path: JsonOption = "",
) -> None:
    """Fit the rates of a machine to measurements; other rates keep their preset values.

    Steps have to come from a run without pipeline stages. Every microbatch is assumed to end for
    all ranks together. The part of a step that no plan changes (gradient reduction, optimiser) is
    fitted as well.
    """
    need_numpy()
    from ringproof.cli.plan_setup import PlanOptions, as_options
    from ringproof.reference.planning.calibrate import fit
    from ringproof.reference.planning.timing import StepCost

    if bool(samples) == bool(measure):
        problem = "and --measure are both given" if samples else "is missing"
        raise InputError("SAMPLES", None, problem, "give a file, or --measure LENGTHS")
    if skip < 0 or (skip and measure):
        raise InputError("--skip", skip, "is below 0, or without SAMPLES", "leave it out")
    options = PlanOptions(model=model, hardware=hardware, inner_size=inner_size, tp=tp)
    with as_options():
        setting = options.cost_model(comm)
        if not isinstance(setting, StepCost):
            raise AssertionError("full cost is the default")
        found = _measured(measure, setting) if measure else _read(samples, skip)
        result = fit(found, setting.shape, setting.machine, model=setting)
    if json_path:
        write_json(result.as_json(), json_path)
    if json_path != "-":
        for line in (*_lines(result), *_notes(result, setting, measure)):
            typer.echo(line)


def _lines(result: Calibration) -> Iterator[str]:
    yield f"{'length':>12} {'cp':>4} {'measured ms':>12} {'predicted ms':>12} {'error':>7}"
    for row in result.rows[:_SHOWN]:
        yield _line(row)
    if len(result.rows) > _SHOWN:
        yield f"… {len(result.rows) - _SHOWN:,} more; --json has all"
    yield f"mean absolute error: {result.mean_absolute_error:.1%}"
    errors = dict(result.errors)
    for name, value in result.fitted:
        sure = f"standard error {errors[name]:.1%}" if name in errors else "as far as it can go"
        yield f"fitted: {name} = {value:.4g}, {sure}"
    if result.rest_seconds:
        yield f"fitted: {1e3 * result.rest_seconds:.4g} ms of each step that no plan changes"
    yield f"kept: {', '.join(result.kept) or 'nothing'}"


def _line(row: Row) -> str:
    from ringproof.reference.planning.samples import Sample

    what = f"{'step':>12} {'':>4}"
    if isinstance(row.sample, Sample):
        what = f"{row.sample.length:>12} {row.sample.cp_size:>4}"
    times = f"{1e3 * row.sample.seconds:>12.3f} {1e3 * row.predicted_seconds:>12.3f}"
    return f"{what} {times} {row.error:>+7.1%}"


def _notes(result: Calibration, setting: StepCost, measure: str) -> Iterator[str]:
    unsure = [name for name, error in result.errors if error > _UNSURE]
    if unsure:
        yield f"note: measure more, the scatter leaves open: {', '.join(unsure)}"
    if measure:
        from ringproof.cli.plan_measure import device

        yield f"note: measured on {device()}; what is kept is that of {setting.machine.name}"


def _read(path: str, skip: int) -> tuple[Measurement, ...]:
    from ringproof.cli.plan_setup import read_bytes
    from ringproof.reference.planning.lengths import plain
    from ringproof.reference.planning.samples import parse_samples

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


def _measured(text: str, setting: StepCost) -> tuple[Measurement, ...]:
    from ringproof.cli.plan_measure import measured

    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < 8 and int(part) for part in parts):
        remedy = "write positive numbers such as 512,1024,2048"
        raise InputError("--measure", text, "is not a list of lengths", remedy)
    return measured(tuple(map(int, parts)), setting)
