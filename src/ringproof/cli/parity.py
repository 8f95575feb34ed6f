"""``ringproof parity``: compare CP attention with attention on one rank."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

import typer

from ringproof.budget import Estimate, EstimatePart, Machine
from ringproof.cli.options import command_of, integers
from ringproof.cli.output import told_to_wait, write_result
from ringproof.cli.ranks import RankOptions, check_launched, log_lines
from ringproof.cluster import Cluster, RankContext, launched_world, run_launched
from ringproof.errors import InputError
from ringproof.options import check_options, option, seconds
from ringproof.reference.attention.case import DTYPES, ParityCase
from ringproof.reference.attention.names import COMM_TYPES
from ringproof.reference.packing.partition import PARTITIONS, padding_multiple
from ringproof.reference.packing.sequences import PackedSequences, pack

_OTHER_NAMES = MappingProxyType(
    {
        "comm_type": "--comm",
        "cp_size": "--ranks",
        "hierarchical_context_parallel_sizes": "--hcp",
        "hierarchical_sizes": "--hcp",
        "packed": "--lengths",
        "world": "--ranks",
    }
)
"""Options of what has another name in the reference."""
_SEQUENCE_TOKENS = 256
_COPIES = 16
"""Tensors of the size of all queries and values that a rank holds at its peak, the oracle's too."""

app = typer.Typer(no_args_is_help=True)

EXAMPLE = (
    "Example: ringproof parity attention --comm a2a+p2p --hcp 2,2 --ranks 4 --heads 8 "
    "--kv-heads 4 --causal"
)


@dataclass(frozen=True, kw_only=True)
class AttentionCommand:
    """The options of ``ringproof parity attention``."""

    comm: str = option("p2p", "CP communication type.", choices=COMM_TYPES)
    hcp: tuple[int, ...] = option(
        (), "Level sizes of a2a+p2p, all-to-all first, such as 2,2.", metavar="N,N"
    )
    ranks: int = option(0, "Number of ranks. 0 means that of --hcp or torchrun, or 2.", least=0)
    seq_len: int | None = option(
        None, f"Number of tokens in the whole sequence.  [default: {_SEQUENCE_TOKENS}]"
    )
    lengths: str | None = option(
        None, "Pack sequences of these lengths (THD), such as 5,1,17,64.", metavar="N,N,..."
    )
    heads: int = option(8, "Number of query heads.")
    kv_heads: int = option(0, "Number of key/value heads. 0 means as many as --heads.")
    head_dim: int = option(16, "Head dimension of queries and keys.")
    v_head_dim: int = option(0, "Head dimension of values. 0 means that of --head-dim.")
    dtype: str = option("float64", "Precision of the measured attention.", choices=DTYPES)
    causal: bool = option(True, "Whether the attention mask is causal or full.", "--causal/--full")
    partition: str = option("zigzag", "How rows are shared out over the ranks.", choices=PARTITIONS)
    seed: int = option(0, "Random seed of the inputs.")
    timeout: float = seconds(120.0, "Seconds after which a case counts as hung.")
    start: RankOptions

    def __post_init__(self) -> None:
        check_options(self)
        if self.lengths is not None and self.seq_len is not None:
            raise InputError("--seq-len", "--seq-len has no effect with --lengths; leave it out")

    def case(self, launched: int | None) -> ParityCase:
        """Return the case to measure, on the ranks that torchrun made, if any.

        Raises:
            InputError: Options contradict each other or cannot be measured. It names the option.
        """
        world = self.ranks or launched or (math.prod(self.hcp) if self.hcp else 2)
        packed = self._pack(world)
        tokens = _SEQUENCE_TOKENS if self.seq_len is None else self.seq_len
        alike = {one.name for one in fields(ParityCase)} & {one.name for one in fields(self)}
        computed = {
            "world": world,
            "comm_type": self.comm,
            "hierarchical_sizes": self.hcp,
            "seq_len": packed.rows if packed else tokens,
            "packed": packed,
            "kv_heads": self.kv_heads or self.heads,
            "v_head_dim": self.v_head_dim or self.head_dim,
        }
        case = ParityCase(**{**{name: getattr(self, name) for name in alike}, **computed})
        case.check()
        return case

    def _pack(self, world: int) -> PackedSequences | None:
        """Return the pack of ``--lengths``, padded as CP needs; ``None`` without it."""
        if self.lengths is None:
            return None
        multiple = padding_multiple(world, self.partition)
        return pack(integers("--lengths", self.lengths), multiple=multiple)


@app.command(epilog=EXAMPLE)
@command_of(AttentionCommand, _OTHER_NAMES)
def attention(options: AttentionCommand) -> None:
    """Run CP attention, forward and backward, against a dense float64 reference.

    Starts the ranks itself, or runs on those of torchrun:
    torchrun --nproc-per-node 4 -m ringproof parity attention --comm p2p
    """
    world = launched_world()
    case = options.case(world[1] if world else None)
    check_launched(world, case.world, "--ranks", "leave it out")
    if world is None and not options.start.force:
        parity_estimate(case).check(Machine.here())
    what = f"CP attention on {case.world} ranks"
    with told_to_wait(what) if world is None else contextlib.nullcontext():
        result = _measure(case, world, options)
    if world is None or world[0] == 0:
        write_result(result, _summary(result), options.start.json_path, good=result["pass"])
    elif not result["pass"]:
        raise typer.Exit(1)


def parity_estimate(case: ParityCase) -> Estimate:
    """Estimate the memory of a case: the tensors of each rank, and the scores of the oracle."""
    row = case.heads * (case.head_dim + case.v_head_dim) * 8
    tensors = case.world * _COPIES * case.batch * case.seq_len * row
    longest = max(case.packed.lengths) if case.packed else case.seq_len
    scores = _COPIES * case.batch * case.heads // case.kv_heads * longest**2 * 8
    rows = ("--lengths" if case.packed else "--seq-len", case.seq_len)
    sizes = (("--heads", case.heads), ("--head-dim", max(case.head_dim, case.v_head_dim)), rows)
    option, value = max(sizes, key=lambda size: size[1])
    parts = (EstimatePart(option, value, tensors), EstimatePart(*rows, scores))
    return Estimate(case.world, parts, "--ranks", case.world)


def _measure(
    case: ParityCase, world: tuple[int, int] | None, options: AttentionCommand
) -> dict[str, Any]:
    """Run a case on the launched ranks or on ranks of our own."""
    arguments: dict[str, Any] = {"case": case, "evidence": bool(options.start.rank_log)}
    # Rank 0 empties the log before any rank can write: joining the world takes it, too.
    with options.start.log(first=world is None or world[0] == 0) as stream:
        started = options.start.cluster(options.timeout, log_lines(stream))
        if world is not None:
            with contextlib.redirect_stderr(stream) if stream else contextlib.nullcontext():
                return run_launched(_on_rank, started, arguments)[0]
        with Cluster(case.world, started) as cluster:
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
