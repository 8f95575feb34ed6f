"""Rules for settings of context parallelism that upstream refuses before the first step.

Upstream's own checks say the same and more where they run, see `ringproof.doctor.checked`. What
they refuse that has nothing to do with CP, such as layers that stages do not divide, is theirs
to say.
"""

from __future__ import annotations

import difflib
import math
import re
import shlex
from types import MappingProxyType

from ringproof.doctor.facts import NEW, OLD, V1, V2, Facts
from ringproof.doctor.rule import DCP, GRAPHS, HCP, LAUNCH, Effect, RefusedBy, Rule
from ringproof.launch.options import PROGRAMS

NEAR = 0.75
"""Likeness from which a known option is proposed for an unknown one."""
CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
EVERY = ("without-dynamic-cp", *OLD, *NEW)
BANKS = ("bank-6479", "bank-5618")
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
ONE_WORD = MappingProxyType({"window_size": ",", "step_batch_size_schedule": " "})
"""Options whose value is one word with several parts, and what stands between the parts."""
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


def _split_names(facts: Facts) -> list[str]:
    return [name for name in ONE_WORD if len(facts.values.get(name, ())) > 1]


def _split(facts: Facts) -> object:
    written = facts.written
    given = ", ".join(f"{written(name)} {facts.text(name)}" for name in _split_names(facts))
    return given and f"{given}: the value is one word, and what follows it is left over"


def _joined(facts: Facts) -> dict[str, str | None]:
    values = facts.values
    return {name: shlex.quote(ONE_WORD[name].join(values[name])) for name in _split_names(facts)}


def _sizes(facts: Facts) -> object:
    name = "hierarchical_context_parallel_sizes"
    words = facts.values.get(name, ()) if facts.arguments else ()
    wrong = any(re.fullmatch(r"\s*[+-]?\d+\s*", word) is None for word in words)
    given = f"{facts.written(name)} {shlex.join(words)}"
    return wrong and f"{given}: the parser takes each size as a word of its own"


def _separate(facts: Facts) -> dict[str, str | None]:
    name = "hierarchical_context_parallel_sizes"
    return {name: " ".join(map(str, facts.numbers(name) or ()))}


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


def _connections(facts: Facts) -> object:
    environment, alone = facts.environment, facts.tp == facts.cp == 1
    if environment is None or facts.blackwell or alone or facts.sharded:
        return ""
    given = environment.get(CONNECTIONS, "")
    wrong = given != "1" and not facts.on("overlap_moe_expert_parallel_comm")
    return wrong and f"{CONNECTIONS} {f'is {given}' if given else 'is not set'}"


def _buffer(facts: Facts) -> object:
    ranks = facts.cp if facts.scheduler == "dp_balanced" else facts.domain
    if not facts.scheduler or facts.budget is None or ranks is None:
        return ""
    wrong = ranks * facts.budget < facts.length
    return wrong and f"{ranks} ranks x {facts.budget} tokens < seq_length {facts.length}"


# -- configuration --------------------------------------------------------------------------------


def _types_for_layers(facts: Facts) -> object:
    layers, count = facts.number("num_layers", 0), len(facts.types)
    wrong = facts.cp > 1 and layers and count not in (1, layers)
    return wrong and f"{count} types for {layers} layers"


def _local(facts: Facts) -> object:
    other = [kind for kind in facts.types if kind != "all_gather"]
    wrong = facts.text("transformer_impl") == "local" and facts.cp > 1 and other
    return wrong and "local attention with " + ", ".join(other)


def _dispatcher(facts: Facts) -> object:
    default = "allgather" if facts.megatron else "alltoall"
    kind = facts.text("moe_token_dispatcher_type", default)
    wrong = facts.packs and facts.experts > 0 and kind not in ("alltoall", "flex")
    return wrong and f"the token dispatcher is {kind}, with a packing scheduler"


def _partition(facts: Facts) -> object:
    parallel = facts.cp > 1 or facts.dynamic
    if facts.text("cp_partition_mode", "zigzag") != "contiguous" or not parallel:
        return ""
    if not facts.packs:
        return "contiguous rows without a packing scheduler"
    kind = facts.text("experimental_attention_variant")
    known = bool(kind) or facts.megatron  # else the model says it
    wrong = facts.cp > 1 and kind not in ("dsv4_hybrid", "gated_delta_net") and known
    return wrong and f"contiguous rows with {kind or 'softmax'} attention"


def _alignment(facts: Facts) -> object:
    if facts.budget is None:
        given = facts.alignment
        return given and f"packed sequences are padded to {given} and no budget is given"
    if facts.alignment in ("", "max"):
        return ""
    number = facts.number("pad_packed_seq_alignment", 0)
    wrong = not 0 < number <= facts.budget
    return wrong and f"the alignment {number} is not between 1 and the budget {facts.budget}"


def _static_tokens(facts: Facts) -> object:
    given = f"an alignment of {facts.alignment}" if facts.alignment else "no alignment"
    wrong = facts.graphs != "none" and facts.packs
    wrong = wrong and facts.alignment not in ("max", str(facts.budget))
    return wrong and f"graphs of packed sequences with {given}"


def _other_scheduler(facts: Facts) -> object:
    given = facts.text("sequence_packing_scheduler")
    named = given or ("dp_balanced" if facts.old_name and facts.scheduler else "")
    wrong = facts.dynamic and named not in ("", "default_dynamic_cp")
    return wrong and f"the scheduler is {named}"


def _delayed(facts: Facts) -> object:
    names = ("delay_wgrad_compute", "overlap_moe_expert_parallel_comm")
    found = [name for name in names if facts.on(name)]
    return (
        facts.dynamic
        and facts.graphs != "none"
        and found
        and (", ".join(found) + " with a bank of graphs")
    )


REFUSED: tuple[Rule, ...] = (
    Rule(DCP + "hybrid-alias", RefusedBy.PARSER, _unknown, lines=EVERY,
         message="unrecognized arguments",
         remedy="take the name that this line has, or leave the option out", repair=_renamed),
    Rule(LAUNCH + "value-of-two-words", RefusedBy.PARSER, _split,
         message="unrecognized arguments",
         remedy="write one word: --window-size 8192,0, or quotes around a schedule",
         repair=_joined),
    Rule(LAUNCH + "unknown-option", RefusedBy.PARSER, _foreign,
         message="unrecognized arguments",
         remedy="take the name that this line has, or leave the option out"),
    Rule(LAUNCH + "sizes-of-one-word", RefusedBy.PARSER, _sizes,
         message="argument --hierarchical-context-parallel-sizes: invalid int value",
         remedy="write --hierarchical-context-parallel-sizes 2 4, without quotes and commas",
         repair=_separate),
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
    Rule(LAUNCH + "device-connections", RefusedBy.ARGUMENTS, _connections,
         message="Using tensor model parallelism or context parallelism require setting",
         remedy="export CUDA_DEVICE_MAX_CONNECTIONS=1, or say --blackwell, which does not need it"),
    Rule(HCP + "per-layer-list", RefusedBy.CONFIG, _types_for_layers,
         message="Length of cp_comm_type",
         remedy="give one type, or one for each layer"),
    Rule(DCP + "pipeline-on-dev-only", RefusedBy.ARGUMENTS,
         lambda f: f.checked_as_dynamic and f.pp > 1 and f"PP is {f.pp}", lines=OLD,
         unchecked=Effect.FAILS,
         message="Hybrid context parallelism not supported with pipeline parallelism",
         remedy="take PP 1, or dev"),
    Rule(DCP + "no-cuda-graphs", RefusedBy.ARGUMENTS,
         lambda f: f.checked_as_dynamic and f.on("enable_cuda_graph")
         and "--enable-cuda-graph with Dynamic CP", lines=(*OLD, V1),
         message="'Namespace' object has no attribute 'enable_cuda_graph'",
         remedy="leave --enable-cuda-graph out", repair={"enable_cuda_graph": None}),
    Rule(DCP + "no-cuda-graphs", RefusedBy.CONFIG,
         lambda f: f.checked_as_dynamic and f.graphs != "none" and f"graphs of kind {f.graphs}",
         lines=(V2,),
         message="Dynamic context parallelism not supported with CUDA Graph",
         remedy="leave CUDA graphs out"),
    Rule(DCP + "no-fsdp", RefusedBy.ARGUMENTS,
         lambda f: f.checked_as_dynamic and f.on("use_megatron_fsdp") and "Megatron FSDP is on",
         lines=(*OLD, *NEW), unchecked=Effect.FAILS,
         message="context parallelism not supported with Megatron FSDP",
         remedy="take the distributed optimizer",
         repair={"use_megatron_fsdp": None, "use_distributed_optimizer": ""}),
    Rule(DCP + "single-loader", RefusedBy.ARGUMENTS,
         lambda f: f.checked_as_dynamic and f.text("dataloader_type", "single") != "single"
         and f"the data loader type is {f.text('dataloader_type')}", lines=(*OLD, *NEW),
         unchecked=Effect.FAILS,
         message="context parallelism only supported with single dataloader type",
         remedy="set dataloader_type to single", repair={"dataloader_type": "single"}),
    Rule(DCP + "per-token-loss", RefusedBy.ARGUMENTS,
         lambda f: f.checked_as_dynamic and not f.per_token_loss
         and "the loss is a mean per microbatch",
         lines=(*OLD, *NEW), unchecked=Effect.WRONG,
         message="context parallelism must be used with --calculate-per-token-loss",
         remedy="set calculate_per_token_loss", repair={"calculate_per_token_loss": ""}),
    Rule(DCP + "hybrid-alias", RefusedBy.CONFIG,
         lambda f: f.old_name and f.new_name and "both names are given", lines=NEW,
         message="Cannot set both hybrid_context_parallel and dynamic_context_parallel",
         remedy="keep dynamic_context_parallel", repair={"hybrid_context_parallel": None}),
    Rule(DCP + "packed-data-set", RefusedBy.CONFIG, _other_scheduler, lines=NEW,
         message="Dynamic context parallelism requires sequence_packing_scheduler",
         remedy="leave sequence_packing_scheduler out",
         repair={"sequence_packing_scheduler": None}),
    Rule(DCP + "odd-smallest-size", RefusedBy.CONFIG,
         lambda f: f.dynamic and f.smallest < 1 and f"the smallest size is {f.smallest}",
         lines=NEW,
         message="min_dynamic_context_parallel_size must be >= 1",
         remedy="take 1 or a larger power of two",
         repair={"min_dynamic_context_parallel_size": None}),
    Rule(DCP + "odd-smallest-size", RefusedBy.ARGUMENTS,
         lambda f: f.new_name and f.domain is not None and f.smallest > f.domain
         and f"the smallest size {f.smallest} is above DP x CP = {f.domain}", lines=NEW,
         unchecked=Effect.FAILS,
         message="min_dynamic_context_parallel_size (",
         remedy="take a power of two up to DP x CP",
         repair={"min_dynamic_context_parallel_size": None}),
    Rule(DCP + "packed-data-set", RefusedBy.ARGUMENTS,
         lambda f: f.on("use_varlen_dataset") and f.on("sft")
         and "two data sets are asked for", lines=WITH_SCHEDULER,
         message="--use-varlen-dataset and --sft are mutually exclusive",
         remedy="keep one of --sft and --use-varlen-dataset", repair={"use_varlen_dataset": None}),
    Rule(DCP + "fits-the-domain", RefusedBy.ARGUMENTS, _buffer, lines=WITH_SCHEDULER,
         unchecked=Effect.FAILS,
         message="Packed sequence buffer size (",
         remedy="raise max_seqlen_per_dp_cp_rank, or lower seq_length"),
    Rule(DCP + "alignment-needs-a-budget", RefusedBy.CONFIG, _alignment, lines=(V1,),
         message="pad-packed-seq-alignment",
         remedy="set max_seqlen_per_dp_cp_rank, and the alignment to max"),
    Rule(GRAPHS + "static-tokens", RefusedBy.CONFIG, _static_tokens, lines=(V1,),
         message="THD CUDA Graph requires --pad-packed-seq-alignment",
         remedy="set pad_packed_seq_alignment to max, and max_seqlen_per_dp_cp_rank",
         repair={"pad_packed_seq_alignment": "max"}),
    Rule(GRAPHS + "sequence-capacity", RefusedBy.CONFIG,
         lambda f: f.graphs != "none" and f.packs and not f.given("thd_max_packed_sequences")
         and not f.at("bank-5618") and "no number of packed sequences", lines=(V1,),
         message="THD CUDA Graph requires --thd-max-packed-sequences",
         remedy="set thd_max_packed_sequences to the largest number in a microbatch, plus one",
         repair={"thd_max_packed_sequences": "32"}),
    Rule(DCP + "moe-dispatcher", RefusedBy.CONFIG, _dispatcher, lines=(V1,),
         message="sequence_packing only supports moe_token_dispatcher_type",
         remedy="set moe_token_dispatcher_type to alltoall or flex",
         repair={"moe_token_dispatcher_type": "alltoall"}),
    Rule(HCP + "transformer-engine-only", RefusedBy.CONFIG, _local, lines=(V1,),
         message="fallback_to_eager_attn only supports all_gather",
         remedy="set transformer_impl to transformer_engine",
         repair={"transformer_impl": "transformer_engine"}),
    Rule(DCP + "dsv4-partition", RefusedBy.CONFIG, _partition, lines=(V1,),
         message="cp_partition_mode='contiguous'",
         remedy="set cp_partition_mode to zigzag", repair={"cp_partition_mode": None}),
    Rule(GRAPHS + "static-tokens", RefusedBy.CONFIG,
         lambda f: f.text("thd_tail_padding_policy") == "extend_last" and f.cp > 1 and f.alignment
         and not f.packs and "extend_last without a packing scheduler", lines=(V1,),
         message="thd_tail_padding_policy='extend_last'",
         remedy="set thd_tail_padding_policy to append_dummy_seq",
         repair={"thd_tail_padding_policy": None}),
    Rule(GRAPHS + "layer-graphs-only", RefusedBy.CONFIG,
         lambda f: f.dynamic and f.graphs in ("local", "full_iteration")
         and f"graphs of kind {f.graphs}", lines=BANKS,
         message="Dynamic CP supports only layer-wise TE CUDA graphs.",
         remedy="set cuda_graph_impl to transformer_engine",
         repair={"cuda_graph_impl": "transformer_engine", "enable_cuda_graph": None}),
    Rule(GRAPHS + "dynamic-slots", RefusedBy.CONFIG,
         lambda f: f.dynamic and f.graphs == "transformer_engine"
         and not f.on("cuda_graph_dynamic_microbatches")
         and "graphs without dynamic microbatch slots", lines=BANKS,
         message="Dynamic CP CUDA graphs require dynamic microbatch slots.",
         remedy="set cuda_graph_dynamic_microbatches",
         repair={"cuda_graph_dynamic_microbatches": ""}),
    Rule(GRAPHS + "dynamic-slots", RefusedBy.CONFIG,
         lambda f: f.on("cuda_graph_dynamic_microbatches")
         and f.graphs not in ("none", "transformer_engine")
         and f"dynamic microbatch slots with graphs of kind {f.graphs}", lines=(V1,),
         message="cuda_graph_dynamic_microbatches is only supported with",
         remedy="set cuda_graph_impl to transformer_engine, or leave the slots out",
         repair={"cuda_graph_dynamic_microbatches": None}),
    Rule(GRAPHS + "no-delayed-wgrad", RefusedBy.CONFIG, _delayed, lines=BANKS,
         message="Dynamic CP graphs do not support delayed wgrad or EP overlap.",
         remedy="leave delay_wgrad_compute and overlap_moe_expert_parallel_comm out",
         repair={"delay_wgrad_compute": None, "overlap_moe_expert_parallel_comm": None}),
    Rule(GRAPHS + "no-batch-size-schedule", RefusedBy.ARGUMENTS,
         lambda f: f.dynamic and f.graphs != "none" and f.given("step_batch_size_schedule")
         and "a schedule of batch sizes with a bank of graphs", lines=("bank-6479",),
         message="Dynamic CP CUDA graphs do not support step_batch_size_schedule.",
         remedy="leave step_batch_size_schedule out", repair={"step_batch_size_schedule": None}),
)  # fmt: skip
