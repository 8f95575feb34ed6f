"""``ringproof train``: a real, tiny training run with any mix of parallelism."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TextIO

from ringproof.budget import Estimate, EstimatePart, Machine
from ringproof.cli.options import command_of
from ringproof.cli.output import write_json
from ringproof.cli.ranks import RankOptions, check_launched, log_lines
from ringproof.cli.train_log import FORMATS, PROGRESS, LogFile, on_rank
from ringproof.cluster import (
    Cluster,
    ClusterOptions,
    LogSink,
    RankRefusal,
    launched_world,
    run_launched,
)
from ringproof.errors import InputError
from ringproof.extras import how_to_install
from ringproof.options import option, seconds
from ringproof.reference.training.options import TrainOptions

EXAMPLE = (
    "Example: ringproof train --preset qwen3-tiny --tp 2 --pp 2 --vpp 2 --cp 2 "
    "--schedule dynamic --max-tokens-per-rank 512 --max-length 512 --steps 50 --log run.jsonl"
)
_OTHER_NAMES = MappingProxyType({"padded_length": "--max-length"})
"""Options of what has another name in the reference."""
_HELD = 64
"""Numbers of the hidden width that a layer keeps of each row for its backward pass."""


@dataclass(frozen=True, kw_only=True)
class TrainCommand:
    """The options of ``ringproof train``."""

    run: TrainOptions
    ranks: RankOptions
    timeout: float = seconds(120.0, "Seconds without output after which a run counts as hung.")
    log: str = option(
        "",
        "Write a record of each step to this file. Under torchrun, use --log-file.",
        "--log",
        "--log-file",  # torchrun takes --log for an abbreviation of its own options
        metavar="PATH",
    )
    log_format: str = option(
        "jsonl", "Format of --log; megatron is that of Megatron-LM's trainer.", choices=FORMATS
    )


@command_of(TrainCommand, _OTHER_NAMES)
def train(options: TrainCommand) -> None:
    """Train a tiny model: TP, PP, VPP, CP, DP, FSDP2 and Dynamic CP in any mix.

    Starts tp x pp x cp x dp ranks itself, or runs on those of torchrun:
    torchrun --nproc-per-node 4 -m ringproof train --cp 4 --log-file run.jsonl
    """
    if importlib.util.find_spec("torch") is None:
        sentence = f"ringproof train needs the package torch; {how_to_install('reference')}"
        raise InputError("ringproof train", sentence)
    world = launched_world()
    ranks = options.run.parallel.layout.world_size
    check_launched(world, ranks, "tp x pp x cp x dp", "make them equal")
    if world is None and not options.ranks.force:
        train_estimate(options.run).check(Machine.here())
    first = world is None or world[0] == 0
    with options.ranks.log(first=first) as stream:
        result = _run(options, world, stream)
    if options.ranks.json_path and first:
        write_json(result, options.ranks.json_path)


def _run(
    options: TrainCommand, world: tuple[int, int] | None, stream: TextIO | None
) -> dict[str, Any]:
    """Run on the ranks of torchrun or on new ones; rank 0's lines go to standard output.

    Raises:
        InputError: A rank refused its input.
    """
    quiet = options.ranks.json_path == "-"
    place = str(Path(options.log).absolute()) if options.log else ""
    file = LogFile(place, options.log_format, append=options.run.keeping.resume)
    arguments: dict[str, Any] = {"options": options.run, "file": file, "timeout": options.timeout}
    started: ClusterOptions = options.ranks.cluster(
        options.timeout,
        _sink(stream, quiet=quiet),
        preload=("ringproof.reference.training.trainer",),
    )
    if world is not None:
        arguments["mark"] = None if quiet else ""  # this process's own output: nothing to sort out
        return run_launched(on_rank, started, arguments)[0]
    arguments["mark"] = PROGRESS
    try:
        with Cluster(options.run.parallel.layout.world_size, started) as cluster:
            return cluster.run(on_rank, renewed_by_output=True, **arguments).values[0]
    except RankRefusal as refusal:
        raise refusal.input_error() from None


def _sink(stream: TextIO | None, *, quiet: bool) -> LogSink:
    """Return the function that takes the lines that ranks write."""
    log = log_lines(stream)

    def sink(rank: int, line: str) -> None:
        if rank == 0 and not quiet and line.startswith(PROGRESS):
            sys.stdout.write(line.removeprefix(PROGRESS) + "\n")
            sys.stdout.flush()
        else:
            log(rank, line)

    return sink


def train_estimate(options: TrainOptions) -> Estimate:
    """Estimate a run: the activations of all ranks, and what captured graphs keep.

    The factors were fitted to the measured peaks of the first minute of eight runs on a CPU. The
    estimate is between 0.9 and 1.5 times the peak.
    """
    layout, rows = options.parallel.layout, options.batch.max_tokens_per_rank
    config = options.model.config
    layers = len(config.layers) + options.model.mtp
    width = 8 if options.model.dtype == "float64" else 4
    numbers = layers * config.hidden * _HELD + 3 * config.vocabulary
    activations = layout.world_size * rows * numbers * width
    pools = sum(_graph_bytes(options, activations // layout.world_size, width))
    name = max(("dp", "cp", "tp", "pp"), key=lambda axis: int(getattr(layout, axis)))
    parts = (EstimatePart("--max-tokens-per-rank", rows, activations + pools),)
    return Estimate(layout.world_size, parts, f"--{name}", getattr(layout, name))


def _graph_bytes(options: TrainOptions, activations: int, width: int) -> Iterator[int]:
    """Scores of attention and activations, which a captured graph keeps for each slot."""
    capacity = options.capacity
    if capacity is None or options.graphs.graphs != "bank":
        return
    config, layout = options.model.config, options.parallel.layout
    shape = config.attention or config.latent
    layers = sum(kind.mixer is not None for kind in config.layers)
    columns = capacity.rows * sum(options.group_sizes)
    scores = layers * (shape.heads if shape else 1) * capacity.rows * columns * width
    yield options.slots * (scores + activations) * layout.world_size // layout.tp
