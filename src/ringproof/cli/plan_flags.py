"""A plan's setting as flags of Megatron-LM, with what upstream cannot do said in remarks.

Names and what each line refuses: ``cards/dynamic-context-parallel/card.yaml``, and for CUDA graphs
``cards/dynamic-cp-cuda-graphs/card.yaml``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType

from ringproof.errors import InputError
from ringproof.reference.graphs.sizing import GraphCapacity
from ringproof.reference.planning.sweep import upstream_sizes

TARGETS = ("dev", "pr5618", "main")
_THD_NEEDS = MappingProxyType({"a2a": "2.10", "all_gather": "2.18"})
_Flag = tuple[str, object]


@dataclass(frozen=True)
class Wanted:
    """What Megatron-LM is to be set to.

    ``ranks`` is data parallel times context parallel; ``static_cp`` is the CP size of the baseline,
    ``context_parallel_size`` of the run; ``longest`` is the longest sequence in tokens, and
    ``sequences`` the size of the global batch; ``mla`` and ``moe`` say whether the model has latent
    attention, and experts; ``graphs`` is what graphs have to hold, if any are wanted.
    """

    ranks: int
    cp_sizes: tuple[int, ...]
    max_tokens_per_rank: int
    min_cp: int
    static_cp: int
    longest: int
    sequences: int
    comm: str
    tp: int = 1
    pp: int = 1
    vpp: int = 1
    max_sequences: int | None = None
    mla: bool = False
    moe: bool = False
    graphs: GraphCapacity | None = None

    @property
    def entries(self) -> int | None:
        """``thd_max_packed_sequences``, which counts a dummy."""
        if self.graphs is not None:
            return self.graphs.entries
        return None if self.max_sequences is None else self.max_sequences + 1

    @property
    def context_parallel(self) -> int:
        """``context_parallel_size``: at 1 some versions switch CP off for good."""
        return 2 if self.static_cp == 1 and self.ranks % 2 == 0 else self.static_cp

    @property
    def sequence_length(self) -> int:
        """The longest sequence, padded to what every group size divides."""
        multiple = 2 * self.ranks * self.tp
        return -(-self.longest // multiple) * multiple


def megatron_flags(wanted: Wanted, target: str) -> list[str]:
    """Lines of a shell, remarks and then flags, for a target that `check_target` accepts."""
    check_target(target)
    if target == "main":
        remarks = [*_main_remarks(wanted)]
        flags = [*_main_flags(wanted), *_shared(wanted), *_without_graphs(), ("--eval-iters", 0)]
    else:
        remarks = [*(_dev_remarks(wanted) if target == "dev" else _pull_request_remarks(wanted))]
        graphs = _graph_flags() if target == "pr5618" and wanted.graphs else _without_graphs()
        flags = [*_dev_flags(wanted), *_shared(wanted, target), *graphs]
    lines = [f"{name} {value}" if value is not None else name for name, value in flags]
    ended = [f"{line} \\" for line in lines[:-1]] + lines[-1:]
    return [*(f"# {remark}" for remark in (*remarks, *_general_remarks(wanted))), *ended]


def check_target(target: str) -> None:
    """Refuse a name that is not in `TARGETS`."""
    if target not in TARGETS:
        raise InputError("--target", target, "is unknown", f"choose from {', '.join(TARGETS)}")


def _dev_flags(wanted: Wanted) -> Iterator[_Flag]:
    yield "--dynamic-context-parallel", None
    budget = wanted.graphs.rows if wanted.graphs else wanted.max_tokens_per_rank
    yield "--max-seqlen-per-dp-cp-rank", budget
    yield "--min-dynamic-context-parallel-size", wanted.min_cp
    yield "--sequence-packing-scheduler", "default_dynamic_cp"
    if wanted.entries is not None:
        yield "--thd-max-packed-sequences", wanted.entries
    if wanted.graphs is not None:
        yield "--pad-packed-seq-alignment", "max"
    if wanted.pp > 1:
        yield "--pipeline-model-parallel-size", wanted.pp
    if wanted.vpp > 1:
        yield "--num-virtual-stages-per-pipeline-rank", wanted.vpp


def _main_flags(wanted: Wanted) -> Iterator[_Flag]:
    yield "--hybrid-context-parallel", None
    yield "--max-seqlen-per-dp-cp-rank", wanted.max_tokens_per_rank


def _graph_flags() -> Iterator[_Flag]:
    yield "--cuda-graph-impl", "transformer_engine"
    yield "--cuda-graph-modules", "attn"
    yield "--cuda-graph-dynamic-microbatches", None


def _without_graphs() -> Iterator[_Flag]:
    yield "--cuda-graph-impl", "none"


def _shared(wanted: Wanted, target: str = "main") -> Iterator[_Flag]:
    yield "--context-parallel-size", wanted.context_parallel
    yield "--cp-comm-type", "p2p" if wanted.comm == "a2a+p2p" else wanted.comm
    if wanted.tp > 1:
        yield "--tensor-model-parallel-size", wanted.tp
        yield "--sequence-parallel", None
    if wanted.moe:
        yield "--moe-token-dispatcher-type", "alltoall"
    yield "--seq-length", wanted.sequence_length
    yield "--micro-batch-size", 1
    yield "--global-batch-size", wanted.sequences
    yield "--calculate-per-token-loss", None
    yield "--dataloader-type", "single"
    yield "--use-varlen-dataset" if target == "pr5618" else "--sft", None


def _dev_remarks(wanted: Wanted) -> Iterator[str]:
    yield "Megatron-LM dev; --use-varlen-dataset may replace --sft"
    multiple = 2 * wanted.ranks * wanted.tp
    yield f"dev plans for itself, and pads every sample to a multiple of {multiple:,} tokens first"
    if wanted.entries is not None:
        yield "dev's scheduler does not heed --thd-max-packed-sequences: a fuller pack ends the run"
    if wanted.graphs is not None:
        yield "wrong there: CUDA graphs (see --target pr5618); below: eager, padded as for them"
    yield from _packed_remarks(wanted)


def _pull_request_remarks(wanted: Wanted) -> Iterator[str]:
    yield "Megatron-LM pull request 5618 at commit 292388f6, which is not merged"
    multiple = 2 * wanted.ranks * wanted.tp
    yield f"it plans for itself, and pads every sample to a multiple of {multiple:,} tokens first"
    if wanted.graphs is not None:
        yield from _graph_remarks(wanted.graphs, wanted.pp)
    yield from _packed_remarks(wanted)


def _graph_remarks(graphs: GraphCapacity, pp: int) -> Iterator[str]:
    yield f"its packs hold {graphs.entries - 1:,} sequences at most: too few cost microbatches"
    yield "run it with --cuda-graph-impl none first, then compare losses and count replays by size"
    if pp > 1:
        slots, sizes = graphs.upstream_slots, len(graphs.sizes)
        yield f"slow to capture: {slots:,} slots at each of {sizes} sizes, one for each sequence"
        yield f"of the batch (--sft: times {graphs.entries:,}); a smaller batch or --pp 1 has fewer"
    yield "needs Transformer Engine 2.9, better 2.18; unproven on GPUs here"


def _packed_remarks(wanted: Wanted) -> Iterator[str]:
    if wanted.comm in _THD_NEEDS:
        yield f"packed {wanted.comm} needs Transformer Engine {_THD_NEEDS[wanted.comm]} or later"
    if wanted.vpp > 1:
        yield "virtual stages need enough sequences: upstream's aligner fails on small batches"


def _main_remarks(wanted: Wanted) -> Iterator[str]:
    yield "Megatron-LM 0.16.x; 0.17 to main take these flags and fail in the first step: use dev"
    yield "the loss function has to return three values; evaluation is off"
    if wanted.min_cp > 1:
        yield f"not there: a smallest group size ({wanted.min_cp})"
    if wanted.max_sequences is not None:
        yield f"not there: a most number of sequences in a pack ({wanted.max_sequences})"
    if wanted.pp > 1:
        stages = f"--pipeline-model-parallel-size {wanted.pp}"
        yield f"refused there: {stages}; left out below"
    if wanted.graphs is not None:
        yield "not there: CUDA graphs with packed sequences (see --target pr5618); eager below"
    if wanted.mla:
        yield "refused there: latent attention (MLA)"


def _general_remarks(wanted: Wanted) -> Iterator[str]:
    sizes = [size for size in wanted.cp_sizes if size & (size - 1)]
    if wanted.ranks & (wanted.ranks - 1):
        yield f"not supported there: a domain of {wanted.ranks} ranks, no power of two; do not run"
    elif sizes:
        shown = ", ".join(map(str, sizes[:8]))
        yield f"not there: group sizes {shown}; upstream knows powers of two only"
    left_out = sorted({*upstream_sizes(wanted.ranks, wanted.min_cp)} - {*wanted.cp_sizes})
    if left_out:
        shown = ", ".join(map(str, left_out[:8]))
        yield f"not there: leaving out group sizes {shown}; upstream uses them, too"
    if wanted.min_cp & (wanted.min_cp - 1):
        yield f"accepted but wrong there: a smallest size of {wanted.min_cp}, no power of two"
    if wanted.comm == "a2a+p2p":
        yield "fails there with dynamic groups: --cp-comm-type a2a+p2p; p2p below"
    data_parallel = wanted.ranks // wanted.context_parallel
    if wanted.sequences % data_parallel:
        yield (
            f"refused there: {wanted.sequences} sequences are not a multiple of the "
            f"{data_parallel} data parallel ranks"
        )
    if wanted.sequence_length > wanted.ranks * wanted.max_tokens_per_rank:
        yield f"refused there: --seq-length {wanted.sequence_length} is over ranks times budget"
