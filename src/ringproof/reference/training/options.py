"""Options of a run, which are checked as a whole before any rank starts, without torch.

``ringproof train`` makes its options from these fields: each has its name with dashes, unless the
field gives another, and the help text of the field.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from ringproof.errors import InputError, check_name
from ringproof.reference.attention.names import COMM_TYPES
from ringproof.reference.graphs.names import NAMES, OVERFLOWS, SCOPES, check_scope
from ringproof.reference.model.config import ModelConfig, preset
from ringproof.reference.topology.dynamic_catalogue import level_sizes
from ringproof.reference.topology.layout import RankLayout

if TYPE_CHECKING:
    from ringproof.reference.packing.capacity import RankCapacity

DTYPES = ("float64", "float32", "bfloat16")
GRAPHS = ("off", "static", "bank")
SCHEDULES = ("padded", "packed", "dynamic")
_OF_CAPACITY = ("graphs", "graph_rows", "graph_sequences", "graphs_overflow")


def _option(default: Any, text: str, name: str = "") -> Any:
    """Declare a field that is an option of ``ringproof train``, with its help text."""
    return field(default=default, metadata={"help": text, "name": name})


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """The model to train: a preset of `ringproof.reference.model.config`."""

    preset: str = _option(
        "qwen3-tiny", "Name of the model: qwen3-tiny, moonlight-tiny or nemotron-h-tiny."
    )
    mtp: int = _option(0, "Number of tokens predicted beyond the next one (MTP).")
    dtype: str = _option("float32", "Precision of the model: float64, float32 or bfloat16.")
    recompute: bool = _option(
        False, "Recompute the activations of each layer in its backward pass."
    )

    def __post_init__(self) -> None:
        check_name("dtype", self.dtype, DTYPES)
        preset(self.preset)
        _at_least(0, self, "mtp")

    @property
    def config(self) -> ModelConfig:
        """The preset with its MTP depths."""
        return replace(preset(self.preset), mtp_depths=self.mtp)


@dataclass(frozen=True, kw_only=True)
class ParallelOptions:
    """Distribution of the model and the data over ranks. The layout has four options."""

    layout: RankLayout
    vpp: int = _option(1, "Number of model chunks on each pipeline rank.")
    sequence_parallel: bool = _option(
        True, "Shard rows over the tensor parallel ranks between layers."
    )
    fully_sharded: bool = _option(
        False, "Shard parameters over the DP x CP ranks (FSDP2).", "--fsdp"
    )
    comm_type: str = _option(
        "p2p", "CP communication type: p2p, all_gather, a2a or a2a+p2p.", "--comm"
    )
    ranks_per_node: int = _option(
        0, "Number of DP x CP ranks in a node, for a2a+p2p. 0 means all ranks."
    )

    def __post_init__(self) -> None:
        check_name("comm_type", self.comm_type, COMM_TYPES)
        _at_least(1, self, "vpp")
        _at_least(0, self, "ranks_per_node")
        if self.vpp > 1 and self.layout.pp == 1:
            raise InputError("vpp", self.vpp, "interleaves stages, and there is one", "raise pp")
        if self.ranks_per_node and self.domain % self.ranks_per_node:
            problem = f"does not divide the domain of {self.domain} ranks"
            raise InputError("ranks_per_node", self.ranks_per_node, problem, "choose a divisor")

    @property
    def domain(self) -> int:
        """Ranks of one DP x CP domain."""
        return self.layout.dp * self.layout.cp

    @property
    def node(self) -> int:
        """Ranks of a domain inside one node."""
        return self.ranks_per_node or self.domain

    @property
    def row_shards(self) -> int:
        """Number of parts into which the tensor parallel ranks divide a rank's rows."""
        return self.layout.tp if self.sequence_parallel else 1


@dataclass(frozen=True, kw_only=True)
class BatchOptions:
    """Data of each step, and how it is planned."""

    data: str = _option(
        "stdlib",
        "Training data: stdlib, stdlib:definitions, folder:PATH,glob=*.txt or synthetic.",
    )
    seed: int = _option(0, "Random seed of the data, its order and the parameters.")
    global_batch: int = _option(16, "Number of sequences in a step.")
    max_sequence_length: int = _option(
        1024, "Largest number of tokens of a document; longer ones are cut.", "--max-length"
    )
    schedule: str = _option("dynamic", "Batch schedule: padded, packed or dynamic.")
    max_tokens_per_rank: int = _option(
        1024, "Largest number of rows of a rank in one microbatch, padding included."
    )
    cp_sizes: str = _option(
        "pow2", "CP sizes that Dynamic CP may choose: pow2, divisors or a list such as 1,2,3."
    )
    forced_sizes: tuple[int, ...] = _option(
        (), "CP sizes that microbatches take in turn, for tests, such as 1,2,4.", "--force-cp"
    )

    def __post_init__(self) -> None:
        check_name("schedule", self.schedule, SCHEDULES)
        _at_least(1, self, "global_batch", "max_tokens_per_rank")
        _at_least(2, self, "max_sequence_length")
        if self.schedule == "dynamic":
            return
        problem = f"has no effect with the {self.schedule} schedule"
        if self.forced_sizes:
            raise InputError("forced_sizes", self.forced_sizes, problem, "use --schedule dynamic")
        if self.cp_sizes != BatchOptions.cp_sizes:
            raise InputError("cp_sizes", self.cp_sizes, problem, "use --cp, or --schedule dynamic")


@dataclass(frozen=True, kw_only=True)
class OptimiserOptions:
    """Optimizer and learning rate."""

    steps: int = _option(50, "Number of optimiser steps.")
    learning_rate: float = _option(3e-3, "Highest learning rate.")
    warmup_steps: int = _option(
        5, "Number of steps until the highest learning rate is reached.", "--warmup"
    )
    weight_decay: float = _option(0.1, "Weight decay of matrices.")
    clip: float = _option(
        1.0, "Largest gradient norm; larger gradients are clipped. 0 means no clipping."
    )

    def __post_init__(self) -> None:
        _at_least(1, self, "steps")
        _at_least(0, self, "warmup_steps")
        for name in ("learning_rate", "weight_decay", "clip"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise InputError(name, value, "is not a number of 0 or more", "correct it")


@dataclass(frozen=True, kw_only=True)
class KeepingOptions:
    """Checkpoints and evaluations of a run."""

    save: str = _option("", "Folder for checkpoints. Without it, none are written.")
    save_every: int = _option(0, "Number of steps between checkpoints. 0 means one at the end.")
    resume: bool = _option(False, "Continue from the newest checkpoint in the folder of --save.")
    evaluate_every: int = _option(0, "Number of steps between evaluations. 0 means no evaluation.")
    evaluate_batches: int = _option(1, "Number of global batches in an evaluation.")

    def __post_init__(self) -> None:
        _at_least(0, self, "save_every", "evaluate_every")
        _at_least(1, self, "evaluate_batches")
        if (self.resume or self.save_every) and not self.save:
            raise InputError("save", "", "names no folder for checkpoints", "give --save FOLDER")


@dataclass(frozen=True, kw_only=True)
class GraphOptions:
    """CUDA graphs of a run; names are those of ``graphs.names``.

    Raises:
        InputError: A name is unknown, a number is negative, or an option has no effect without
            graphs.
    """

    graphs: str = _option(
        "off", "CUDA graphs: off, static (packs of fixed capacity, eager) or bank (replayed)."
    )
    graph_backend: str = _option(
        "auto", "What captures graphs: auto, cuda, transformer-engine or tape (on a CPU)."
    )
    graph_scope: str = _option("layer", "Part of a layer that is captured: layer, attn or router.")
    graph_warmup: int = _option(3, "Number of runs before a capture; at least 1 on a GPU.")
    graph_rows: int = _option(
        0, "Number of rows of a pack on a rank. 0 means --max-tokens-per-rank."
    )
    graph_sequences: int = _option(
        0, "Number of sequences of a pack, a dummy included. 0 means enough for any pack."
    )
    graph_slots: int = _option(
        0, "Number of microbatches in flight. 0 means what the pipeline needs."
    )
    graphs_overflow: str = _option(
        "error", "What happens to a pack that fits no graph: error, or eager to run it without one."
    )

    def __post_init__(self) -> None:
        check_name("graphs", self.graphs, GRAPHS)
        check_name("graph_backend", self.graph_backend, NAMES)
        check_name("graph_scope", self.graph_scope, SCOPES)
        check_name("graphs_overflow", self.graphs_overflow, OVERFLOWS)
        _at_least(0, self, "graph_warmup", "graph_rows", "graph_sequences", "graph_slots")
        for one in fields(self):
            used = self.graphs == "bank" or one.name == "graphs"
            used = used or (self.graphs == "static" and one.name in _OF_CAPACITY)
            if not used and getattr(self, one.name) != one.default:
                problem = f"has no effect with --graphs {self.graphs}"
                remedy = "use static or bank" if one.name in _OF_CAPACITY else "use bank"
                raise InputError(one.name, getattr(self, one.name), problem, remedy)


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
            problem = f"{chunks} pipeline chunks and {layers} layers"
            raise InputError("pp", self.parallel.layout.pp, problem, "use fewer chunks")
        check_sizes(
            self.model.config,
            self.group_sizes,
            tp=self.parallel.layout.tp,
            comm_type=self.parallel.comm_type,
            ranks_per_node=self.parallel.node,
            field="cp_sizes" if self.batch.schedule == "dynamic" else "cp",
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
            problem = f"is not a multiple of {multiple} up to max_tokens_per_rank"
            raise InputError("graph_rows", rows, problem, f"give one, {most:,} at most")
        entries = graphs.graph_sequences or self.batch.global_batch + 1
        return RankCapacity(rows, entries, graphs.graphs_overflow)

    @property
    def slots(self) -> int:
        """Microbatches of a stage that may be between forward and backward at a time."""
        layout, vpp = self.parallel.layout, self.parallel.vpp
        most = self.batch.global_batch * vpp * layout.pp
        return self.graphs.graph_slots or microbatches_in_flight(most, pp=layout.pp, vpp=vpp)

    def _check_bank(self) -> None:
        config, scope = self.model.config, self.graphs.graph_scope
        kinds = [kind.feed_forward for kind in config.layers]
        check_scope(kinds, scope, recompute=self.model.recompute)
        if scope == "router" and config.experts is None:
            raise InputError("graph_scope", scope, f"{config.name} has no experts", "use layer")
        if self.parallel.fully_sharded:
            problem = "FSDP gathers parameters at new addresses"
            raise InputError("graphs", "bank", problem, "use --graphs static, or no --fsdp")

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
                remedy = f"choose from {sizes}"
                raise InputError("forced_sizes", size, "is not a group size", remedy)
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
    field: str = "cp_sizes",
) -> None:
    """Refuse CP sizes that do not divide the heads of an all-to-all.

    Without this check, such a size would fail in the first step that uses it, possibly after hours.
    Attention exchanges heads under ``a2a`` and, inside a node, under ``a2a+p2p``. Mamba always
    exchanges them over the whole group. The tensor parallel size divides the heads first.

    Raises:
        InputError: A size does not fit. The message names the first one, and the option ``field``
            that gave it.
    """
    for size in sizes:
        inner = level_sizes(size, ranks_per_node)[0] if comm_type == "a2a+p2p" else size
        exchanges = comm_type in ("a2a", "a2a+p2p")
        shapes = (config.attention, config.latent) if exchanges else ()
        heads = [("attention", shape.heads, inner) for shape in shapes if shape]
        if config.mamba:
            heads.append(("mamba", config.mamba.heads, size))
        for part, count, ranks in heads:
            if count % tp:
                problem = f"does not divide the {count} {part} heads"
                raise InputError("tp", tp, problem, "use a divisor")
            own = count // tp
            if own % ranks:
                problem = f"the {own} {part} heads of a TP rank cannot be shared by {ranks} ranks"
                fitting = [number for number in range(1, own + 1) if own % number == 0]
                remedy = f"allow only sizes such as {fitting}"
                raise InputError(field, size, f"{problem} of its all-to-all", remedy)


def _at_least(least: int, options: Any, *names: str) -> None:
    for name in names:
        if getattr(options, name) < least:
            problem = f"is less than {least}" if least else "is negative"
            raise InputError(name, getattr(options, name), problem, f"give {least} or more")
