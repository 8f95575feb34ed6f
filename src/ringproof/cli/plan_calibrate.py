"""``ringproof plan calibrate``: replace a preset's rates by measured ones."""

from __future__ import annotations

from typing import Annotated, Any

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

EXAMPLE = (
    "Example: ringproof plan calibrate samples.jsonl --model llama3-8b --hardware h200 "
    "--json calibration.json; then ringproof plan ... --calibration calibration.json"
)
_MAX_BYTES = 64 * 1024 * 1024


def calibrate(
    samples: Annotated[
        str,
        typer.Argument(
            metavar="[SAMPLES]",
            help='Lines of {"length": 8192, "cp_size": 2, "seconds": 0.012}: forward and backward '
            "of one sequence alone. - is stdin.",
        ),
    ] = "",
    *,
    measure: Annotated[
        str,
        typer.Option(
            metavar="LENGTHS",
            help="Measure attention here instead, at lengths such as 512,1024,2048,4096; needs "
            "torch.",
        ),
    ] = "",
    model: ModelOption = "",
    hardware: HardwareOption = "",
    comm: Annotated[str, typer.Option(metavar="TYPE", help="Of the measured run.")] = "p2p",
    inner_size: InnerOption = None,
    tp: TensorOption = 1,
    json_path: JsonOption = "",
) -> None:
    """Fit what measurements tell about a machine; the rest keeps its preset value."""
    need_numpy()
    from ringproof.cli.plan_setup import PlanOptions, as_options
    from ringproof.reference.planning.calibrate import Calibration, fit
    from ringproof.reference.planning.timing import StepCost

    if bool(samples) == bool(measure):
        problem = "and --measure are both given" if samples else "is missing"
        raise InputError("SAMPLES", None, problem, "give a file, or --measure LENGTHS")
    options = PlanOptions(model=model, hardware=hardware, inner_size=inner_size, tp=tp)
    with as_options():
        setting = options.cost_model(comm)
        if not isinstance(setting, StepCost):
            raise AssertionError("full cost is the default")
        found = _measured(measure, setting) if measure else _read(samples)
        result: Calibration = fit(found, setting.shape, setting.machine, model=setting)
    if json_path:
        write_json(result.as_json(), json_path)
    if json_path != "-":
        typer.echo(result.table())
        typer.echo(f"mean absolute error: {result.mean_absolute_error:.1%}")
        for name, value in result.fitted:
            typer.echo(f"fitted: {name} = {value:.4g}")
        typer.echo(f"kept: {', '.join(result.kept) or 'nothing'}")


def _read(path: str) -> Any:
    from ringproof.cli.plan_setup import read_bytes
    from ringproof.reference.planning.calibrate import parse_samples

    content = read_bytes(path, "SAMPLES", _MAX_BYTES)
    try:
        return parse_samples(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise InputError("SAMPLES", path, "is no text", "give JSON lines") from error


def _measured(text: str, setting: Any) -> Any:
    from ringproof.cli.plan_measure import measured

    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < 8 and int(part) for part in parts):
        remedy = "write positive numbers such as 512,1024,2048"
        raise InputError("--measure", text, "is no list of lengths", remedy)
    return measured(tuple(map(int, parts)), setting)
