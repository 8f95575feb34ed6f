"""Why cases differ, as far as it is known: what `page` prints below the table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Explanation:
    """The reason for which cases part from their reference or take another path.

    Attributes:
        cases: Their ids.
        kind: ``upstream`` (a defect or limit of it), ``expected`` or ``unknown``.
        text: What happens, and where.
    """

    cases: tuple[str, ...]
    kind: str
    text: str


EXPLANATIONS = (
    Explanation(
        ("static-p2p-pp2-vpp2",),
        "upstream",
        "Up to 0.17 the interleaved schedule releases an output tensor (programs set "
        "`deallocate_pipeline_outputs`) while its `isend` may still read it. The rehearsal keeps"
        " the memory, so losses agree, and reports the race. Without that memory losses are "
        "wrong by up to 24% or NaN on CPU. Upstream found the same as NaN gradient norms on "
        "GB200 with PP 16 and VPP 8, and waits from 0.18 on (pull request 4047).",
    ),
    Explanation(
        ("static-p2p-mtp", "static-p2p-mtp-per-token"),
        "upstream",
        "`process_mtp_loss` divides by the number of tokens of the local shard. The roll masks "
        "the last position, which only one rank of the CP group holds, so the ranks divide by "
        "different counts and the gradient of the MTP loss depends on the split. The language "
        "model's loss of step 1 agrees; its gradient does not.",
    ),
    Explanation(
        ("varlen-p2p-mtp", "dynamic-cp-mtp"),
        "upstream",
        "The same division. In packed samples the counts also depend on which sequences share a "
        "microbatch, so that two schedules of the same samples give different gradients.",
    ),
    Explanation(
        ("varlen-p2p-mamba", "dynamic-cp-mamba"),
        "upstream",
        "Mamba's state passes from one packed sequence into the next. `PackedSeqParams` makes "
        "`seq_idx`, by which the kernels keep sequences apart, only when it is given "
        "`total_tokens`, and `get_batch_on_this_rank_for_sequence_packing` does not give it. "
        "Nothing refuses this; the loss depends on which sequences share a pack, also on one rank. "
        "With `total_tokens` set to the last entry of `cu_seqlens_q_padded`, `dynamic-cp-mamba` "
        "agrees: losses of 3 steps to 1e-7, gradient norms in all digits.",
    ),
    Explanation(
        ("dynamic-cp-moe-aux-loss",),
        "expected",
        "The load balancing loss is a product of averages over the tokens of a microbatch. The "
        "scheduler puts other sequences together than the reference does, so the loss is another "
        "function of the same samples. With static CP, where microbatches are equal, it agrees.",
    ),
    Explanation(
        ("dynamic-cp-a2a",),
        "upstream",
        "With `--context-parallel-size 1`, which is the default, `--cp-comm-type` does not reach "
        "the groups that are set for each microbatch, and p2p runs. With "
        "`--context-parallel-size 2` (`dynamic-cp-a2a-of-cp2`) a2a runs.",
    ),
    Explanation(
        ("static-hcp-without-sizes",),
        "upstream",
        "The library of 0.16.1 accepts `a2a+p2p` without level sizes. Transformer Engine then gets "
        "no CP group, and each rank attends to its own tokens alone: nothing refuses it, the loss "
        "is off by 6e-4 and the gradient norm by 13%. Megatron's programs refuse the command line.",
    ),
    Explanation(
        ("hybrid-cp-tp2-sp",),
        "upstream",
        "On 0.17 the first tensor parallel rank is in its forward pass (a `reduce_scatter`) while "
        "the second one waits for a broadcast of the batch (`get_batch_on_this_tp_rank`).",
    ),
)


def explanation_of(case: str) -> Explanation | None:
    """Return the explanation of a case; ``None`` if there is none."""
    return next((one for one in EXPLANATIONS if case in one.cases), None)
