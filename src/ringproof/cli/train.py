"""``ringproof train``: a real, tiny training run with any mix of parallelism."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from ringproof.budget import Machine
from ringproof.cli.field_names import named_by_option
from ringproof.cli.options import ForceOption, checked_seconds
from ringproof.cli.output import rank_log_sink, rank_log_stream, write_json
from ringproof.cli.train_log import PROGRESS, LogFile, on_rank
from ringproof.errors import InputError
from ringproof.harness.cluster import (
    Cluster,
    ClusterOptions,
    LogSink,
    RankRefusal,
    launched_world,
    run_launched,
)

if TYPE_CHECKING:
    from ringproof.reference.training.options import TrainOptions

EXAMPLE = (
    "Example: ringproof train --preset qwen3-tiny --tp 2 --pp 2 --vpp 2 --cp 2 "
    "--schedule dynamic --max-tokens-per-rank 512 --max-length 512 --steps 50 --log run.jsonl"
)


def train(  # noqa: PLR0917 - one parameter per option
    context: typer.Context,
    preset: Annotated[
        str, typer.Option(help="Name of the model: qwen3-tiny, moonlight-tiny or nemotron-h-tiny.")
    ] = "qwen3-tiny",
    mtp: Annotated[
        int, typer.Option(help="Number of tokens predicted beyond the next one (MTP).")
    ] = 0,
    dtype: Annotated[
        str, typer.Option(help="Precision of the model: float64, float32 or bfloat16.")
    ] = "float32",
    recompute: Annotated[
        bool,
        typer.Option(
            "--recompute", help="Recompute the activations of each layer in its backward pass."
        ),
    ] = False,
    tp: Annotated[int, typer.Option(help="Tensor parallel size.")] = 1,
    pp: Annotated[int, typer.Option(help="Pipeline parallel size.")] = 1,
    vpp: Annotated[int, typer.Option(help="Number of model chunks on each pipeline rank.")] = 1,
    cp: Annotated[
        int, typer.Option(help="Context parallel size of the static schedules, padded and packed.")
    ] = 1,
    dp: Annotated[int, typer.Option(help="Data parallel size.")] = 1,
    sequence_parallel: Annotated[
        bool,
        typer.Option(
            "--sequence-parallel/--no-sequence-parallel",
            help="Shard rows over the tensor parallel ranks between layers.",
        ),
    ] = True,
    fsdp: Annotated[
        bool, typer.Option("--fsdp", help="Shard parameters over the DP x CP ranks (FSDP2).")
    ] = False,
    comm: Annotated[
        str, typer.Option(help="CP communication type: p2p, all_gather, a2a or a2a+p2p.")
    ] = "p2p",
    ranks_per_node: Annotated[
        int, typer.Option(help="Number of DP x CP ranks in a node, for a2a+p2p. 0 means all ranks.")
    ] = 0,
    data: Annotated[
        str,
        typer.Option(
            help="Training data: stdlib, stdlib:definitions, folder:PATH,glob=*.txt or synthetic."
        ),
    ] = "stdlib",
    seed: Annotated[
        int, typer.Option(help="Random seed of the data, its order and the parameters.")
    ] = 0,
    global_batch: Annotated[int, typer.Option(help="Number of sequences in a step.")] = 16,
    max_length: Annotated[
        int, typer.Option(help="Largest number of tokens of a document; longer ones are cut.")
    ] = 1024,
    schedule: Annotated[
        str, typer.Option(help="Batch schedule: padded, packed or dynamic.")
    ] = "dynamic",
    max_tokens_per_rank: Annotated[
        int,
        typer.Option(help="Largest number of rows of a rank in one microbatch, padding included."),
    ] = 1024,
    cp_sizes: Annotated[
        str,
        typer.Option(
            help="CP sizes that Dynamic CP may choose: pow2, divisors or a list such as 1,2,3."
        ),
    ] = "pow2",
    force_cp: Annotated[
        str, typer.Option(help="CP sizes that microbatches take in turn, for tests, such as 1,2,4.")
    ] = "",
    steps: Annotated[int, typer.Option(help="Number of optimiser steps.")] = 50,
    learning_rate: Annotated[float, typer.Option(help="Highest learning rate.")] = 3e-3,
    warmup: Annotated[
        int, typer.Option(help="Number of steps until the highest learning rate is reached.")
    ] = 5,
    weight_decay: Annotated[float, typer.Option(help="Weight decay of matrices.")] = 0.1,
    clip: Annotated[
        float,
        typer.Option(
            help="Largest gradient norm; larger gradients are clipped. 0 means no clipping."
        ),
    ] = 1.0,
    evaluate_every: Annotated[
        int, typer.Option(help="Number of steps between evaluations. 0 means no evaluation.")
    ] = 0,
    evaluate_batches: Annotated[
        int, typer.Option(help="Number of global batches in an evaluation.")
    ] = 1,
    save: Annotated[
        str, typer.Option(help="Folder for checkpoints. Without it, none are written.")
    ] = "",
    save_every: Annotated[
        int, typer.Option(help="Number of steps between checkpoints. 0 means one at the end.")
    ] = 0,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Continue from the newest checkpoint in the folder of --save."
        ),
    ] = False,
    graphs: Annotated[
        str,
        typer.Option(
            help="CUDA graphs: off, static (packs of fixed capacity, eager) or bank (replayed)."
        ),
    ] = "off",
    graph_backend: Annotated[
        str,
        typer.Option(
            help="What captures graphs: auto, cuda, transformer-engine or tape (on a CPU)."
        ),
    ] = "auto",
    graph_scope: Annotated[
        str, typer.Option(help="Part of a layer that is captured: layer, attn or router.")
    ] = "layer",
    graph_warmup: Annotated[
        int, typer.Option(help="Number of runs before a capture; at least 1 on a GPU.")
    ] = 3,
    graph_rows: Annotated[
        int, typer.Option(help="Number of rows of a pack on a rank. 0 means --max-tokens-per-rank.")
    ] = 0,
    graph_sequences: Annotated[
        int,
        typer.Option(
            help="Number of sequences of a pack, a dummy included. 0 means enough for any pack."
        ),
    ] = 0,
    graph_slots: Annotated[
        int, typer.Option(help="Number of microbatches in flight. 0 means what the pipeline needs.")
    ] = 0,
    graphs_overflow: Annotated[
        str,
        typer.Option(
            help="What happens to a pack that fits no graph: error, or eager to run it without one."
        ),
    ] = "error",
    backend: Annotated[
        str, typer.Option(help="Backend of torch.distributed: auto, gloo or nccl.")
    ] = "auto",
    share_gpus: Annotated[
        bool,
        typer.Option(
            "--share-gpus",
            help="Let NCCL ranks share GPUs where there are fewer GPUs than ranks (slow).",
        ),
    ] = False,
    timeout: Annotated[
        float,
        typer.Option(
            callback=checked_seconds,
            help="Seconds without output after which a run counts as hung.",
        ),
    ] = 120.0,
    log: Annotated[
        str,
        typer.Option(
            "--log",
            "--log-file",
            help="Write a record of each step to this file. Under torchrun, use --log-file.",
        ),
    ] = "",
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
    json_path: Annotated[
        str, typer.Option("--json", help="Write the result as JSON to this file; - is stdout.")
    ] = "",
    force: ForceOption = False,
) -> None:
    """Train a tiny model: TP, PP, VPP, CP, DP, FSDP2 and Dynamic CP in any mix.

    Starts tp x pp x cp x dp ranks itself, or runs on those of torchrun:
    torchrun --nproc-per-node 4 -m ringproof train --cp 4 --log-file run.jsonl
    """
    if importlib.util.find_spec("torch") is None:
        remedy = "run: pip install 'ringproof[reference]'"
        raise InputError("ringproof train", None, "needs the package torch", remedy)
    from ringproof.cli.train_budget import train_estimate
    from ringproof.cli.train_options import OPTION_OF_FIELD, train_options  # imports numpy

    options = train_options(context.params)  # reads most of the above
    world = launched_world()
    ranks = options.parallel.layout.world_size
    if world is not None and world[1] != ranks:
        problem = f"torchrun made {world[1]} ranks"
        raise InputError("tp x pp x cp x dp", ranks, problem, "make them equal")
    if world is None and not force:
        train_estimate(options).check(Machine.here())
    first = world is None or world[0] == 0
    file = LogFile.named(log, log_format, append=resume)
    quiet = json_path == "-"
    with (
        named_by_option(OPTION_OF_FIELD, context.params),
        rank_log_stream(rank_log, first=first) as stream,
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


def _sink(stream: TextIO | None, *, quiet: bool) -> LogSink:
    """Return the function that takes the lines that ranks write."""
    log = rank_log_sink(stream)

    def sink(rank: int, line: str) -> None:
        if rank == 0 and not quiet and LogFile.is_progress(line):
            sys.stdout.write(LogFile.text(line) + "\n")
            sys.stdout.flush()
        else:
            log(rank, line)

    return sink
