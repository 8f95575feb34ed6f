"""Which ranks of a launch are run: one for each kind of pipeline stage."""

from __future__ import annotations

from ringproof.launch.flags import Flags
from ringproof.launch.small.layout import Layout


def ranks_of_interest(layout: Layout, flags: Flags) -> dict[int, str]:
    """Return ranks, each with its role for people.

    They have TP rank 0, since only those read data, and CP and DP rank 0, whose memory is that of
    the others. In upstream's default order of ranks, the ranks of a stage follow each other;
    in the order ``tp-cp-ep-pp-dp`` a stage has the TP and CP ranks of one replica.
    """
    stages, order = layout.pipeline, flags.one("--order") or ""
    inner = layout.tensor * layout.context
    size = inner if flags.has("--use-tp-pp-dp-mapping") or order == "tp-cp-ep-pp-dp" else (
        layout.world // stages
    )  # fmt: skip
    if stages == 1:
        return {0: "the only pipeline stage"}
    chosen = {0: "first pipeline stage"}
    if stages > 2:
        chosen[stages // 2 * size] = f"pipeline stage {stages // 2 + 1} of {stages}"
    chosen[(stages - 1) * size] = "last pipeline stage"
    return chosen
