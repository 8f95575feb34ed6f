"""Options of a run, which are checked as a whole before any rank starts, without torch.

``ringproof train`` has an option for each field; see `ringproof.options`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING

from ringproof.errors import InputError
from ringproof.options import check_options, option, spelled
from ringproof.reference.attention.names import COMM_TYPES
from ringproof.reference.graphs.names import NAMES, OVERFLOWS, SCOPES, check_scope
from ringproof.reference.model.config import PRESETS, ModelConfig, preset
from ringproof.reference.topology.dynamic_catalogue import level_sizes
from ringproof.reference.topology.layout import RankLayout

if TYPE_CHECKING:
    from ringproof.reference.packing.capacity import RankCapacity

DTYPES = ("float64", "float32", "bfloat16")
GRAPHS = ("off", "static", "bank")
SCHEDULES = ("padded", "packed", "dynamic")
_OF_CAPACITY = ("graphs", "graph_rows", "graph_sequences", "graphs_overflow")


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """The model to train: a preset of `ringproof.reference.model.config`."""

    preset: str = option("qwen3-tiny", "Name of the model.", choices=PRESETS)
    mtp: int = option(0, "Number of tokens predicted beyond the next one (MTP).", least=0)
    dtype: str = option("float32", "Precision of the model.", choices=DTYPES)
    recompute: bool = option(False, "Recompute the activations of each layer in its backward pass.")

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def config(self) -> ModelConfig:
        """The preset with its MTP depths."""
        return replace(preset(self.preset), mtp_depths=self.mtp)


@dataclass(frozen=True, kw_only=True)
class ParallelOptions:
    """Distribution of the model and the data over ranks."""

    tp: int = option(1, "Tensor parallel size.", least=1)
    pp: int = option(1, "Pipeline parallel size.", least=1)
    cp: int = option(
        1, "Context parallel size of the static schedules, padded and packed.", least=1
    )
    dp: int = option(1, "Data parallel size.", least=1)
    vpp: int = option(1, "Number of model chunks on each pipeline rank.", least=1)
    sequence_parallel: bool = option(
        True, "Shard rows over the tensor parallel ranks between layers."
    )
    fully_sharded: bool = option(
        False, "Shard parameters over the DP x CP ranks (FSDP2).", "--fsdp"
    )
    comm_type: str = option("p2p", "CP communication type.", "--comm", choices=COMM_TYPES)
    ranks_per_node: int = option(
        0, "Number of DP x CP ranks in a node, for a2a+p2p. 0 means all ranks.", least=0
    )

    def __post_init__(self) -> None:
        check_options(self)
        if self.vpp > 1 and self.pp == 1:
            sentence = f"{self.vpp} virtual stages need a pipeline; give --pp 2 or more"
            raise InputError("--vpp", sentence)
        if self.ranks_per_node and self.domain % self.ranks_per_node:
            sentence = f"{self.ranks_per_node} does not divide the {self.domain} DP x CP ranks"
            raise InputError("--ranks-per-node", f"{sentence}; choose a divisor")

    @property
    def layout(self) -> RankLayout:
        """The grid of the ranks."""
        return RankLayout(tp=self.tp, pp=self.pp, cp=self.cp, dp=self.dp)

    @property
    def domain(self) -> int:
        """Ranks of one DP x CP domain."""
        return self.dp * self.cp

    @property
    def node(self) -> int:
        """Ranks of a domain inside one node."""
        return self.ranks_per_node or self.domain

    @property
    def row_shards(self) -> int:
        """Number of parts into which the tensor parallel ranks divide a rank's rows."""
        return self.tp if self.sequence_parallel else 1


@dataclass(frozen=True, kw_only=True)
class BatchOptions:
    """Data of each step, and how it is planned."""

    data: str = option(
        "stdlib",
        "Training data: stdlib, stdlib:definitions or synthetic.",
        metavar="DATA",
    )
    seed: int = option(
        0, "Random seed of the data, its order and the parameters.", least=0, most=2**32 - 1
    )
    global_batch: int = option(16, "Number of sequences in a step.", least=1)
    max_sequence_length: int = option(
        1024,
        "Largest number of tokens of a document; longer ones are cut.",
        "--max-length",
        least=2,
    )
    schedule: str = option("dynamic", "How a batch becomes microbatches.", choices=SCHEDULES)
    max_tokens_per_rank: int = option(
        1024, "Largest number of rows of a rank in one microbatch, padding included.", least=1
    )
    cp_sizes: str = option(
        "pow2",
        "CP sizes that Dynamic CP may choose; a list is written as 1,2,3.",
        metavar="pow2|divisors|LIST",
    )
    forced_sizes: tuple[int, ...] = option(
        (),
        "CP sizes that microbatches take in turn, for tests, such as 1,2,4.",
        "--force-cp",
        metavar="N,N,...",
    )

    def __post_init__(self) -> None:
        check_options(self)
        if self.schedule == "dynamic":
            return
        sentence = f"has no effect with --schedule {self.schedule}"
        if self.forced_sizes:
            raise InputError("--force-cp", f"--force-cp {sentence}; use --schedule dynamic")
        if self.cp_sizes != BatchOptions.cp_sizes:
            remedy = "use --cp, or --schedule dynamic"
            raise InputError("--cp-sizes", f"--cp-sizes {sentence}; {remedy}")


@dataclass(frozen=True, kw_only=True)
class OptimiserOptions:
    """Optimizer and learning rate."""

    steps: int = option(50, "Number of training steps.", least=1)
    learning_rate: float = option(3e-3, "Highest learning rate.", least=0)
    warmup_steps: int = option(
        5, "Number of steps until the highest learning rate is reached.", "--warmup", least=0
    )
    weight_decay: float = option(0.1, "Weight decay of matrices.", least=0)
    clip: float = option(
        1.0, "Largest gradient norm; larger gradients are clipped. 0 means no clipping.", least=0
    )

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, kw_only=True)
class KeepingOptions:
    """Checkpoints and evaluations of a run."""

    save: str = option("", "Folder for checkpoints. Without it, none are written.", metavar="DIR")
    save_every: int = option(
        0, "Number of steps between checkpoints. 0 means one at the end.", least=0, needs="save"
    )
    resume: bool = option(
        False, "Continue from the newest checkpoint in the folder of --save.", needs="save"
    )
    evaluate_every: int = option(
        0, "Number of steps between evaluations. 0 means no evaluation.", least=0
    )
    evaluate_batches: int = option(1, "Number of global batches in an evaluation.", least=1)

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, kw_only=True)
class GraphOptions:
    """CUDA graphs of a run; names are those of ``graphs.names``.

    Raises:
        InputError: A name is unknown, a number is negative, or an option has no effect without
            graphs.
    """

    graphs: str = option(
        "off",
        "CUDA graphs: static runs packs of fixed capacity eagerly, bank captures and replays them.",
        choices=GRAPHS,
    )
    graph_backend: str = option(
        "auto", "What captures graphs; tape stands in for a GPU on a CPU.", choices=NAMES
    )
    graph_scope: str = option(
        "auto",
        "Part of a layer that is captured; auto is layer, or attn where layers have experts.",
        choices=("auto", *SCOPES),
    )
    graph_warmup: int = option(3, "Number of runs before a capture; at least 1 on a GPU.", least=0)
    graph_rows: int = option(
        0, "Number of rows of a pack on a rank. 0 means --max-tokens-per-rank.", least=0
    )
    graph_sequences: int = option(
        0,
        "Number of sequences of a pack, a dummy included. 0 means enough for any pack.",
        least=0,
    )
    graph_slots: int = option(
        0, "Number of microbatches in flight. 0 means what the pipeline needs.", least=0
    )
    graphs_overflow: str = option(
        "error",
        "What happens to a pack that fits no graph; eager runs it without one.",
        choices=OVERFLOWS,
    )

    def __post_init__(self) -> None:
        check_options(self)
        for one in fields(self):
            used = self.graphs == "bank" or one.name == "graphs"
            used = used or (self.graphs == "static" and one.name in _OF_CAPACITY)
            if not used and getattr(self, one.name) != one.default:
                remedy = "static or bank" if one.name in _OF_CAPACITY else "bank"
                sentence = f"has no effect with --graphs {self.graphs}; use --graphs {remedy}"
                raise InputError(spelled(one), f"{spelled(one)} {sentence}")


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """All options of a run.

    Raises:
        InputError: Options contradict each other.
    """

    model: ModelOptions
    parallel: ParallelOptions
    batch: BatchOptions
    optimiser: OptimiserOptions
    keeping: KeepingOptions
    graphs: GraphOptions = field(default_factory=GraphOptions)

    def __post_init__(self) -> None:
        if self.graphs.graphs == "bank":
            self._check_bank()
        _ = self.capacity  # raises if the rows cannot be divided
        chunks = self.parallel.layout.pp * self.parallel.vpp
        layers = len(self.model.config.layers)
        if chunks > layers:
            sentence = f"{chunks} pipeline chunks are more than the {layers} layers"
            raise InputError("--pp", f"{sentence}; lower --pp or --vpp")
        check_sizes(
            self.model.config,
            self.group_sizes,
            tp=self.parallel.layout.tp,
            comm_type=self.parallel.comm_type,
            ranks_per_node=self.parallel.node,
            field="--cp-sizes" if self.batch.schedule == "dynamic" else "--cp",
        )

    @property
    def capacity(self) -> RankCapacity | None:
        """Fixed size of packs for CUDA graphs; ``None`` without graphs.

        Raises:
            InputError: The rows cannot be divided, or there are more than a microbatch may have.
        """
        from ringproof.reference.packing.capacity import RankCapacity  # imports numpy

        graphs, most = self.graphs, self.batch.max_tokens_per_rank
        if graphs.graphs == "off":
            return None
        multiple = 2 * self.parallel.row_shards  # zigzag gives each rank two chunks
        rows = graphs.graph_rows or most // multiple * multiple
        if rows % multiple or not 0 < rows <= most:
            sentence = f"{rows} is not a multiple of {multiple} up to {most:,}"
            raise InputError("--graph-rows", f"{sentence} (--max-tokens-per-rank); give one")
        entries = graphs.graph_sequences or self.batch.global_batch + 1
        return RankCapacity(rows, entries, graphs.graphs_overflow)

    @property
    def slots(self) -> int:
        """Microbatches of a stage that may be between forward and backward at a time."""
        layout, vpp = self.parallel.layout, self.parallel.vpp
        most = self.batch.global_batch * vpp * layout.pp
        return self.graphs.graph_slots or microbatches_in_flight(most, pp=layout.pp, vpp=vpp)

    @property
    def graph_scope(self) -> str:
        """Part of a layer that a graph captures: what was asked for, or the widest possible."""
        experts = any(kind.feed_forward == "experts" for kind in self.model.config.layers)
        widest = "attn" if experts else "layer"
        return widest if self.graphs.graph_scope == "auto" else self.graphs.graph_scope

    def _check_bank(self) -> None:
        config, scope = self.model.config, self.graph_scope
        kinds = [kind.feed_forward for kind in config.layers]
        check_scope(kinds, scope, recompute=self.model.recompute)
        if scope == "router" and config.experts is None:
            sentence = f"the model {config.name} has no experts to route; use layer or attn"
            raise InputError("--graph-scope", sentence)
        if self.parallel.fully_sharded:
            sentence = "FSDP gathers parameters at new addresses, which a graph cannot follow"
            raise InputError("--graphs", f"{sentence}; use --graphs static, or leave out --fsdp")

    @property
    def group_sizes(self) -> tuple[int, ...]:
        """CP sizes that a step may use.

        Raises:
            InputError: A size does not divide the domain.
        """
        from ringproof.reference.planning.domain import choose_cp_sizes  # imports numpy

        if self.batch.schedule != "dynamic":
            return (self.parallel.layout.cp,)
        sizes = choose_cp_sizes(self.batch.cp_sizes, self.parallel.domain)
        for size in self.batch.forced_sizes:
            if size not in sizes:
                sentence = f"{size} is not a group size; choose from {_listed(sizes)}"
                raise InputError("--force-cp", sentence)
        return tuple(sorted(set(self.batch.forced_sizes))) or sizes


def microbatches_in_flight(microbatches: int, *, pp: int, vpp: int) -> int:
    """Return the largest number of microbatches between forward and backward in one pipeline chunk.

    The number is 1 without a pipeline. Under 1F1B it is the number of stages, or that of
    microbatches if they are fewer (GPipe). Under interleaved 1F1B it is twice the number of stages,
    since the first chunk runs a second round before its first backward. With several chunks, the
    number of microbatches has to be a multiple of ``pp``, as in plans.

    >>> [microbatches_in_flight(9, pp=pp, vpp=vpp) for pp, vpp in ((1, 1), (4, 1), (3, 2))]
    [1, 4, 6]
    """
    most = 1 if pp == 1 else pp if vpp == 1 else 2 * pp
    return min(microbatches, most)


def check_sizes(
    config: ModelConfig,
    sizes: Sequence[int],
    *,
    tp: int,
    comm_type: str,
    ranks_per_node: int,
    field: str = "--cp-sizes",
) -> None:
    """Refuse CP sizes that do not divide the heads of an all-to-all.

    Without this check, such a size would fail in the first step that uses it, possibly after hours.
    Attention exchanges heads under ``a2a`` and, inside a node, under ``a2a+p2p``. The tensor
    parallel size divides the heads first.

    Raises:
        InputError: A size does not fit. The message names the first one, and the option ``field``
            that gave it.
    """
    for size in sizes:
        inner = level_sizes(size, ranks_per_node)[0] if comm_type == "a2a+p2p" else size
        exchanges = comm_type in ("a2a", "a2a+p2p")
        shapes = (config.attention, config.latent) if exchanges else ()
        heads = [("attention", shape.heads, inner) for shape in shapes if shape]
        for part, count, ranks in heads:
            if count % tp:
                raise InputError("--tp", f"{tp} does not divide the {count} {part} heads")
            own = count // tp
            if own % ranks:
                fitting = [number for number in range(1, own + 1) if own % number == 0]
                sentence = (
                    f"with size {size}, {ranks} ranks of an all-to-all cannot share {own} {part}"
                )
                remedy = f"use sizes whose all-to-all has {_listed(fitting)} ranks"
                raise InputError(field, f"{sentence} heads of a TP rank evenly; {remedy}")


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
