"""A plan's setting as flags of Megatron-LM, with what upstream cannot do said in remarks.

Names and what each line refuses: ``cards/dynamic-context-parallel/card.yaml``, and for CUDA graphs
``cards/dynamic-cp-cuda-graphs/card.yaml``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType

from ringproof.cli.plan_options import SharedPlanOptions, static_size
from ringproof.reference.graphs.sizing import GraphCapacity
from ringproof.reference.planning.domain import Domain

_THD_NEEDS = MappingProxyType({"a2a": "2.10", "all_gather": "2.18"})
_Flag = tuple[str, object]


@dataclass(frozen=True)
class MegatronSettings:
    """What Megatron-LM is to be set to.

    Attributes:
        options: The model, the parallel sizes beside CP, and the limit on sequences in a group.
        domain: The DP x CP ranks, their group sizes and their token budget.
        longest: Tokens of the longest sequence.
        sequences: Number of sequences in the global batch.
        comm: Communication type.
        static_cp: CP size of the static baselines, if one was asked for.
        graphs: What graphs have to hold, if any are wanted.
    """

    options: SharedPlanOptions
    domain: Domain
    longest: int
    sequences: int
    comm: str
    static_cp: int | None = None
    graphs: GraphCapacity | None = None

    @property
    def entries(self) -> int | None:
        """``thd_max_packed_sequences``, which counts a dummy."""
        if self.graphs is not None:
            return self.graphs.entries
        most = self.domain.max_sequences
        return None if most is None else most + 1

    @property
    def context_parallel(self) -> int:
        """``context_parallel_size``: at 1 some versions switch CP off for good."""
        size = static_size(self.static_cp, self.domain, self.longest)
        return 2 if size == 1 and self.domain.ranks % 2 == 0 else size

    @property
    def padding(self) -> int:
        """Multiple of tokens to which samples are padded, which every group size divides."""
        return 2 * self.domain.ranks * self.options.tp

    @property
    def sequence_length(self) -> int:
        """The longest sequence, padded."""
        return -(-self.longest // self.padding) * self.padding


def megatron_flags(wanted: MegatronSettings, target: str) -> list[str]:
    """Lines of a shell, remarks and then flags, for one of `plan_options.TARGETS`."""
    special = _main_remarks(wanted) if target == "main" else _dynamic_remarks(wanted, target)
    remarks = [f"# {remark}" for remark in (*special, *_general_remarks(wanted))]
    flags = [name if value is None else f"{name} {value}" for name, value in _flags(wanted, target)]
    return [*remarks, *(f"{flag} \\" for flag in flags[:-1]), flags[-1]]


def upstream_sizes(ranks: int, smallest: int) -> tuple[int, ...]:
    """Group sizes of Megatron-LM's dynamic CP; empty where it supports no such domain."""
    if ranks & (ranks - 1) or smallest & (smallest - 1):
        return ()
    return tuple(1 << power for power in range(smallest.bit_length() - 1, ranks.bit_length()))


def _flags(wanted: MegatronSettings, target: str) -> Iterator[_Flag]:
    options, domain, graphs = wanted.options, wanted.domain, wanted.graphs
    if target == "main":
        yield "--hybrid-context-parallel", None
        yield "--max-seqlen-per-dp-cp-rank", domain.max_tokens_per_rank
    else:
        yield "--dynamic-context-parallel", None
        yield "--max-seqlen-per-dp-cp-rank", graphs.rows if graphs else domain.max_tokens_per_rank
        yield "--min-dynamic-context-parallel-size", domain.cp_sizes[0]
        yield "--sequence-packing-scheduler", "default_dynamic_cp"
        if wanted.entries is not None:
            yield "--thd-max-packed-sequences", wanted.entries
        if graphs is not None:
            yield "--pad-packed-seq-alignment", "max"
        if options.pp > 1:
            yield "--pipeline-model-parallel-size", options.pp
        if options.vpp > 1:
            yield "--num-virtual-stages-per-pipeline-rank", options.vpp
    yield "--context-parallel-size", wanted.context_parallel
    yield "--cp-comm-type", "p2p" if wanted.comm == "a2a+p2p" else wanted.comm
    if options.tp > 1:
        yield "--tensor-model-parallel-size", options.tp
        yield "--sequence-parallel", None
    if options.cost == "full" and options.shape().experts:
        yield "--moe-token-dispatcher-type", "alltoall"
    yield "--seq-length", wanted.sequence_length
    yield "--micro-batch-size", 1
    yield "--global-batch-size", wanted.sequences
    yield "--calculate-per-token-loss", None
    yield "--dataloader-type", "single"
    yield "--use-varlen-dataset" if target == "pr5618" else "--sft", None
    if target == "pr5618" and graphs:
        yield "--cuda-graph-impl", "transformer_engine"
        yield "--cuda-graph-modules", "attn"
        yield "--cuda-graph-dynamic-microbatches", None
    else:
        yield "--cuda-graph-impl", "none"
    if target == "main":
        yield "--eval-iters", 0


def _dynamic_remarks(wanted: MegatronSettings, target: str) -> Iterator[str]:
    """Of dev, or of the pull request."""
    graphs, planner = wanted.graphs, "dev" if target == "dev" else "it"
    if target == "dev":
        yield "Megatron-LM dev; --use-varlen-dataset may replace --sft"
    else:
        yield "Megatron-LM pull request 5618 at commit 292388f6, which is not merged"
    yield (
        f"{planner} plans for itself, and pads every sample to a multiple of {wanted.padding:,} "
        "tokens first"
    )
    if target == "dev" and wanted.entries is not None:
        yield "dev's scheduler does not heed --thd-max-packed-sequences: a fuller pack ends the run"
    if target == "dev" and graphs is not None:
        yield "wrong there: CUDA graphs (see --target pr5618); below: eager, padded as for them"
    elif graphs is not None:
        yield from _graph_remarks(graphs, wanted.options.pp)
    if wanted.comm in _THD_NEEDS:
        yield f"packed {wanted.comm} needs Transformer Engine {_THD_NEEDS[wanted.comm]} or later"
    if wanted.options.vpp > 1:
        yield "virtual stages need enough sequences: upstream's aligner fails on small batches"


def _graph_remarks(graphs: GraphCapacity, pp: int) -> Iterator[str]:
    yield f"its packs hold {graphs.entries - 1:,} sequences at most: too few cost microbatches"
    yield "run it with --cuda-graph-impl none first, then compare losses and count replays by size"
    if pp > 1:
        slots, sizes = graphs.upstream_slots, len(graphs.sizes)
        yield f"slow to capture: {slots:,} slots at each of {sizes} sizes, one for each sequence"
        yield f"of the batch (--sft: times {graphs.entries:,}); a smaller batch or --pp 1 has fewer"
    yield "needs Transformer Engine 2.9, better 2.18; unproven on GPUs here"


def _main_remarks(wanted: MegatronSettings) -> Iterator[str]:
    options, domain = wanted.options, wanted.domain
    yield "Megatron-LM 0.16.x; 0.17 to main take these flags and fail in the first step: use dev"
    yield "the loss function has to return three values; evaluation is off"
    if domain.cp_sizes[0] > 1:
        yield f"not there: a smallest group size ({domain.cp_sizes[0]})"
    if domain.max_sequences is not None:
        yield f"not there: a most number of sequences in a pack ({domain.max_sequences})"
    if options.pp > 1:
        yield f"refused there: --pipeline-model-parallel-size {options.pp}; left out below"
    if wanted.graphs is not None:
        yield "not there: CUDA graphs with packed sequences (see --target pr5618); eager below"
    if options.cost == "full" and options.shape().kv_lora_rank:
        yield "refused there: latent attention (MLA)"


def _general_remarks(wanted: MegatronSettings) -> Iterator[str]:
    ranks, cp_sizes = wanted.domain.ranks, wanted.domain.cp_sizes
    if ranks & (ranks - 1):
        yield f"not supported there: a domain of {ranks} ranks, no power of two; do not run"
    left_out = sorted({*upstream_sizes(ranks, cp_sizes[0])} - {*cp_sizes})
    if left_out:
        shown = ", ".join(map(str, left_out[:8]))
        yield f"not there: leaving out group sizes {shown}; upstream uses them, too"
    if cp_sizes[0] & (cp_sizes[0] - 1):
        yield f"accepted but wrong there: a smallest size of {cp_sizes[0]}, no power of two"
    if wanted.comm == "a2a+p2p":
        yield "fails there with dynamic groups: --cp-comm-type a2a+p2p; p2p below"
    data_parallel = ranks // wanted.context_parallel
    if wanted.sequences % data_parallel:
        yield (
            f"refused there: {wanted.sequences} sequences are not a multiple of the "
            f"{data_parallel} data parallel ranks"
        )
