"""Rules for settings of context parallelism that upstream refuses before the first step.

Upstream's own checks say the same and more where they run, see `ringproof.doctor.checked`. A rule
is here only where their message is not enough: they raise a bare assertion, a program that uses the
library does not pass them, or the remedy is another line or another name.
"""

from __future__ import annotations

import difflib
import math
from types import MappingProxyType

from ringproof.doctor.facts import NEW, OLD, V1, V2, Facts
from ringproof.doctor.rule import DCP, HCP, LAUNCH, Effect, RefusedBy, Rule
from ringproof.launch.options import PROGRAMS

NEAR = 0.75
"""Likeness from which a known option is proposed for an unknown one."""
EVERY = ("without-dynamic-cp", *OLD, *NEW)
WITH_SCHEDULER = ("main-packing", *NEW)
SINCE = MappingProxyType(
    {
        "dynamic_context_parallel": NEW,
        "hybrid_context_parallel": (*OLD, *NEW),
        "min_dynamic_context_parallel_size": NEW,
        "max_seqlen_per_dp_cp_rank": (*OLD, *NEW),
        "sequence_packing_scheduler": WITH_SCHEDULER,
        "use_varlen_dataset": WITH_SCHEDULER,
        "pad_packed_seq_alignment": (V1,),
        "thd_max_packed_sequences": (V1,),
        "thd_tail_padding_policy": (V1,),
        "cuda_graph_dynamic_microbatches": (V1,),
        "step_batch_size_schedule": ("hybrid-broken", *WITH_SCHEDULER),
        "cp_partition_mode": (V1,),
    }
)
"""Lines on which Megatron-LM's parser knows an option."""
LATER = MappingProxyType({"cp_partition_mode": "bank-5618", "thd_tail_padding_policy": "bank-5618"})
"""A part of a line, branched off before it had the option."""


# -- the parser -----------------------------------------------------------------------------------


def _unknown_names(facts: Facts) -> list[str]:
    given = [name for name in SINCE if name in facts.values]
    return [
        name for name in given
        if not facts.at(*SINCE[name]) or facts.at(LATER.get(name, "none"))
    ]  # fmt: skip


def _unknown(facts: Facts) -> object:
    names = ", ".join(map(facts.written, _unknown_names(facts)))
    return names and f"{names}: this line has no such option"


def _foreign(facts: Facts) -> object:
    """Options that the checkout's parser does not have, and that the table above does not judge."""
    found = []
    if not facts.options or facts.script.rpartition("/")[2] not in PROGRAMS:
        return ""
    for key, name in facts.names.items():
        if key not in SINCE and name not in facts.options:
            near = difflib.get_close_matches(name, facts.options, 1, NEAR)
            found.append(f"{name} (perhaps {near[0]})" if near else name)
    return found and f"{', '.join(found)}: upstream's parser has no such option here"


def _renamed(facts: Facts) -> dict[str, str | None]:
    changes: dict[str, str | None] = dict.fromkeys(_unknown_names(facts))
    if "dynamic_context_parallel" in changes and facts.at(*OLD):
        changes["hybrid_context_parallel"] = ""
    if "hybrid_context_parallel" in changes and facts.at(*NEW):
        changes["dynamic_context_parallel"] = ""
    return changes


# -- arguments ------------------------------------------------------------------------------------


def _world(facts: Facts) -> object:
    ranks, size = facts.ranks, f"TP {facts.tp} x PP {facts.pp} x CP {facts.cp}"
    wrong = ranks is not None and ranks % facts.model_size
    return wrong and f"{ranks} ranks are not divisible by {size}"


def _product(facts: Facts) -> object:
    levels, product = facts.levels, math.prod(facts.levels or ())
    wrong = levels and product != facts.cp
    return (
        wrong and f"the sizes {list(levels or ())} have the product {product}, and CP is {facts.cp}"
    )


def _two_levels(facts: Facts) -> dict[str, str | None]:
    """Two levels with the first as large as the heads allow."""
    heads = math.gcd(facts.heads // facts.tp or 1, facts.key_value_heads // facts.tp or 1)
    first = math.gcd(heads, facts.cp)
    first = first if first < facts.cp else max(facts.cp // 2, 1)
    if first < 2 or facts.cp % first or facts.cp // first < 2:
        return {"cp_comm_type": "p2p", "hierarchical_context_parallel_sizes": None}
    return {"hierarchical_context_parallel_sizes": f"{first} {facts.cp // first}"}


def _buffer(facts: Facts) -> object:
    ranks = facts.cp if facts.scheduler == "dp_balanced" else facts.domain
    if not facts.scheduler or facts.budget is None or ranks is None:
        return ""
    wrong = ranks * facts.budget < facts.length
    return wrong and f"{ranks} ranks x {facts.budget} tokens < seq_length {facts.length}"


REFUSED: tuple[Rule, ...] = (
    Rule(DCP + "hybrid-alias", RefusedBy.PARSER, _unknown, lines=EVERY,
         message="unrecognized arguments: --",
         remedy="take the name that this line has, or leave the option out", repair=_renamed),
    Rule(LAUNCH + "unknown-option", RefusedBy.PARSER, _foreign,
         message="unrecognized arguments: --",
         remedy="take the name that this line has, or leave the option out"),
    Rule(LAUNCH + "world-size", RefusedBy.ARGUMENTS, _world, unchecked=Effect.FAILS,
         message="world size (",
         remedy="make TP x PP x CP divide the number of ranks"),
    Rule(HCP + "product", RefusedBy.ARGUMENTS, _product, unchecked=Effect.FAILS,
         checked_on=("bridge-checked",),
         remedy="give two sizes whose product is context_parallel_size", repair=_two_levels),
    Rule(HCP + "sizes-required", RefusedBy.ARGUMENTS,
         lambda f: f.hierarchical and f.levels is None and "a2a+p2p without sizes",
         unchecked=Effect.WRONG,
         checked_on=("bridge-checked",),
         message="--hierarchical-context-parallel-sizes must be set",
         remedy="give hierarchical_context_parallel_sizes, the sizes of all-to-all and ring",
         repair=_two_levels),
    Rule(HCP + "sequence-divisible", RefusedBy.ARGUMENTS,
         lambda f: f.cp > 1 and f.length % (2 * f.cp)
         and f"seq_length {f.length} is no multiple of 2 x CP = {2 * f.cp}",
         unchecked=Effect.FAILS,
         message="seq-length should be a multiple of 2 * context-parallel-size",
         remedy="make seq_length a multiple of 2 x CP"),
    Rule(DCP + "pipeline-on-dev-only", RefusedBy.ARGUMENTS,
         lambda f: f.checked_as_dynamic and f.pp > 1 and f"PP is {f.pp}", lines=OLD,
         unchecked=Effect.FAILS,
         message="Hybrid context parallelism not supported with pipeline parallelism",
         remedy="take PP 1, or dev"),
    Rule(DCP + "no-cuda-graphs", RefusedBy.CONFIG,
         lambda f: f.checked_as_dynamic and f.graphs != "none" and f"graphs of kind {f.graphs}",
         lines=(V2,),
         message="Dynamic context parallelism not supported with CUDA Graph",
         remedy="leave CUDA graphs out"),
    Rule(DCP + "per-token-loss", RefusedBy.ARGUMENTS,
         lambda f: f.checked_as_dynamic and not f.per_token_loss
         and "the loss is a mean per microbatch",
         lines=(*OLD, *NEW), unchecked=Effect.WRONG,
         message="context parallelism must be used with --calculate-per-token-loss",
         remedy="set calculate_per_token_loss", repair={"calculate_per_token_loss": ""}),
    Rule(DCP + "fits-the-domain", RefusedBy.ARGUMENTS, _buffer, lines=WITH_SCHEDULER,
         unchecked=Effect.FAILS,
         message="Packed sequence buffer size (",
         remedy="raise max_seqlen_per_dp_cp_rank, or lower seq_length"),
)  # fmt: skip
