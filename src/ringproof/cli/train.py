"""``ringproof train``: a real, tiny training run with any mix of parallelism."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ringproof.cli.output import write_json
from ringproof.cli.train_log import PROGRESS, LogFile, on_rank
from ringproof.errors import InputError
from ringproof.harness.cluster import Cluster, ClusterOptions
from ringproof.harness.cluster.case import LogSink
from ringproof.harness.cluster.torchrun import launched_world, run_launched
from ringproof.harness.cluster.watch_failures import RankRefusal

if TYPE_CHECKING:
    from ringproof.reference.training.options import TrainOptions

EXAMPLE = (
    "Example: ringproof train --preset qwen3-tiny --tp 2 --pp 2 --vpp 2 --cp 2 "
    "--schedule dynamic --max-tokens-per-rank 512 --max-length 512 --steps 50 --log run.jsonl"
)


def train(
    context: typer.Context,
    preset: Annotated[
        str, typer.Option(help="qwen3-tiny, moonlight-tiny or nemotron-h-tiny.")
    ] = "qwen3-tiny",
    mtp: Annotated[int, typer.Option(help="Tokens predicted beyond the next.")] = 0,
    dtype: Annotated[str, typer.Option(help="float64, float32 or bfloat16.")] = "float32",
    recompute: Annotated[
        bool, typer.Option("--recompute", help="Run each layer again in its backward.")
    ] = False,
    tp: Annotated[int, typer.Option(help="Tensor parallel size.")] = 1,
    pp: Annotated[int, typer.Option(help="Pipeline parallel size.")] = 1,
    vpp: Annotated[int, typer.Option(help="Chunks of layers on each pipeline rank.")] = 1,
    cp: Annotated[int, typer.Option(help="Context parallel size (static schedules).")] = 1,
    dp: Annotated[int, typer.Option(help="Data parallel size.")] = 1,
    sequence_parallel: Annotated[
        bool,
        typer.Option(
            "--sequence-parallel/--no-sequence-parallel",
            help="Cut rows over the tensor parallel ranks between layers.",
        ),
    ] = True,
    fsdp: Annotated[
        bool, typer.Option("--fsdp", help="Shard parameters over DPxCP (FSDP2).")
    ] = False,
    comm: Annotated[str, typer.Option(help="p2p, all_gather, a2a or a2a+p2p.")] = "p2p",
    ranks_per_node: Annotated[
        int, typer.Option(help="DPxCP ranks in a node, for a2a+p2p; 0: all of them.")
    ] = 0,
    data: Annotated[
        str, typer.Option(help="stdlib, stdlib:definitions, folder:PATH,glob=*.txt or synthetic.")
    ] = "stdlib",
    seed: Annotated[int, typer.Option(help="Of the data, its order and the parameters.")] = 0,
    global_batch: Annotated[int, typer.Option(help="Sequences of a step.")] = 16,
    max_length: Annotated[int, typer.Option(help="Documents are cut to so many tokens.")] = 1024,
    schedule: Annotated[str, typer.Option(help="padded, packed or dynamic.")] = "dynamic",
    max_tokens_per_rank: Annotated[
        int, typer.Option(help="Rows of a rank in one microbatch, padding included.")
    ] = 1024,
    cp_sizes: Annotated[
        str, typer.Option(help="Of dynamic groups: pow2, divisors or 1,2,3.")
    ] = "pow2",
    force_cp: Annotated[
        str, typer.Option(help="Sizes that microbatches take in turn, for tests: 1,2,4.")
    ] = "",
    steps: Annotated[int, typer.Option(help="Optimiser steps.")] = 50,
    learning_rate: Annotated[float, typer.Option(help="The highest.")] = 3e-3,
    warmup: Annotated[int, typer.Option(help="Steps until it is reached.")] = 5,
    weight_decay: Annotated[float, typer.Option(help="Of matrices.")] = 0.1,
    clip: Annotated[float, typer.Option(help="Largest gradient norm; 0: none.")] = 1.0,
    evaluate_every: Annotated[int, typer.Option(help="Steps between evaluations; 0: none.")] = 0,
    evaluate_batches: Annotated[int, typer.Option(help="Global batches of each.")] = 1,
    save: Annotated[str, typer.Option(help="Folder for checkpoints.")] = "",
    save_every: Annotated[int, typer.Option(help="Steps between them; 0: at the end.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the newest one.")] = False,
    graphs: Annotated[
        str, typer.Option(help="off, static (packs of fixed capacity) or bank (replay them).")
    ] = "off",
    graph_backend: Annotated[
        str, typer.Option(help="auto, cuda, transformer-engine or tape (CPU).")
    ] = "auto",
    graph_scope: Annotated[str, typer.Option(help="layer, attn or router.")] = "layer",
    graph_warmup: Annotated[
        int, typer.Option(help="Runs before a capture; on a GPU at least 1.")
    ] = 3,
    graph_rows: Annotated[
        int, typer.Option(help="Rows of a pack on a rank; 0: --max-tokens-per-rank.")
    ] = 0,
    graph_sequences: Annotated[
        int, typer.Option(help="Entries of a pack, a dummy included; 0: enough for any.")
    ] = 0,
    graph_slots: Annotated[
        int, typer.Option(help="Microbatches in flight; 0: what the pipeline needs.")
    ] = 0,
    graphs_overflow: Annotated[
        str, typer.Option(help="What does not fit a graph is an error, or eager.")
    ] = "error",
    backend: Annotated[str, typer.Option(help="auto, gloo or nccl.")] = "auto",
    share_gpus: Annotated[
        bool,
        typer.Option("--share-gpus", help="NCCL ranks share GPUs where these are fewer: slow."),
    ] = False,
    timeout: Annotated[
        float, typer.Option(help="Seconds of silence until a run counts as hung.")
    ] = 120.0,
    log: Annotated[
        str,
        typer.Option(
            "--log", "--log-file", help="Write a record of each step here (torchrun: --log-file)."
        ),
    ] = "",
    log_format: Annotated[
        str, typer.Option(help="jsonl, or megatron: its trainer's lines.")
    ] = "jsonl",
    rank_log: Annotated[
        bool, typer.Option("--rank-log", help="Show what every rank writes, on stderr.")
    ] = False,
    json_path: Annotated[str, typer.Option("--json", help="Write JSON here; - is stdout.")] = "",
) -> None:
    """Train a tiny model: TP, PP, VPP, CP, DP, FSDP2 and Dynamic CP in any mix.

    Starts tp x pp x cp x dp ranks itself, or runs on those of torchrun:
    torchrun --nproc-per-node 4 -m ringproof train --cp 4 --log-file run.jsonl
    """
    if importlib.util.find_spec("torch") is None:
        remedy = "run: pip install 'ringproof[reference]'"
        raise InputError("ringproof train", None, "needs the package torch", remedy)
    from ringproof.cli.train_options import named_by_option, train_options  # imports numpy

    options = train_options(context.params)  # reads most of the above
    world = launched_world()
    ranks = options.parallel.layout.world_size
    if world is not None and world[1] != ranks:
        problem = f"torchrun made {world[1]} ranks"
        raise InputError("tp x pp x cp x dp", ranks, problem, "make them equal")
    file = LogFile.opened(log, log_format, append=resume, first=world is None or world[0] == 0)
    quiet = json_path == "-"
    with named_by_option(context.params):
        _make_folder(save)
        _check_place(json_path)
        started = ClusterOptions(
            backend=backend,
            timeout_seconds=timeout,
            log_sink=_sink(quiet=quiet, rank_log=rank_log),
            share_gpus=share_gpus,
        )
        result = _run(options, world, file, started, quiet=quiet)
    if json_path and (world is None or world[0] == 0):
        write_json(result, json_path)


def _make_folder(path: str) -> None:
    """Make the folder of the checkpoints, before a run is spent that could not be kept."""
    try:
        if path:
            Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = f"cannot be made: {error.strerror}"
        raise InputError("save", path, problem, "name another folder") from error


def _check_place(path: str) -> None:
    """Refuse a place of the result before a run is spent on it."""
    if path not in ("", "-") and (Path(path).is_dir() or not Path(path).parent.is_dir()):
        raise InputError("--json", path, "no file can be written there", "name another")


def _run(
    options: TrainOptions,
    world: tuple[int, int] | None,
    file: LogFile,
    started: ClusterOptions,
    *,
    quiet: bool,
) -> dict[str, Any]:
    """Run on the launched ranks or on ranks of our own; rank 0's lines go to standard output.

    Raises:
        InputError: Some rank refused what the run was given.
    """
    arguments: dict[str, Any] = {
        "options": options,
        "file": file,
        "timeout": started.timeout_seconds,
    }
    if world is not None:
        arguments["mark"] = None if quiet else ""  # this process's own output: nothing to sort out
        return run_launched(on_rank, started, arguments)[0]
    arguments["mark"] = PROGRESS
    try:
        with Cluster(options.parallel.layout.world_size, started) as cluster:
            return cluster.run(on_rank, renewed_by_output=True, **arguments).values[0]
    except RankRefusal as refusal:
        raise refusal.input_error() from None


def _sink(*, quiet: bool, rank_log: bool) -> LogSink:
    """What becomes of the lines that ranks write."""

    def sink(rank: int, line: str) -> None:
        if rank == 0 and not quiet and LogFile.is_progress(line):
            sys.stdout.write(LogFile.text(line) + "\n")
            sys.stdout.flush()
        elif rank_log:
            sys.stderr.write(f"[rank{rank}]: {line}\n")

    return sink
