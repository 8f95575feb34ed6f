"""Defects of other kinds than `FAULTS`: two at once, one layer, data, optimizer, a race."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from checks.faults import engine, megatron
from checks.faults.planting import Run, planted

ATTENTION = r"decoder\.layers\.0\.self_attention\.core_attention(\.\w+)?"
Given = dict[str, Any]


@planted(f"{engine.MODULE}.forward")
def last_layer_scaled(given: Given, run: Run) -> Any:
    """The attention of the last layer returns values that are too large by a thousandth."""
    return run() * 1.001 if given["self"].layer_number == 2 else run()


@planted("megatron.core.tensor_parallel.layers:VocabParallelEmbedding.forward")
def embedding_scaled(given: Given, run: Run) -> Any:
    """The embedding of the second CP rank is too large by a thousandth."""
    from megatron.core import parallel_state

    return run() * (1 + 1e-3 * parallel_state.get_context_parallel_rank())


@planted("megatron.training.utils:get_batch_on_this_cp_rank")
def labels_shifted(given: Given, run: Run) -> Any:
    """Labels are shifted by one more token."""
    batch = run()
    return {**batch, "labels": batch["labels"].roll(1, dims=1)}


@planted("transformer_engine.pytorch.optimizers.fused_adam:FusedAdam.step")
def rate_doubled(given: Given, run: Run) -> Any:
    """The optimizer steps with twice the learning rate."""
    groups = given["self"].param_groups
    rates = [group["lr"] for group in groups]
    for group in groups:
        group["lr"] *= 2
    result = run()
    for group, rate in zip(groups, rates, strict=True):
        group["lr"] = rate
    return result


@planted(f"{engine.CP}:flash_attn_fwd_softmax_lse_correction")
def merge_races(given: Given, run: Run) -> Any:
    """The LSE of a ring step is read too early in about half of the calls, by chance."""
    if os.urandom(1)[0] % 2:
        return run()
    return None


@dataclass(frozen=True)
class Kind:
    """Defects that are planted together.

    Attributes:
        functions: ``module:function`` of each.
        phase: Phase of the first of them in the order of execution.
        module: Module of the first, as a regular expression.
    """

    name: str
    training: str
    functions: tuple[str, ...]
    phase: str
    module: str


def _kind(
    name: str, functions: tuple[Callable[[], None], ...], phase: str, module: str = ""
) -> Kind:
    places = tuple(f"{one.__module__}:{one.__name__}" for one in functions)
    return Kind(name, "cp2", places, phase, module)


KINDS = (
    _kind(
        "two-at-once", (engine.lse_merge_skipped, engine.key_gradient_lost), "forward", ATTENTION
    ),
    _kind("data-and-reduction", (labels_shifted, megatron.gradients_without_cp), "data"),
    _kind("last-layer", (last_layer_scaled,), "forward", ATTENTION.replace("0", "1")),
    _kind("embedding", (embedding_scaled,), "forward", r"embedding\.word_embeddings"),
    _kind("label-shift", (labels_shifted,), "data"),
    _kind("optimizer", (rate_doubled,), "optimizer", ".*"),
    _kind("race", (merge_races,), "forward", r"decoder\.layers\.\d\.self_attention.*"),
)
