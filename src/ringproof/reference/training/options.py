"""Options of a run, which are checked as a whole before any rank starts, without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace

from ringproof.errors import InputError, check_name
from ringproof.reference.attention.names import COMM_TYPES
from ringproof.reference.graphs.names import NAMES, OVERFLOWS, SCOPES, check_scope
from ringproof.reference.model.config import ModelConfig, preset
from ringproof.reference.packing.capacity import RankCapacity
from ringproof.reference.planning.domain import choose_cp_sizes
from ringproof.reference.topology.dynamic_catalogue import level_sizes
from ringproof.reference.topology.layout import RankLayout
from ringproof.reference.training.schedules import SCHEDULES

DTYPES = ("float64", "float32", "bfloat16")
GRAPHS = ("off", "static", "bank")
_OF_CAPACITY = ("graphs", "graph_rows", "graph_sequences", "graphs_overflow")


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """The model to train: a preset of `ringproof.reference.model.config`.

    ``mtp`` is the number of tokens predicted beyond the next one. With ``recompute``, each layer
    runs its forward again in the backward.
    """

    preset: str = "qwen3-tiny"
    mtp: int = 0
    dtype: str = "float32"
    recompute: bool = False

    def __post_init__(self) -> None:
        check_name("dtype", self.dtype, DTYPES)
        preset(self.preset)
        if self.mtp < 0:
            raise InputError("mtp", self.mtp, "is negative", "give 0 or more")

    @property
    def config(self) -> ModelConfig:
        """The preset with its MTP depths."""
        return replace(preset(self.preset), mtp_depths=self.mtp)


@dataclass(frozen=True, kw_only=True)
class ParallelOptions:
    """Distribution of the model and the data over ranks.

    Args:
        layout: Parallel sizes.
        vpp: Chunks of layers per pipeline rank. More than one gives interleaved 1F1B.
        fully_sharded: Whether FSDP2 shards parameters over the DP x CP domain.
        ranks_per_node: Ranks of a domain in one node, for ``a2a+p2p``; 0 if all are.
    """

    layout: RankLayout
    vpp: int = 1
    sequence_parallel: bool = True
    fully_sharded: bool = False
    comm_type: str = "p2p"
    ranks_per_node: int = 0

    def __post_init__(self) -> None:
        check_name("comm_type", self.comm_type, COMM_TYPES)
        _at_least("vpp", self.vpp, 1)
        _at_least("ranks_per_node", self.ranks_per_node, 0)
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
    """Data of each step, and how it is planned.

    Args:
        data: Source of documents; see `ringproof.reference.training.data`.
        seed: Seed of the data, its order and the parameters.
        global_batch: Sequences per step.
        max_sequence_length: Maximum tokens per sequence. Longer documents are cut.
        max_tokens_per_rank: Maximum rows of a rank in one microbatch, padding included.
        cp_sizes: CP sizes of dynamic groups: ``pow2``, ``divisors`` or a comma-separated list.
        forced_sizes: CP sizes that microbatches take in turn instead of the planner's choice, for
            tests. Empty for the planner's choice.
    """

    data: str = "stdlib"
    seed: int = 0
    global_batch: int = 16
    max_sequence_length: int = 1024
    schedule: str = "dynamic"
    max_tokens_per_rank: int = 1024
    cp_sizes: str = "pow2"
    forced_sizes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_name("schedule", self.schedule, SCHEDULES)
        for name in ("global_batch", "max_tokens_per_rank"):
            _at_least(name, getattr(self, name), 1)
        _at_least("max_sequence_length", self.max_sequence_length, 2)
        if self.schedule == "dynamic":
            return
        problem = f"has no effect with the {self.schedule} schedule"
        if self.forced_sizes:
            raise InputError("forced_sizes", self.forced_sizes, problem, "use --schedule dynamic")
        if self.cp_sizes != BatchOptions.cp_sizes:
            raise InputError("cp_sizes", self.cp_sizes, problem, "use --cp, or --schedule dynamic")


@dataclass(frozen=True, kw_only=True)
class OptimiserOptions:
    """Optimizer and learning rate, which rises for ``warmup_steps`` of all ``steps``.

    Only matrices decay. ``clip`` is the largest global gradient norm; 0 for no clipping.
    """

    steps: int = 50
    learning_rate: float = 3e-3
    warmup_steps: int = 5
    weight_decay: float = 0.1
    clip: float = 1.0

    def __post_init__(self) -> None:
        _at_least("steps", self.steps, 1)
        _at_least("warmup_steps", self.warmup_steps, 0)
        for name in ("learning_rate", "weight_decay", "clip"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise InputError(name, value, "is not a number of 0 or more", "correct it")


@dataclass(frozen=True, kw_only=True)
class KeepingOptions:
    """Checkpoints and evaluations of a run.

    Args:
        save: Folder of the checkpoints; empty for none.
        save_every: Steps between checkpoints; 0 for one after the last step.
        resume: Whether to continue from the newest checkpoint.
        evaluate_every: Steps between evaluations; 0 for none.
        evaluate_batches: Global batches per evaluation.
    """

    save: str = ""
    save_every: int = 0
    resume: bool = False
    evaluate_every: int = 0
    evaluate_batches: int = 1

    def __post_init__(self) -> None:
        for name in ("save_every", "evaluate_every"):
            _at_least(name, getattr(self, name), 0)
        _at_least("evaluate_batches", self.evaluate_batches, 1)
        if (self.resume or self.save_every) and not self.save:
            raise InputError("save", "", "names no folder for checkpoints", "give --save FOLDER")


@dataclass(frozen=True, kw_only=True)
class GraphOptions:
    """CUDA graphs of a run; names are those of ``graphs.names``.

    Args:
        graphs: ``off``; ``static`` for packs of fixed capacity without captures; ``bank`` for the
            same computation with captured graphs.
        graph_warmup: Number of runs before a capture.
        graph_rows: Rows of a pack per rank; 0 for the maximum of a microbatch.
        graph_sequences: Entries of a pack, the dummy included; 0 for enough for any pack.
        graph_slots: Microbatches in flight; 0 for as many as the pipeline schedule needs.
        graphs_overflow: What happens to a microbatch that does not fit: ``error`` or ``eager``.

    Raises:
        InputError: A name is unknown, a number is negative, or an option has no effect without
            graphs.
    """

    graphs: str = "off"
    graph_backend: str = "auto"
    graph_scope: str = "layer"
    graph_warmup: int = 3
    graph_rows: int = 0
    graph_sequences: int = 0
    graph_slots: int = 0
    graphs_overflow: str = "error"

    def __post_init__(self) -> None:
        for name, known in (
            ("graphs", GRAPHS),
            ("graph_backend", NAMES),
            ("graph_scope", SCOPES),
            ("graphs_overflow", OVERFLOWS),
        ):
            value = getattr(self, name)
            if value not in known:
                raise InputError(name, value, "unknown", f"use one of {', '.join(known)}")
        for name in ("graph_warmup", "graph_rows", "graph_sequences", "graph_slots"):
            if getattr(self, name) < 0:
                raise InputError(name, getattr(self, name), "is negative", "give 0 or more")
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

    Args:
        config: The model.
        sizes: CP sizes that may be used.
        tp: Tensor parallel size.
        comm_type: Communication type of attention.
        ranks_per_node: Ranks of the domain in one node.
        field: Name of the option that gave the sizes, for the message.

    Raises:
        InputError: A size does not fit. The message names the first one.
    """
    for size in sizes:
        if comm_type in ("a2a", "a2a+p2p"):
            inner = size if comm_type == "a2a" else level_sizes(size, ranks_per_node)[0]
            for shape in (config.attention, config.latent):
                _check_heads("attention", shape.heads if shape else 0, tp, (size, inner), field)
        _check_heads("mamba", config.mamba.heads if config.mamba else 0, tp, (size, size), field)


def _check_heads(part: str, heads: int, tp: int, sizes: tuple[int, int], field: str) -> None:
    """Check one group size with the size of its all-to-all."""
    size, exchanging = sizes
    if heads % tp:
        raise InputError("tp", tp, f"does not divide the {heads} {part} heads", "use a divisor")
    if heads // tp % exchanging:
        problem = (
            f"the {heads // tp} {part} heads of a TP rank cannot be shared by "
            f"{exchanging} ranks of its all-to-all"
        )
        fitting = [number for number in range(1, heads // tp + 1) if heads // tp % number == 0]
        raise InputError(field, size, problem, f"allow only sizes such as {fitting}")


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise InputError(name, value, f"is less than {least}", f"give {least} or more")
