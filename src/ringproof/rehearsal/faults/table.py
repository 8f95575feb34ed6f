"""The planted defects, and the small program that shows each."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

from ringproof.rehearsal.faults import engine, megatron


@dataclass(frozen=True)
class Fault:
    """One planted defect.

    Attributes:
        name: In the table and in test ids.
        function: What plants it, ``module:function``.
        breaks: What is wrong then, in one sentence: the function's docstring.
        training: Name of the program in `ringproof.rehearsal.faults.programs.TRAININGS`.
    """

    name: str
    function: str
    breaks: str
    training: str


def _fault(function: Callable[[], None], training: str) -> Fault:
    place = f"{function.__module__}:{function.__name__}"
    name = function.__name__.replace("_", "-")
    return Fault(name, place, inspect.getdoc(function) or "", training)


PLANTED = (
    ("dynamic", (
        engine.group_kept, megatron.rope_group_static, megatron.groups_halved,
        megatron.evaluation_keeps_group, megatron.stale_boundaries, engine.stale_lengths,
        megatron.slices_contiguous, megatron.labels_of_next_rank, megatron.padding_counted,
        megatron.sample_given_twice, megatron.microbatch_dropped, megatron.tokens_counted_locally,
        megatron.loss_scaled_by_microbatches, megatron.schedule_differs,
    )),
    ("cp2-dp2", (megatron.gradients_without_cp,)),
    ("hierarchical", (engine.levels_swapped, engine.chunks_unsorted, engine.ring_step_lost)),
    ("cp2", (
        engine.lse_merge_skipped, engine.second_half_merge_skipped, engine.diagonal_unmasked,
        engine.key_gradient_lost,
    )),
    ("learned-cp2", (megatron.positions_unsliced,)),
    ("tied-pp", (megatron.embeddings_not_summed,)),
    ("dynamic-pp", (megatron.norm_of_one_stage, megatron.stages_disagree)),
    ("dynamic-tp", (megatron.layernorms_not_summed, megatron.gather_rotated)),
    ("moe-cp2", (megatron.router_loss_local,)),
    ("mtp-cp2", (megatron.mtp_ignores_neighbours,)),
    ("dynamic-mtp", (megatron.mtp_ignores_boundaries,)),
)  # fmt: skip
FAULTS = tuple(_fault(function, training) for training, planted in PLANTED for function in planted)
