"""The memory of a launch as lines of text."""

from __future__ import annotations

from collections.abc import Iterator

from ringproof.errors import printable
from ringproof.launch.flags import Flags
from ringproof.launch.full.size import FullProgram
from ringproof.rehearsal.fit.gpus import (
    CONTEXT_BYTES,
    CONTEXT_SOURCE,
    CUBLAS_BYTES,
    CUBLAS_SOURCE,
    GIB,
)
from ringproof.rehearsal.fit.ranks import chunks
from ringproof.rehearsal.fit.result import ACCURACY, UNSEEN, Fit, RankMemory, assumptions
from ringproof.rehearsal.protocol.memory import KINDS

TENSORS = 8
GROUPS = 8
TIGHT = 0.05
"""Share of a GPU's memory below which a margin is called small."""
ESTIMATES = (
    f"cuBLAS, {CUBLAS_BYTES >> 20} MiB: {CUBLAS_SOURCE}.",
    f"CUDA and NCCL, {CONTEXT_BYTES >> 20} MiB: {CONTEXT_SOURCE}.",
    f"The peak: {ACCURACY}.",
)


def lines(fit: Fit) -> Iterator[str]:
    """Yield the result as lines of text."""
    for line in _lines(fit):
        yield printable(line)


def gib(count: int) -> str:
    """Return bytes as GiB."""
    return f"{count / GIB:.3f}"


def heading(fit: Fit) -> Iterator[str]:
    """Yield what was measured: the launch with its degrees, and the code."""
    sizes = fit.program.layout
    yield (
        f"{fit.launch.source}: {sizes.world} GPUs, TP {sizes.tensor}, CP {sizes.context}, "
        f"PP {sizes.pipeline}, DP {sizes.data}, EP {sizes.expert}"
    )
    yield f"{fit.megatron}, Transformer Engine {fit.engine}; {fit.seconds:.0f} s"
    if sizes.pipeline > 1:
        parts = chunks(sizes, Flags(fit.program.arguments))
        yield (
            f"pipeline bubble: {fit.bubble:.1%} of a step of {fit.program.launch_microbatches} "
            f"microbatches, {'interleaved ' * (parts > 1)}1F1B with {parts} chunk"
            f"{'s' * (parts > 1)} a stage, if all stages take equally long"
        )


def _lines(fit: Fit) -> Iterator[str]:
    yield from verdict(fit)
    yield from heading(fit)
    yield ""
    yield from _table(fit)
    for rank in fit.ranks:
        yield ""
        yield from _rank(rank, fit.program)
    yield ""
    yield "Estimates:"
    yield from (f"  {text}" for text in ESTIMATES)
    assumed = list(assumptions(fit))
    yield from (["Assumed:"] if assumed else [])
    yield from (f"  {text}" for text in assumed)
    yield "Not in the numbers:"
    yield from (f"  {text}" for text in UNSEEN)
    if fit.program.changes:
        yield "Changed to run here, and what that hides:"
        for change in fit.program.changes:
            after = f" -> {change.after}" if change.after else ""
            yield f"  {change.what}: {change.before or 'not given'}{after}. {change.hides}"
    yield from (f"  {note}" for note in (*fit.mended, *fit.launch.notes))


def table(fit: Fit) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each kind of memory with its GiB at the peak and between steps, of every rank."""
    for kind in KINDS:
        sizes = [
            one.get(kind, 0) for r in fit.ranks for one in (r.memory.at_peak, r.memory.at_rest)
        ]
        if any(sizes):
            yield kind, tuple(map(gib, sizes))
    yield "cuBLAS", (gib(CUBLAS_BYTES),) * (2 * len(fit.ranks))
    totals = (size for r in fit.ranks for size in (r.peak, r.memory.steady + CUBLAS_BYTES))
    yield "allocated", tuple(map(gib, totals))


def _table(fit: Fit) -> Iterator[str]:
    """Yield memory by kind in GiB: a column for each moment of a rank, of two ranks in a line."""
    heads = [text for rank in fit.ranks for text in (f"rank {rank.rank} peak", "steady")]
    rows = (("GiB", heads), *table(fit))
    for start in range(0, len(heads), 4):
        if start:
            yield ""
        for name, cells in rows:
            shown = zip(cells[start : start + 4], (16, 10, 16, 10), strict=False)
            yield f"{name:<16}" + "".join(f"{cell:>{width}}" for cell, width in shown)


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
        f"  {memory.flops / 1e12:.1f} TFLOP of matrix products and attention in these {counted} of "
        f"at most {rank.tokens} tokens; measured in {rank.seconds:.0f} s"
    )


def verdict(fit: Fit) -> Iterator[str]:
    """Yield whether it fits, and what was not measured."""
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
