"""``ringproof parity``: compare CP attention with attention on one rank."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Annotated, Any

import typer

from ringproof.budget import Estimate, EstimatePart, Machine
from ringproof.cli import ranks
from ringproof.cli.options import ForceOption, given, named_by_option, seconds
from ringproof.cli.output import write_result
from ringproof.cluster import (
    Cluster,
    ClusterOptions,
    RankContext,
    launched_world,
    run_launched,
)
from ringproof.errors import InputError
from ringproof.reference.attention.case import ParityCase
from ringproof.reference.packing.padding import padding_multiple
from ringproof.reference.packing.sequences import Capacity, PackedSequences, pack

# Where a field's option is not simply its name with dashes.
OPTION_OF_FIELD = MappingProxyType(
    {
        "capacity.entries": "--pack-entries",
        "capacity.rows": "--pack-rows",
        "capacity.rows or total_multiple": "--pack-rows",
        "comm_type": "--comm",
        "cp_size": "--nproc",
        "cu_seqlens_padded": "--pad-multiple",
        "hierarchical_context_parallel_sizes": "--hcp",
        "hierarchical_sizes": "--hcp",
        "lengths": "--packed",
        "multiple": "--pad-multiple",
        "world": "--nproc",
    }
)
ONLY_BSHD = ("seq_len", "batch")
_COPIES = 16
"""Tensors of the size of all queries and values that a rank holds at its peak, the oracle's too."""
ONLY_PACKED = ("pad_multiple", "tail", "pack_rows", "pack_entries")

app = typer.Typer(help="Compare CP attention with attention on one rank.", no_args_is_help=True)

EXAMPLE = (
    "Example: ringproof parity attention --comm a2a+p2p --hcp 2,2 --nproc 4 --heads 8 "
    "--kv-heads 4 --causal"
)


@app.callback()
def _group() -> None:
    pass


@app.command(epilog=EXAMPLE)
def attention(  # noqa: PLR0917 - one parameter per option
    context: typer.Context,
    comm: Annotated[
        str, typer.Option(help="CP communication type: p2p, all_gather, a2a or a2a+p2p.")
    ] = "p2p",
    hcp: Annotated[
        str, typer.Option(help="Level sizes of a2a+p2p, all-to-all first, such as 2,2.")
    ] = "",
    nproc: Annotated[
        int, typer.Option(help="Number of ranks. 0 means that of --hcp or torchrun, or 2.")
    ] = 0,
    seq_len: Annotated[int, typer.Option(help="Number of tokens in the whole sequence.")] = 256,
    batch: Annotated[int, typer.Option(help="Number of sequences.")] = 1,
    packed: Annotated[
        str | None,
        typer.Option(
            "--packed",
            "--lengths",
            help="Pack sequences of these lengths (THD), such as 5,1,17,64.",
        ),
    ] = None,
    pad_multiple: Annotated[
        int,
        typer.Option(help="Pad each packed sequence to a multiple of this. 0 means what CP needs."),
    ] = 0,
    tail: Annotated[
        str, typer.Option(help="How the tail of a pack is filled: none, dummy or extend_last.")
    ] = "dummy",
    pack_rows: Annotated[
        int, typer.Option(help="Number of rows of the pack. 0 means as many as needed.")
    ] = 0,
    pack_entries: Annotated[
        int,
        typer.Option(
            help="Number of sequences of the pack, a dummy included. 0 means as many as there are."
        ),
    ] = 0,
    heads: Annotated[int, typer.Option(help="Number of query heads.")] = 8,
    kv_heads: Annotated[
        int, typer.Option(help="Number of key/value heads. 0 means as many as --heads.")
    ] = 0,
    head_dim: Annotated[int, typer.Option(help="Head dimension of queries and keys.")] = 16,
    v_head_dim: Annotated[
        int, typer.Option(help="Head dimension of values. 0 means that of --head-dim.")
    ] = 0,
    dtype: Annotated[
        str, typer.Option(help="Precision: float64, float32, bfloat16 or float16.")
    ] = "float64",
    causal: Annotated[
        bool, typer.Option("--causal/--full", help="Whether the attention mask is causal or full.")
    ] = True,
    partition: Annotated[
        str, typer.Option(help="How rows are shared out over the ranks: zigzag or contiguous.")
    ] = "zigzag",
    kernel: Annotated[
        str, typer.Option(help="Attention kernel: auto, sdpa (flash) or reference.")
    ] = "auto",
    scale: Annotated[
        float | None, typer.Option(help="Softmax scale. [default: head-dim**-0.5]")
    ] = None,
    kv_replication: Annotated[
        int, typer.Option(help="Number of copies of each key/value head before the all-to-all.")
    ] = 1,
    seed: Annotated[int, typer.Option(help="Random seed of the inputs.")] = 0,
    backend: ranks.BackendOption = "auto",
    share_gpus: ranks.ShareOption = False,
    timeout: Annotated[float, seconds("Seconds after which a case counts as hung.")] = 120.0,
    rank_log: Annotated[
        str, typer.Option(help="Write the log of the ranks to this file; - is stderr.")
    ] = "",
    json_path: ranks.JsonOption = "",
    force: ForceOption = False,
) -> None:
    """Run CP attention, forward and backward, against a dense float64 reference.

    Starts the ranks itself, or runs on those of torchrun:
    torchrun --nproc-per-node 4 -m ringproof parity attention --comm p2p
    """
    world = launched_world()
    case = attention_case(context, world[1] if world else None)  # reads most of the above
    options = ClusterOptions(
        backend=backend, timeout_seconds=timeout, share_gpus=share_gpus, limited=not force
    )
    if world is None and not force:
        parity_estimate(case).check(Machine.here())
    result = _measure(case, world, options, log=rank_log)
    if world is None or world[0] == 0:
        write_result(result, _summary(result), json_path, good=result["pass"])
    elif not result["pass"]:
        raise typer.Exit(1)


def attention_case(context: typer.Context, launched: int | None) -> ParityCase:
    """Return the case of the options, on the ranks that torchrun made, if any.

    Raises:
        InputError: Options contradict each other or cannot be measured. It names the option.
    """
    options = context.params
    levels = ranks.integers("--hcp", options["hcp"], "2,2")
    world = options["nproc"] or launched or (math.prod(levels) if levels else 2)
    with named_by_option(OPTION_OF_FIELD, options):
        packed = _pack(context, world)
        same = {one.name: options[one.name] for one in fields(ParityCase) if one.name in options}
        computed = {
            "world": world,
            "comm_type": options["comm"],
            "hierarchical_sizes": levels,
            "seq_len": packed.rows if packed else options["seq_len"],
            "packed": packed,
            "kv_heads": options["kv_heads"] or options["heads"],
            "v_head_dim": options["v_head_dim"] or options["head_dim"],
        }
        case = ParityCase(**{**same, **computed})
        case.check()
    return case


def parity_estimate(case: ParityCase) -> Estimate:
    """Estimate the memory of a case: the tensors of each rank, and the scores of the oracle."""
    row = case.heads * (case.head_dim + case.v_head_dim) * 8
    tensors = case.world * _COPIES * case.batch * case.seq_len * row
    longest = max(case.packed.lengths) if case.packed else case.seq_len
    scores = _COPIES * case.batch * case.heads // case.kv_heads * longest**2 * 8
    rows = ("--pad-multiple", None) if case.packed else ("--seq-len", case.seq_len)
    sizes = (("--heads", case.heads), ("--head-dim", max(case.head_dim, case.v_head_dim)), rows)
    option, value = max(sizes, key=lambda size: size[1] or 0)
    if case.packed and case.seq_len > max(case.heads, case.head_dim):
        option, value = rows
    parts = (EstimatePart(option, value, tensors), EstimatePart("--seq-len", case.seq_len, scores))
    return Estimate(case.world, parts, "--nproc", case.world)


def _pack(context: typer.Context, world: int) -> PackedSequences | None:
    """Return the pack of ``--packed`` and its companions; ``None`` without it."""
    options = context.params
    wrong, remedy = (
        (ONLY_BSHD, "drop it: the pack has its own")
        if options["packed"] is not None
        else (ONLY_PACKED, "give --packed, too")
    )
    for name in wrong:
        if given(context, name):
            raise InputError(name, options[name], "does not go with this layout", remedy)
    if options["packed"] is None:
        return None
    lengths = ranks.integers("--packed", options["packed"], "5,1,17,64")
    whole = padding_multiple(cp_size=world, partition=options["partition"])
    rows, entries = options["pack_rows"], options["pack_entries"] or len(lengths) + 1
    if options["pack_entries"] and not rows:
        raise InputError("pack_entries", entries, "a capacity has rows, too", "give --pack-rows")
    multiple = options["pad_multiple"] or whole
    return pack(
        lengths,
        multiple=multiple,
        total_multiple=math.lcm(multiple, whole),
        tail=options["tail"],
        capacity=Capacity(rows=rows, entries=entries) if rows else None,
    )


def _measure(
    case: ParityCase, world: tuple[int, int] | None, options: ClusterOptions, *, log: str
) -> dict[str, Any]:
    """Run a case on the launched ranks or on ranks of our own."""
    if world is not None and world[1] != case.world:
        raise InputError("--nproc", case.world, f"torchrun made {world[1]} ranks", "drop it")
    arguments: dict[str, Any] = {"case": case, "evidence": bool(log)}
    # Rank 0 empties the log before any rank can write: joining the world takes it, too.
    with ranks.rank_log_stream(log, first=world is None or world[0] == 0) as stream:
        options = replace(options, log_sink=ranks.rank_log_sink(stream))
        if world is not None:
            with contextlib.redirect_stderr(stream) if stream else contextlib.nullcontext():
                return run_launched(_on_rank, options, arguments)[0]
        with Cluster(case.world, options) as cluster:
            return cluster.run(_on_rank, **arguments).values[0]


def _on_rank(rank: RankContext, *, case: ParityCase, evidence: bool) -> dict[str, Any]:
    from ringproof.reference.attention.parity import demonstrate  # imports torch

    return demonstrate([case], rank.device, evidence=evidence)[0]


def _summary(result: dict[str, Any]) -> Iterator[str]:
    """Yield the verdict, and each tensor's error beside its limit."""
    case, errors = result["case"], result["max_abs_error"]
    levels = f" {list(case['hierarchical_sizes'])}" if case["hierarchical_sizes"] else ""
    mask = "causal" if case["causal"] else "full"
    rows = ""
    if case["packed"]:
        real, total = case["packed"]["cu_seqlens"][-1], case["packed"]["cu_seqlens_padded"][-1]
        rows = f", {case['packed']['sequences']} packed sequences ({real} of {total} rows real)"
    yield (
        f"{'PASS' if result['pass'] else 'FAIL'}  {case['comm_type']}{levels} over "
        f"{result['world']} ranks ({result['backend']}, {result['device']}), {case['dtype']}, "
        f"{case['kernel']} kernel, {mask}, {case['partition']}{rows}"
    )
    for name, error in errors.items():
        yield f"      {name:<4} max abs error {error:.2e}   limit {result['tolerance'][name]:.0e}"
