"""What ``ringproof fit`` finds: the memory of the ranks that were run, and whether it fits."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ringproof.launch.flags import Flags
from ringproof.launch.full.size import PACKED, FullProgram
from ringproof.launch.reading import Launch
from ringproof.rehearsal.fit.gpus import (
    CONTEXT_BYTES,
    CONTEXT_SOURCE,
    CUBLAS_BYTES,
    CUBLAS_SOURCE,
    Gpu,
)
from ringproof.rehearsal.fit.ranks import bubble, chunks
from ringproof.rehearsal.protocol.memory import MemoryReport
from ringproof.rehearsal.protocol.program import ROUTINGS

UNSEEN = (
    "what torch's caching allocator reserves and does not hand out",
    "workspaces that compiled kernels allocate, such as those of attention's backward pass",
    "buffers of NCCL, and of communication that overlaps with products of matrices",
    "quantized training (FP8, FP4) and pools of CUDA graphs",
)
"""What the numbers do not contain."""
ACCURACY = (
    "on 87 launches whose peak H100s recorded it was off by 0.12% (median), and on 95% of them by "
    "at most 1.69%"
)

ROUTED = MappingProxyType({
    "balanced": "routing: every expert gets as many tokens. A real router gives more to some "
    "ranks, which take more memory; --routing worst shows the most that is possible",
    "worst": "routing: every token of all ranks chooses as many experts of the measured rank as "
    "it can; no rank can get more tokens before dropping",
})  # fmt: skip
"""What is assumed of experts' tokens, by one of `ROUTINGS`."""
LENGTHS = (
    "lengths of sequences: those that upstream's own mock data has for the measured rank; all "
    "other ranks are taken to have the same. --whole-batch gives each its own"
)
OWN_LENGTHS = "lengths of sequences: those that upstream's own mock data has, of each rank its own"


@dataclass(frozen=True)
class RankMemory:
    """The memory of one rank.

    Attributes:
        role: Which pipeline stage it is, for people.
        tokens: Of its fullest microbatch, padding included; 0 if it has no attention.
    """

    rank: int
    role: str
    memory: MemoryReport
    seconds: float
    tokens: int = 0

    @property
    def peak(self) -> int:
        """Highest number of bytes that torch would count, cuBLAS included."""
        return self.memory.peak + CUBLAS_BYTES

    @property
    def needed(self) -> int:
        """Bytes of the GPU, with what torch does not count."""
        return self.peak + CONTEXT_BYTES


@dataclass(frozen=True)
class Fit:
    """The memory of a launch.

    Attributes:
        megatron: Version or commit, for people.
        gpu: What it shall fit on; ``None`` where nobody asked.
        seconds: Wall-clock time of all.
        mended: What upstream's package lacks and the run mended, a sentence each.
        unmeasured: Pipeline stages, counted from 1, for which no measured rank stands.
        routing: Where the tokens of experts went, one of `ROUTINGS`.
        whole_batch: Whether all DP and CP ranks of a stage ran, each with lengths of its own.
        extended_from: Two smaller numbers of layers that were measured, and from which this
            follows; empty if all layers were.
    """

    launch: Launch
    program: FullProgram
    megatron: str
    engine: str
    gpu: Gpu | None
    ranks: tuple[RankMemory, ...]
    seconds: float
    mended: tuple[str, ...] = ()
    unmeasured: tuple[int, ...] = ()
    routing: str = ROUTINGS[0]
    whole_batch: bool = False
    extended_from: tuple[int, ...] = ()

    @property
    def largest(self) -> RankMemory:
        """The rank that needs most."""
        return max(self.ranks, key=lambda rank: rank.peak)

    @property
    def margin(self) -> int | None:
        """Bytes of the GPU that stay free; negative if it does not fit."""
        return None if self.gpu is None else self.gpu.bytes - self.largest.needed

    @property
    def fits(self) -> bool:
        """Whether nothing speaks against it, of what was measured."""
        return self.margin is None or self.margin >= 0

    @property
    def bubble(self) -> float:
        """The share of a step of the launch in which a pipeline stage waits; see `bubble`."""
        program = self.program
        return bubble(program.layout, Flags(program.arguments), program.launch_microbatches)

    @property
    def lacks(self) -> str:
        """The stages that were not measured, for people; empty if all were."""
        if not self.unmeasured:
            return ""
        plural = "stages" if len(self.unmeasured) > 1 else "stage"
        numbers = ", ".join(map(str, self.unmeasured))
        return f"not measured: pipeline {plural} {numbers} of {self.program.layout.pipeline}"


def assumptions(fit: Fit) -> Iterator[str]:
    """Yield what was assumed of shapes that depend on data."""
    flags = Flags(fit.program.arguments)
    if flags.has("--num-experts"):
        yield ROUTED[fit.routing]
    if any(map(flags.has, PACKED)):
        yield OWN_LENGTHS if fit.whole_batch else LENGTHS


def as_json(fit: Fit) -> dict[str, Any]:
    """Return everything as JSON can hold it; sizes in bytes."""
    sizes = fit.program.layout
    return {
        "launch": fit.launch.source,
        "script": fit.program.script,
        "arguments": list(fit.program.arguments),
        "megatron": fit.megatron,
        "transformer_engine": fit.engine,
        "world": sizes.world,
        "layout": {
            "tp": sizes.tensor, "cp": sizes.context, "pp": sizes.pipeline, "dp": sizes.data,
            "ep": sizes.expert,
        },
        "gpu": None if fit.gpu is None else dataclasses.asdict(fit.gpu),
        "fits": None if fit.gpu is None else fit.fits,
        "margin_bytes": fit.margin,
        "unmeasured_stages": list(fit.unmeasured),
        "extended_from_layers": list(fit.extended_from),
        "microbatches": fit.program.microbatches,
        "launch_microbatches": fit.program.launch_microbatches,
        "chunks_per_stage": chunks(sizes, Flags(fit.program.arguments)),
        "bubble": fit.bubble,
        "estimates": {
            "cublas": {"bytes": CUBLAS_BYTES, "source": CUBLAS_SOURCE},
            "context": {"bytes": CONTEXT_BYTES, "source": CONTEXT_SOURCE},
            "peak": {"accuracy": ACCURACY},
        },
        "ranks": [
            {
                "rank": rank.rank,
                "role": rank.role,
                "tokens": rank.tokens,
                "peak_with_cublas": rank.peak,
                "seconds": rank.seconds,
                **dataclasses.asdict(rank.memory),
            }
            for rank in fit.ranks
        ],
        "mended": list(fit.mended),
        "changes": [dataclasses.asdict(change) for change in fit.program.changes],
        "assumptions": list(assumptions(fit)),
        "unseen": list(UNSEEN),
        "seconds": fit.seconds,
    }  # fmt: skip
