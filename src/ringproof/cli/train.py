"""``ringproof train``: a real, tiny training run with any mix of parallelism."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Annotated, Any, TextIO, get_type_hints

import typer

from ringproof.budget import Machine
from ringproof.cli import ranks
from ringproof.cli.options import ForceOption, named_by_option, seconds, with_parameters
from ringproof.cli.output import write_json
from ringproof.cli.train_log import PROGRESS, LogFile, on_rank
from ringproof.cluster import (
    Cluster,
    ClusterOptions,
    LogSink,
    RankRefusal,
    launched_world,
    run_launched,
)
from ringproof.errors import InputError
from ringproof.reference.topology.layout import RankLayout
from ringproof.reference.training import options as train_options
from ringproof.reference.training.options import TrainOptions

EXAMPLE = (
    "Example: ringproof train --preset qwen3-tiny --tp 2 --pp 2 --vpp 2 --cp 2 "
    "--schedule dynamic --max-tokens-per-rank 512 --max-length 512 --steps 50 --log run.jsonl"
)
_LAYOUT = MappingProxyType(
    {
        "tp": "Tensor parallel size.",
        "pp": "Pipeline parallel size.",
        "cp": "Context parallel size of the static schedules, padded and packed.",
        "dp": "Data parallel size.",
    }
)
_PARTS = MappingProxyType(get_type_hints(TrainOptions, vars(train_options)))
_FIELDS = tuple(one for part in _PARTS.values() for one in fields(part))
_NAMES = MappingProxyType(
    {
        "cp-sizes": "--cp-sizes",
        "padded_length": "--max-length",
        "tensor parallel size": "--tp",
        **{one.name: one.metadata["name"] for one in _FIELDS if one.metadata.get("name")},
    }
)
"""Option of a field, where it is not the field's name with dashes."""


def _declared() -> Iterator[inspect.Parameter]:
    """The options of a run as parameters of the command; see ``training.options``."""
    for one in _FIELDS:
        if one.name == "layout":
            yield from (_parameter(axis, 1, text) for axis, text in _LAYOUT.items())
        else:
            default = "" if one.default == () else one.default
            yield _parameter(one.name, default, **one.metadata)


def _parameter(field: str, default: Any, help: str, name: str = "") -> inspect.Parameter:
    dashed = field.replace("_", "-")
    name = name or (f"--{dashed}/--no-{dashed}" if default is True else f"--{dashed}")
    option = typer.Option(default, name, help=help)
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(field, kind, default=option, annotation=type(default))


def run_options(given: Mapping[str, Any]) -> TrainOptions:
    """Return the options of a run from the command's parameters.

    Raises:
        InputError: A value is wrong, or options contradict each other. It names the option.
    """
    forced = ranks.integers("--force-cp", given["forced_sizes"], "1,2,4")
    with named_by_option(_NAMES, given):
        layout = RankLayout(**{axis: given[axis] for axis in _LAYOUT})
        given = {**given, "layout": layout, "forced_sizes": forced}
        return TrainOptions(
            **{
                name: part(**{one.name: given[one.name] for one in fields(part)})
                for name, part in _PARTS.items()
            }
        )


_Timeout = Annotated[float, seconds("Seconds without output after which a run counts as hung.")]
_Log = Annotated[
    str,
    typer.Option(
        "--log",
        "--log-file",
        help="Write a record of each step to this file. Under torchrun, use --log-file.",
    ),
]


@with_parameters(_declared())
def train(
    context: typer.Context,
    *,
    backend: ranks.BackendOption = "auto",
    share_gpus: ranks.ShareOption = False,
    timeout: _Timeout = 120.0,
    log: _Log = "",
    log_format: Annotated[
        str,
        typer.Option(
            help="Format of --log: jsonl, or megatron for the lines of Megatron-LM's trainer."
        ),
    ] = "jsonl",
    rank_log: Annotated[
        str,
        typer.Option(metavar="PATH", help="Write what all ranks print to this file; - is stderr."),
    ] = "",
    json_path: ranks.JsonOption = "",
    force: ForceOption = False,
) -> None:
    """Train a tiny model: TP, PP, VPP, CP, DP, FSDP2 and Dynamic CP in any mix.

    Starts tp x pp x cp x dp ranks itself, or runs on those of torchrun:
    torchrun --nproc-per-node 4 -m ringproof train --cp 4 --log-file run.jsonl
    """
    if importlib.util.find_spec("torch") is None:
        remedy = "run: pip install 'ringproof[reference]'"
        raise InputError("ringproof train", None, "needs the package torch", remedy)
    options = run_options(context.params)
    world = launched_world()
    _check_room(options, world, force=force)
    first = world is None or world[0] == 0
    file = LogFile.named(log, log_format, append=options.keeping.resume)
    quiet = json_path == "-"
    with (
        named_by_option(_NAMES, context.params),
        ranks.rank_log_stream(rank_log, first=first) as stream,
    ):
        started = ClusterOptions(
            backend=backend,
            timeout_seconds=timeout,
            log_sink=_sink(stream, quiet=quiet),
            share_gpus=share_gpus,
            limited=not force,
            preload=("ringproof.reference.training.trainer",),
        )
        result = _run(options, world, file, started, quiet=quiet)
    if json_path and first:
        write_json(result, json_path)


def _check_room(options: TrainOptions, world: tuple[int, int] | None, *, force: bool) -> None:
    """Refuse a run for which there are not as many ranks, or not as much memory."""
    from ringproof.cli.train_budget import train_estimate  # imports numpy

    size = options.parallel.layout.world_size
    if world is not None and world[1] != size:
        problem = f"torchrun made {world[1]} ranks"
        raise InputError("tp x pp x cp x dp", size, problem, "make them equal")
    if world is None and not force:
        train_estimate(options).check(Machine.here())


def _run(
    options: TrainOptions,
    world: tuple[int, int] | None,
    file: LogFile,
    started: ClusterOptions,
    *,
    quiet: bool,
) -> dict[str, Any]:
    """Run on the ranks of torchrun or on new ones; rank 0's lines go to standard output.

    Raises:
        InputError: A rank refused its input.
    """
    timeout = started.timeout_seconds
    arguments: dict[str, Any] = {"options": options, "file": file, "timeout": timeout}
    if world is not None:
        arguments["mark"] = None if quiet else ""  # this process's own output: nothing to sort out
        return run_launched(on_rank, started, arguments)[0]
    arguments["mark"] = PROGRESS
    try:
        with Cluster(options.parallel.layout.world_size, started) as cluster:
            return cluster.run(on_rank, renewed_by_output=True, **arguments).values[0]
    except RankRefusal as refusal:
        raise refusal.input_error() from None


def _sink(stream: TextIO | None, *, quiet: bool) -> LogSink:
    """Return the function that takes the lines that ranks write."""
    log = ranks.rank_log_sink(stream)

    def sink(rank: int, line: str) -> None:
        if rank == 0 and not quiet and line.startswith(PROGRESS):
            sys.stdout.write(line.removeprefix(PROGRESS) + "\n")
            sys.stdout.flush()
        else:
            log(rank, line)

    return sink
