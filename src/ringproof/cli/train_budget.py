"""Ranks and memory that ``ringproof train`` needs, from its shapes and before it starts.

The factors were fitted to the measured peaks of the first minute of eight runs on a CPU. The
estimate is between 0.9 and 1.5 times the peak.
"""

from __future__ import annotations

from ringproof.budget import Estimate, EstimatePart
from ringproof.reference.training.options import TrainOptions

_HELD = 64
"""Numbers of the hidden width that a layer keeps of each row for its backward pass."""
_COPIES = 4
"""A parameter, its gradient and two moments of the optimiser."""
_LAYER_WEIGHTS = 12
"""Parameters of a layer, in squares of the hidden width."""
_TOKEN_BYTES = 80
"""Bytes of a token of the global batch, while rows move to the ranks that compute them."""
_SEQUENCE_BYTES = 500
"""Python objects of one sequence in a batch, its plan and its metadata."""


def train_estimate(options: TrainOptions) -> Estimate:
    """Estimate a run."""
    layout, batch = options.parallel.layout, options.batch
    parts = (
        EstimatePart("--mtp", options.model.mtp, _mtp_bytes(options)),
        EstimatePart(
            "--max-tokens-per-rank", batch.max_tokens_per_rank, _activation_bytes(options)
        ),
        EstimatePart("--global-batch", batch.global_batch, _batch_bytes(options)),
        *_graph_parts(options),
    )
    name = max(("dp", "cp", "tp", "pp"), key=lambda axis: int(getattr(layout, axis)))
    return Estimate(layout.world_size, parts, f"--{name}", getattr(layout, name))


def _width(options: TrainOptions) -> int:
    return 8 if options.model.dtype == "float64" else 4


def _rows(options: TrainOptions) -> int:
    """Rows of a rank in a microbatch, at most."""
    batch = options.batch
    tokens = batch.global_batch * batch.max_sequence_length
    shards = options.parallel.layout.cp if batch.schedule == "padded" else 1
    return min(batch.max_tokens_per_rank, -(-tokens // shards))


def _activation_bytes(options: TrainOptions) -> int:
    config = options.model.config
    held = len(config.layers) * config.hidden * _HELD + 3 * config.vocabulary
    return options.parallel.layout.world_size * _rows(options) * held * _width(options)


def _mtp_bytes(options: TrainOptions) -> int:
    config = options.model.config
    weights = _LAYER_WEIGHTS * config.hidden**2 * _COPIES
    held = _rows(options) * (config.hidden * _HELD + 3 * config.vocabulary)
    ranks = options.parallel.layout.world_size // options.parallel.layout.pp
    return ranks * options.model.mtp * (weights + held) * _width(options)


def _batch_bytes(options: TrainOptions) -> int:
    batch = options.batch
    one = batch.max_sequence_length * _TOKEN_BYTES + _SEQUENCE_BYTES
    return options.parallel.layout.world_size * batch.global_batch * one


def _graph_parts(options: TrainOptions) -> tuple[EstimatePart, ...]:
    """Scores of attention and metadata, which a captured graph keeps for each slot and CP size."""
    capacity = options.capacity
    if capacity is None:
        return ()
    config, ranks = options.model.config, options.parallel.layout.world_size
    entries = capacity.entries * _SEQUENCE_BYTES * ranks
    sequences = EstimatePart("--graph-sequences", options.graphs.graph_sequences, entries)
    if options.graphs.graphs != "bank":
        return (sequences,)
    shape = config.attention or config.latent
    heads = shape.heads if shape else 1
    layers = sum(kind.mixer in ("attention", "latent") for kind in config.layers)
    rows, columns = capacity.rows, capacity.rows * sum(options.group_sizes)
    one = layers * heads * rows * columns * _width(options) + _activation_bytes(options) // ranks
    pools = options.slots * one * ranks // options.parallel.layout.tp
    if options.slots > 1 and options.graphs.graph_slots:
        return (sequences, EstimatePart("--graph-slots", options.graphs.graph_slots, pools))
    return (
        sequences,
        EstimatePart("--max-tokens-per-rank", options.batch.max_tokens_per_rank, pools),
    )
