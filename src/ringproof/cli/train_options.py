"""Options of a run from the parameters of ``ringproof train``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any

from ringproof.cli.field_names import integers, named_by_option
from ringproof.reference.topology.layout import RankLayout
from ringproof.reference.training.options import (
    BatchOptions,
    GraphOptions,
    KeepingOptions,
    ModelOptions,
    OptimiserOptions,
    ParallelOptions,
    TrainOptions,
)

# Where a field's option is not simply its name with dashes.
OPTION_OF_FIELD = MappingProxyType(
    {
        "comm_type": "--comm",
        "cp-sizes": "--cp-sizes",
        "forced_sizes": "--force-cp",
        "max_sequence_length": "--max-length",
        "padded_length": "--max-length",
        "warmup_steps": "--warmup",
        "tensor parallel size": "--tp",
    }
)


def train_options(given: Mapping[str, Any]) -> TrainOptions:
    """Return the options of a run from the command's parameters.

    Raises:
        InputError: A value is wrong, or options contradict each other. It names the option.
    """
    forced = integers("--force-cp", given["force_cp"], "1,2,4")
    with named_by_option(OPTION_OF_FIELD, given):
        layout = RankLayout(**{axis: given[axis] for axis in ("tp", "pp", "cp", "dp")})
        return TrainOptions(
            model=ModelOptions(**_picked(given, "preset", "mtp", "dtype", "recompute")),
            parallel=ParallelOptions(
                layout=layout,
                fully_sharded=given["fsdp"],
                comm_type=given["comm"],
                **_picked(given, "vpp", "sequence_parallel", "ranks_per_node"),
            ),
            batch=BatchOptions(
                max_sequence_length=given["max_length"],
                forced_sizes=forced,
                **_picked(given, "data", "seed", "global_batch", "schedule"),
                **_picked(given, "max_tokens_per_rank", "cp_sizes"),
            ),
            optimiser=OptimiserOptions(
                warmup_steps=given["warmup"],
                **_picked(given, "steps", "learning_rate", "weight_decay", "clip"),
            ),
            keeping=KeepingOptions(
                **_picked(given, "save", "save_every", "resume"),
                **_picked(given, "evaluate_every", "evaluate_batches"),
            ),
            graphs=GraphOptions(**_picked(given, *(f.name for f in fields(GraphOptions)))),
        )


def _picked(given: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: given[name] for name in names}
