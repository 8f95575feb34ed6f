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
        ("static-p2p-mtp", "static-p2p-mtp-per-token"),
        "upstream",
        "`process_mtp_loss` divides by tokens that are counted on the local shard. The roll masks "
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
        ("dynamic-cp-mamba",),
        "upstream",
        "`MambaMixer` keeps the CP group with which it was built. Dynamic CP changes the group of "
        "attention for each microbatch and does not change Mamba's, so the convolution and the "
        "scan see a shard as if it were a whole sequence. No check refuses it.",
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
)


def explanation_of(case: str) -> Explanation | None:
    """Return the explanation of a case; ``None`` if there is none."""
    return next((one for one in EXPLANATIONS if case in one.cases), None)
