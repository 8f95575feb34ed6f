"""The planted defects: what each breaks, and the small program that shows it."""

from __future__ import annotations

from dataclasses import dataclass

ENGINE = "ringproof.rehearsal.faults.engine"
MEGATRON = "ringproof.rehearsal.faults.megatron"


@dataclass(frozen=True)
class Fault:
    """One planted defect.

    Attributes:
        name: In the table and in test ids.
        function: What plants it, ``module:function``.
        breaks: What is wrong then, in one sentence.
        training: Name of the program in `ringproof.rehearsal.faults.programs.TRAININGS`.
    """

    name: str
    function: str
    breaks: str
    training: str


def _fault(module: str, function: str, training: str, breaks: str) -> Fault:
    return Fault(function.replace("_", "-"), f"{module}:{function}", breaks, training)


FAULTS = (
    _fault(ENGINE, "group_kept", "dynamic", "Attention keeps the first CP group that it is given."),
    _fault(MEGATRON, "rope_group_static", "dynamic", "RoPE keeps the static CP group."),
    _fault(MEGATRON, "groups_halved", "dynamic", "A CP size is half of the ranks that share it."),
    _fault(MEGATRON, "evaluation_keeps_group", "dynamic",
           "Evaluation attends in the CP group of the last training microbatch."),
    _fault(MEGATRON, "stale_boundaries", "dynamic",
           "Boundaries of packed sequences are those of the microbatch before."),
    _fault(ENGINE, "stale_lengths", "dynamic",
           "Attention uses the lengths of the call before, where their number fits."),
    _fault(MEGATRON, "slices_contiguous", "dynamic", "Tokens are sliced in one block per rank."),
    _fault(MEGATRON, "labels_of_next_rank", "dynamic", "Labels are sliced for the next rank."),
    _fault(MEGATRON, "padding_counted", "dynamic", "Padding counts as tokens of the loss."),
    _fault(MEGATRON, "sample_given_twice", "dynamic", "Every second sample is the one before it."),
    _fault(MEGATRON, "microbatch_dropped", "dynamic", "The last microbatch is not computed."),
    _fault(MEGATRON, "tokens_counted_locally", "dynamic",
           "Gradients are divided by the tokens of one rank."),
    _fault(MEGATRON, "loss_scaled_by_microbatches", "dynamic",
           "Per-token losses are divided by the number of microbatches, too."),
    _fault(MEGATRON, "schedule_differs", "dynamic",
           "One rank takes the microbatches in another order."),
    _fault(MEGATRON, "gradients_without_cp", "cp2-dp2", "Gradients are summed over DP without CP."),
    _fault(ENGINE, "levels_swapped", "hierarchical", "The levels of a2a+p2p are swapped."),
    _fault(ENGINE, "chunks_unsorted", "hierarchical",
           "Chunks stay in the order of ranks after the all-to-all."),
    _fault(ENGINE, "ring_step_lost", "hierarchical", "Every second exchange of a ring is lost."),
    _fault(ENGINE, "lse_merge_skipped", "cp2", "The LSE of later ring steps is not merged."),
    _fault(ENGINE, "second_half_merge_skipped", "cp2",
           "Steps for the second half of queries do not reach the output."),
    _fault(ENGINE, "diagonal_unmasked", "cp2", "A rank's own keys are attended without mask."),
    _fault(ENGINE, "key_gradient_lost", "cp2",
           "Gradients of keys and values of one ring step are zero."),
    _fault(MEGATRON, "positions_unsliced", "learned-cp2",
           "Every CP rank takes the positions of the first tokens."),
    _fault(MEGATRON, "embeddings_not_summed", "tied-pp",
           "Gradients of tied embeddings are not summed over pipeline stages."),
    _fault(MEGATRON, "norm_of_one_stage", "dynamic-pp",
           "Gradients are clipped by the norm of one stage."),
    _fault(MEGATRON, "stages_disagree", "dynamic-pp",
           "The last stage takes the microbatches in reverse order."),
    _fault(MEGATRON, "layernorms_not_summed", "dynamic-tp",
           "Gradients of norms are not summed over TP."),
    _fault(MEGATRON, "gather_rotated", "dynamic-tp",
           "Sequence parallel parts are gathered in the wrong order."),
    _fault(MEGATRON, "router_loss_local", "moe-cp2",
           "The router's load is counted over the tokens of one rank."),
    _fault(MEGATRON, "mtp_ignores_neighbours", "mtp-cp2",
           "MTP does not fetch the first token of the next chunk."),
    _fault(MEGATRON, "mtp_ignores_boundaries", "dynamic-mtp",
           "MTP rolls labels across boundaries of packed sequences."),
)  # fmt: skip
