"""The program that a rehearsal is compared with: the same training without CP."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from itertools import product
from pathlib import PurePosixPath

from ringproof.launch.flags import Flags
from ringproof.launch.small.draft import Draft
from ringproof.launch.small.layout import DYNAMIC, Layout, layout
from ringproof.launch.small.shrink import SmallProgram

OFF = "Nothing: this is what the rehearsal is compared with."
CONTEXT = (
    *DYNAMIC,
    "--cp-comm-type",
    "--hierarchical-context-parallel-sizes",
    "--min-dynamic-context-parallel-size",
    "--cp-partition-mode",
)
VISION_SCRIPT = "pretrain_vlm.py"
SHARDING = (
    "Nothing: sequence parallelism computes the same. Where it pads without CP, this program gives "
    "the longest length as a tensor, which Transformer Engine 2.20 refuses."
)
DIVIDED = (
    "--sequence-parallel",
    "--tp-comm-overlap",
    "--pipeline-model-parallel-layout",
    "--num-layers-per-virtual-pipeline-stage",
    "--num-virtual-stages-per-pipeline-rank",
    "--microbatch-group-size-per-virtual-pipeline-stage",
    "--decoder-first-pipeline-num-layers",
    "--decoder-last-pipeline-num-layers",
)
"""Options that upstream takes with TP or PP only."""
VOCABULARY = "--make-vocab-size-divisible-by"
SCHEDULER = "--sequence-packing-scheduler"
BUDGET = "--max-seqlen-per-dp-cp-rank"


def reference(small: SmallProgram, options: Collection[str]) -> SmallProgram:
    """Return the same program with CP 1, or with Dynamic CP off.

    The data, the global batch, TP, PP and, for static CP, DP stay. EP shrinks where its groups no
    longer fit. A budget of packed tokens is multiplied by the ranks that shared it. Sequence
    parallelism of ``pretrain_vlm.py`` is off, because upstream cannot run it without CP.

    Raises:
        InputError: A size is not an integer.
    """
    draft = Draft(Flags(small.arguments), options)
    before = layout(draft.flags, small.ranks)
    shared = before.domain
    world = before.tensor * before.pipeline * (1 if before.dynamic else before.data)
    world = world if before.divides else small.ranks
    if draft.flags.has("--context-parallel-size"):
        draft.put("--context-parallel-size", 1, OFF)
    draft.drop(CONTEXT, OFF)
    if PurePosixPath(small.script).name == VISION_SCRIPT:
        draft.drop(("--sequence-parallel",), SHARDING)
    if before.dynamic:  # which chose its own scheduler; without it, packing needs the static one
        draft.put(SCHEDULER, "dp_balanced", OFF)
    budget = draft.number(BUDGET, 0)
    if budget and shared > 1:
        longest = draft.number("--seq-length", 0)
        # One rank holds what several shared, and at least the longest sequence.
        draft.put(BUDGET, max(budget * shared, longest), OFF)
        alignment = draft.flags.one("--pad-packed-seq-alignment")
        if alignment == str(budget):
            draft.put("--pad-packed-seq-alignment", draft.number(BUDGET, 0), OFF)
    _fit_experts(draft, replace(before, world=world, context=1, dynamic=False))
    return replace(
        small,
        arguments=draft.flags.words,
        ranks=world,
        changes=tuple(draft.changes),
    )


def undivided(small: SmallProgram, options: Collection[str]) -> SmallProgram:
    """Return a reference with TP 1 and PP 1, too, and with the same vocabulary.

    Raises:
        InputError: A size is not an integer.
    """
    draft = Draft(Flags(small.arguments), options)
    before = layout(draft.flags, small.ranks)
    for name in ("tensor-model", "pipeline-model", "expert-tensor"):
        if draft.flags.has(f"--{name}-parallel-size"):
            draft.put(f"--{name}-parallel-size", 1, OFF)
    draft.drop(DIVIDED, OFF)
    draft.put(VOCABULARY, draft.number(VOCABULARY, 128) * before.tensor, OFF)
    one = replace(before, world=before.data, tensor=1, pipeline=1, expert_tensor=1)
    _fit_experts(draft, one)
    return replace(small, arguments=draft.flags.words, ranks=one.world)


def _fit_experts(draft: Draft, after: Layout) -> None:
    """Shrink EP, and then the experts' TP, to what divides the ranks that are left."""
    if not draft.flags.has("--expert-model-parallel-size") and after.experts_fit:
        return
    for tensor, expert in product(_divisors(after.expert_tensor), _divisors(after.expert)):
        if not replace(after, expert=expert, expert_tensor=tensor).experts_fit:
            continue
        if expert != after.expert:
            draft.put("--expert-model-parallel-size", expert, OFF)
        if tensor != after.expert_tensor:
            draft.put("--expert-tensor-parallel-size", tensor, OFF)
        return


def _divisors(size: int) -> list[int]:
    return [divisor for divisor in range(size, 0, -1) if size % divisor == 0]
