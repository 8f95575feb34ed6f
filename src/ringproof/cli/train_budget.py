"""Ranks and memory that ``ringproof train`` needs, from its shapes and before it starts.

The factors were fitted to the measured peaks of the first minute of eight runs on a CPU. The
estimate is between 0.9 and 1.5 times the peak.
"""

from __future__ import annotations

from collections.abc import Iterator

from ringproof.budget import Estimate, EstimatePart
from ringproof.reference.training.options import TrainOptions

_HELD = 64
"""Numbers of the hidden width that a layer keeps of each row for its backward pass."""


def train_estimate(options: TrainOptions) -> Estimate:
    """Estimate a run: the activations of all ranks, and what captured graphs keep."""
    layout, rows = options.parallel.layout, options.batch.max_tokens_per_rank
    config = options.model.config
    layers = len(config.layers) + options.model.mtp
    width = 8 if options.model.dtype == "float64" else 4
    numbers = layers * config.hidden * _HELD + 3 * config.vocabulary
    activations = layout.world_size * rows * numbers * width
    pools = sum(_graph_bytes(options, activations // layout.world_size, width))
    name = max(("dp", "cp", "tp", "pp"), key=lambda axis: int(getattr(layout, axis)))
    parts = (EstimatePart("--max-tokens-per-rank", rows, activations + pools),)
    return Estimate(layout.world_size, parts, f"--{name}", getattr(layout, name))


def _graph_bytes(options: TrainOptions, activations: int, width: int) -> Iterator[int]:
    """Scores of attention and activations, which a captured graph keeps for each slot."""
    capacity = options.capacity
    if capacity is None or options.graphs.graphs != "bank":
        return
    config, layout = options.model.config, options.parallel.layout
    shape = config.attention or config.latent
    layers = sum(kind.mixer in ("attention", "latent") for kind in config.layers)
    columns = capacity.rows * sum(options.group_sizes)
    scores = layers * (shape.heads if shape else 1) * capacity.rows * columns * width
    yield options.slots * (scores + activations) * layout.world_size // layout.tp
