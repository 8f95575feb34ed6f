"""The memory of a launch as lines of text."""

from __future__ import annotations

from collections.abc import Iterator

from ringproof.errors import printable
from ringproof.launch.full.size import FullProgram
from ringproof.rehearsal.fit.gpus import (
    CONTEXT_BYTES,
    CONTEXT_SOURCE,
    CUBLAS_BYTES,
    CUBLAS_SOURCE,
    GIB,
)
from ringproof.rehearsal.fit.result import UNSEEN, Fit, RankMemory
from ringproof.rehearsal.protocol.memory import KINDS

TENSORS = 8
GROUPS = 8
TIGHT = 0.05
"""Share of a GPU's memory below which a margin is called small."""
ESTIMATES = (
    f"cuBLAS, {CUBLAS_BYTES >> 20} MiB: {CUBLAS_SOURCE}.",
    f"CUDA and NCCL, {CONTEXT_BYTES >> 20} MiB: {CONTEXT_SOURCE}.",
)


def lines(fit: Fit) -> Iterator[str]:
    """Yield the result as lines of text."""
    for line in _lines(fit):
        yield printable(line)


def gib(count: int) -> str:
    """Return bytes as GiB."""
    return f"{count / GIB:.3f}"


def _lines(fit: Fit) -> Iterator[str]:
    sizes = fit.program.layout
    yield (
        f"{fit.launch.source}: {sizes.world} GPUs, TP {sizes.tensor}, CP {sizes.context}, "
        f"PP {sizes.pipeline}, DP {sizes.data}, EP {sizes.expert}"
    )
    yield f"{fit.megatron}, Transformer Engine {fit.engine}; {fit.seconds:.0f} s"
    yield ""
    yield from _table(fit)
    for rank in fit.ranks:
        yield ""
        yield from _rank(rank, fit.program)
    yield ""
    yield from _verdict(fit)
    yield ""
    yield "Estimates:"
    yield from (f"  {text}" for text in ESTIMATES)
    yield "Not in the numbers:"
    yield from (f"  {text}" for text in UNSEEN)
    if fit.program.changes:
        yield "Changed to run here, and what that hides:"
        for change in fit.program.changes:
            after = f" -> {change.after}" if change.after else ""
            yield f"  {change.what}: {change.before or 'not given'}{after}. {change.hides}"
    yield from (f"  {note}" for note in (*fit.mended, *fit.launch.notes))


def _table(fit: Fit) -> Iterator[str]:
    """Yield memory by kind, one column for each rank and moment, in GiB."""
    heads = [f"rank {rank.rank}" for rank in fit.ranks]
    yield f"{'GiB':<16}" + "".join(f"{head + ' peak':>16}{'steady':>10}" for head in heads)
    kinds = [k for k in KINDS if any(k in r.memory.at_peak or k in r.memory.at_rest
                                     for r in fit.ranks)]  # fmt: skip
    for kind in kinds:
        yield f"{kind:<16}" + "".join(_columns(rank, kind) for rank in fit.ranks)
    estimate = gib(CUBLAS_BYTES)
    yield f"{'cuBLAS':<16}" + f"{estimate:>16}{estimate:>10}" * len(fit.ranks)
    totals = (
        f"{gib(rank.peak):>16}{gib(rank.memory.steady + CUBLAS_BYTES):>10}" for rank in fit.ranks
    )
    yield f"{'allocated':<16}" + "".join(totals)


def _columns(rank: RankMemory, kind: str) -> str:
    peak, rest = (sizes.get(kind, 0) for sizes in (rank.memory.at_peak, rank.memory.at_rest))
    return f"{gib(peak):>16}{gib(rest):>10}"


def _rank(rank: RankMemory, program: FullProgram) -> Iterator[str]:
    memory = rank.memory
    counted = f"{program.microbatches} microbatches"
    where = f" of {memory.module}" if memory.module else ""
    yield f"rank {rank.rank} ({rank.role}): peak in {memory.phase}{where}, at {memory.place}"
    yield "  largest tensors there:"
    for held in memory.largest[:TENSORS]:
        shape = "x".join(map(str, held.shape)) or "scalar"
        module = f" in {held.module}" if held.module else ""
        yield (
            f"  {gib(held.bytes):>9} GiB  {held.count} of {held.dtype} {shape}, {held.kind}, "
            f"{held.place}{module}"
        )
    whole = program.launch_microbatches
    yield f"  sent or contributed in a step of {counted} (of the launch's {whole}):"
    sent = sorted(memory.sent, key=lambda one: -one.bytes)
    for one in [one for one in sent if one.bytes][:GROUPS]:
        yield (
            f"  {one.bytes / 1e9:>9.3f} GB  {one.operation}, {one.calls} calls, "
            f"{one.group or 'unnamed group'} of {len(one.ranks)}"
        )
    yield (
        f"  {memory.flops / 1e12:.1f} TFLOP of matrix products and attention in these {counted}; "
        f"measured in {rank.seconds:.0f} s"
    )


def _verdict(fit: Fit) -> Iterator[str]:
    largest = fit.largest
    if fit.gpu is None or fit.margin is None:
        yield f"The largest peak is {gib(largest.peak)} GiB, on rank {largest.rank}."
        yield from _lacks(fit)
        return
    share = fit.margin / fit.gpu.bytes
    needed = (
        f"{gib(largest.needed)} of {gib(fit.gpu.bytes)} GiB on {fit.gpu.name}, on rank "
        f"{largest.rank}"
    )
    if fit.margin < 0:
        yield f"It does not fit: {needed}; {gib(-fit.margin)} GiB are missing."
    elif share < TIGHT:
        yield f"It may not fit: {needed}; the margin of {gib(fit.margin)} GiB is small."
    else:
        head = "The measured ranks fit" if fit.unmeasured else "It fits"
        yield f"{head}: {needed}; the margin is {gib(fit.margin)} GiB ({share:.0%})."
    yield from _lacks(fit)


def _lacks(fit: Fit) -> Iterator[str]:
    if fit.unmeasured:
        yield f"{fit.lacks.capitalize()}; name a rank of each with --ranks."
