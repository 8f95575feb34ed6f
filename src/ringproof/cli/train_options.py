"""From the options of ``ringproof train`` to a run that is checked as a whole."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any

from ringproof.errors import InputError
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
    """The run that the command's parameters ask for.

    Raises:
        InputError: A value that cannot be, or options that contradict each other, by option.
    """
    forced = _integers("--force-cp", given["force_cp"])
    with named_by_option(given):
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


@contextlib.contextmanager
def named_by_option(given: Mapping[str, Any]) -> Iterator[None]:
    """Refusals of a field that has an option name that instead.

    Args:
        given: The command's parameters.
    """
    try:
        yield
    except InputError as error:
        name = OPTION_OF_FIELD.get(error.field, error.field)
        if name in given:
            name = f"--{name.replace('_', '-')}"
        raise InputError(name, error.value, error.problem, error.remedy) from None


def _integers(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise InputError(option, text, "not a list of integers", "write it as 1,2,4") from None
