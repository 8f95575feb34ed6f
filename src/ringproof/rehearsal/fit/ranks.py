"""Which ranks of a launch are run: one for each kind of pipeline stage."""

from __future__ import annotations

from collections.abc import Collection

from ringproof.errors import InputError
from ringproof.launch.flags import Flags
from ringproof.launch.full.size import PACKED
from ringproof.launch.small.layout import Layout
from ringproof.launch.small.model import listed, stages
from ringproof.rehearsal.fit.gpus import GIB

BESIDE_BYTES = 256 << 20
"""Least memory of this machine for a rank of a batch; with 8 layers, 0.3 GB were seen."""
MOST = 8
"""Stages that are run where each may be different."""
CHUNKS = "--num-virtual-stages-per-pipeline-rank"
BY_STAGE = "--pipeline-model-parallel-layout"
UNEVEN = (
    BY_STAGE, "--decoder-first-pipeline-num-layers",
    "--decoder-last-pipeline-num-layers", "--hybrid-override-pattern", "--hybrid-layer-pattern",
    "--heterogeneous-layers-config-path",
)  # fmt: skip
"""Options by which stages have unlike layers."""
EXPERTS = "--moe-layer-freq"
PATTERNS = (EXPERTS, "--linear-attention-freq")
"""Options that give stages unlike layers unless they are 1."""
BY_LAYER = (*UNEVEN[1:], PATTERNS[1], "--no-rope-freq", "--window-attn-skip-freq")
BALANCED = "--moe-router-force-load-balancing"


def uneven(flags: Flags) -> bool:
    """Return whether middle stages may have unlike layers."""
    patterns = (flags.one(name) or "1" for name in PATTERNS)
    return any(flags.has(name) for name in UNEVEN) or any(text != "1" for text in patterns)


def _standing(layout: Layout, flags: Flags) -> list[int]:
    """Return for each pipeline stage the first one with the same layers, which stands for it.

    A later stage never holds more microbatches than an earlier one.
    """
    count, places = layout.pipeline, range(layout.pipeline)
    if not uneven(flags):
        return [0, *[min(count // 2, count - 2)] * (count - 2), count - 1][:count]
    parts, pattern = stages(flags.one(BY_STAGE) or ""), flags.one(EXPERTS) or "[]"
    if parts is None or len(parts) % count or "[" not in pattern or _by_layer(flags):
        return [*places]
    kinds = iter(listed(pattern, EXPERTS) or ())
    filled = [[(one, next(kinds, 1) if one == "t" else 0) for one in part] for part in parts]
    chunks = [filled[place::count] for place in places]
    return [*map(chunks.index, chunks)]


def _by_layer(flags: Flags) -> bool:
    """Return whether layers may differ by more than the layout and the pattern of experts."""
    return any(map(flags.has, BY_LAYER)) or len(flags.get("--cp-comm-type") or ()) > 1


def ranks_of_interest(layout: Layout, flags: Flags) -> dict[int, str]:
    """Return ranks, each with its role for people.

    They have TP rank 0, since only those read data, and CP and DP rank 0, whose memory is that of
    the others. Of stages with unlike layers each is run, at most `MOST` of them.
    """
    count, size = layout.pipeline, _ranks_of_a_stage(layout, flags)
    if count == 1:
        return {0: "the only pipeline stage"}
    chosen = sorted(set(_standing(layout, flags)))
    if len(chosen) > MOST:
        chosen = [chosen[place * (len(chosen) - 1) // (MOST - 1)] for place in range(MOST)]
    return {stage * size: _role(stage, count) for stage in chosen}


def of_the_stage(rank: int, layout: Layout, flags: Flags) -> tuple[int, ...]:
    """Return the DP and CP ranks of a pipeline stage that have the TP rank of ``rank``.

    Raises:
        InputError: The launch packs no sequences, so that all of them hold the same.
    """
    if not any(map(flags.has, PACKED)):
        sentence = "the launch packs no sequences, so that all its ranks hold the same"
        raise InputError("--whole-batch", f"{sentence}; leave it out")
    stages, size = layout.pipeline, _ranks_of_a_stage(layout, flags)
    stage = rank // size % stages
    alike = range(rank % layout.tensor, layout.world, layout.tensor)
    return tuple(one for one in alike if one // size % stages == stage)


def check_room(ranks: int, free: int) -> None:
    """Refuse a batch whose ranks ``free`` bytes cannot hold: all run at the same time.

    Raises:
        InputError: Less than `BESIDE_BYTES` are free for each.
    """
    if ranks * BESIDE_BYTES > free:
        sentence = (
            f"{ranks} ranks share a batch, a process of {BESIDE_BYTES / GIB:g} GiB or more each, "
            f"and {free / GIB:.1f} GiB are free; run it where more are, or leave the option out"
        )
        raise InputError("--whole-batch", sentence)


def chunks(layout: Layout, flags: Flags) -> int:
    """Return the virtual stages of each pipeline stage."""
    each = layout.pipeline * flags.integer("--num-layers-per-virtual-pipeline-stage", 0)
    hybrid = (flags.one("--hybrid-layer-pattern") or "").partition("/")[0].split("|")
    parts = stages(flags.one(BY_STAGE) or "") or []
    given = flags.integer(CHUNKS, 0) or (flags.integer("--num-layers", 0) // each if each else 0)
    return max(given or max(len(parts), len(hybrid)) // layout.pipeline, 1)


def bubble(layout: Layout, flags: Flags, microbatches: int) -> float:
    """Return the share of a step in which a stage waits, if all of them take equally long.

    With ``p`` stages of ``v`` chunks and ``m`` microbatches, it computes in ``v m`` of the
    ``v m + p - 1`` turns (https://arxiv.org/abs/2104.04473, section 2.2); 1F1B has ``v = 1``.
    """
    idle = layout.pipeline - 1
    return idle / (chunks(layout, flags) * microbatches + idle)


def unmeasured_stages(ranks: Collection[int], layout: Layout, flags: Flags) -> tuple[int, ...]:
    """Return the pipeline stages, counted from 1, of which no rank and no like stage was run."""
    count, size = layout.pipeline, _ranks_of_a_stage(layout, flags)
    standing = _standing(layout, flags)
    covered = {rank // size % count for rank in ranks}
    alike = {standing[stage] for stage in covered if not uneven(flags) or standing[stage] == stage}
    return tuple(
        stage + 1 for stage in range(count) if stage not in covered and standing[stage] not in alike
    )


def check_crowded(ranks: Collection[int], layout: Layout, flags: Flags) -> None:
    """Refuse ``--routing worst`` where it is not the worst of the ranks.

    Raises:
        InputError: The launch has no experts or routes at random, or a rank does not hold the
            first ones.
    """
    if not flags.has("--num-experts"):
        raise InputError("--routing", "the launch has no experts; leave the option out")
    if flags.has(BALANCED):
        sentence = f"{BALANCED} ignores what a router chooses; leave one of both out"
        raise InputError("--routing", sentence)
    for rank in ranks:
        if rank // layout.expert_tensor % layout.expert:
            sentence = f"rank {rank} does not hold the first experts, to which all tokens go"
            raise InputError("--routing", f"{sentence}; name a rank that does with --ranks")


def _role(stage: int, stages: int) -> str:
    ends = {0: "first pipeline stage", stages - 1: "last pipeline stage"}
    return ends.get(stage, f"pipeline stage {stage + 1} of {stages}")


def _ranks_of_a_stage(layout: Layout, flags: Flags) -> int:
    """Return how many ranks of one stage follow each other.

    In upstream's default order of ranks, these are all of a stage; in the order
    ``tp-cp-ep-pp-dp``, the TP and CP ranks of one replica.
    """
    inner, order = layout.tensor * layout.context, flags.one("--order") or ""
    if flags.has("--use-tp-pp-dp-mapping") or order == "tp-cp-ep-pp-dp":
        return inner
    return max(layout.world // layout.pipeline, 1)
