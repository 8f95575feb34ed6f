"""Settings that upstream refuses before the first step."""

from __future__ import annotations

import difflib
import math
import re
import shlex
from collections.abc import Callable
from types import MappingProxyType

from ringproof.doctor.facts import NEW, OLD, V1, V2, Facts
from ringproof.doctor.rules.rule import DCP, GRAPHS, HCP, LAUNCH, By, Effect, Rule, when
from ringproof.rehearsal.launch.options import PROGRAMS

NEAR = 0.75
"""Likeness from which a known option is proposed for an unknown one."""
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
    given = [name for name in SINCE if name in facts.settings.values]
    return [
        name for name in given
        if not facts.at(*SINCE[name]) or facts.at(LATER.get(name, "none"))
    ]  # fmt: skip


def _unknown(facts: Facts) -> str:
    names = ", ".join(facts.settings.written(name) for name in _unknown_names(facts))
    return f"{names}: this line has no such option" if names else ""


def _foreign_names(facts: Facts) -> list[str]:
    """Options that the checkout's parser does not have, and that the table above does not judge."""
    settings = facts.settings
    if not facts.options or settings.script.rpartition("/")[2] not in PROGRAMS:
        return []
    return [name for key, name in settings.names.items()
            if key not in SINCE and name not in facts.options]  # fmt: skip


def _foreign(facts: Facts) -> str:
    found = []
    for name in _foreign_names(facts):
        near = difflib.get_close_matches(name, facts.options, 1, NEAR)
        found.append(f"{name} (perhaps {near[0]})" if near else name)
    return f"{', '.join(found)}: the parser of this checkout has no such option" if found else ""


def _renamed(facts: Facts) -> dict[str, str | None]:
    changes: dict[str, str | None] = dict.fromkeys(_unknown_names(facts))
    if "dynamic_context_parallel" in changes and facts.at(*OLD):
        changes["hybrid_context_parallel"] = ""
    if "hybrid_context_parallel" in changes and facts.at(*NEW):
        changes["dynamic_context_parallel"] = ""
    return changes


def _split_names(facts: Facts) -> list[str]:
    return [name for name in ONE_WORD if len(facts.settings.values.get(name, ())) > 1]


def _split(facts: Facts) -> str:
    given = [f"{facts.settings.written(name)} {facts.settings.text(name)}"
             for name in _split_names(facts)]  # fmt: skip
    return (
        f"{', '.join(given)}: the value is one word, and what follows it is left over"
        if given
        else ""
    )


def _joined(facts: Facts) -> dict[str, str | None]:
    values = facts.settings.values
    return {name: shlex.quote(ONE_WORD[name].join(values[name])) for name in _split_names(facts)}


def _sizes(facts: Facts) -> str:
    name = "hierarchical_context_parallel_sizes"
    words = facts.settings.values.get(name, ()) if facts.settings.arguments else ()
    wrong = [word for word in words if re.fullmatch(r"\s*[+-]?\d+\s*", word) is None]
    return when(wrong, f"{facts.settings.written(name)} {shlex.join(words)}: the parser takes "
               "each size as a word of its own")  # fmt: skip


def _separate(facts: Facts) -> dict[str, str | None]:
    name = "hierarchical_context_parallel_sizes"
    return {name: " ".join(map(str, facts.settings.numbers(name) or ()))}


# -- arguments ------------------------------------------------------------------------------------


def _world(facts: Facts) -> str:
    ranks = facts.settings.ranks
    if ranks is None or ranks % facts.model_size == 0:
        return ""
    return f"{ranks} ranks are not divisible by TP {facts.tp} x PP {facts.pp} x CP {facts.cp}"


def _product(facts: Facts) -> str:
    levels = facts.levels
    if not levels or math.prod(levels) == facts.cp:
        return ""
    return f"the sizes {list(levels)} have the product {math.prod(levels)}, and CP is {facts.cp}"


def _two_levels(facts: Facts) -> dict[str, str | None]:
    """Two levels with the first as large as the heads allow."""
    heads = math.gcd(facts.heads // facts.tp or 1, facts.key_value_heads // facts.tp or 1)
    first = math.gcd(heads, facts.cp)
    first = first if first < facts.cp else max(facts.cp // 2, 1)
    if first < 2 or facts.cp % first or facts.cp // first < 2:
        return {"cp_comm_type": "p2p", "hierarchical_context_parallel_sizes": None}
    return {"hierarchical_context_parallel_sizes": f"{first} {facts.cp // first}"}


def _dynamic(problem: Callable[[Facts], str]) -> Callable[[Facts], str]:
    return lambda facts: problem(facts) if facts.checked_as_dynamic else ""


def _loader(facts: Facts) -> str:
    given = facts.settings.text("dataloader_type", "single")
    return when(given != "single", f"the data loader type is {given}")


def _connections(facts: Facts) -> str:
    environment, settings = facts.settings.environment, facts.settings
    sharded = settings.on("use_megatron_fsdp") or settings.on("use_torch_fsdp2")
    if environment is None or settings.blackwell or (facts.tp == facts.cp == 1) or sharded:
        return ""
    given = environment.get("CUDA_DEVICE_MAX_CONNECTIONS", "")
    overlap = settings.on("overlap_moe_expert_parallel_comm")
    what = f"is {given}" if given else "is not set"
    return when(given != "1" and not overlap, f"CUDA_DEVICE_MAX_CONNECTIONS {what}")


def _sharded_connections(facts: Facts) -> str:
    environment = facts.settings.environment or {}
    one = environment.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1"
    on = facts.settings.on("use_megatron_fsdp") or facts.settings.on("use_torch_fsdp2")
    return when(one and on, "CUDA_DEVICE_MAX_CONNECTIONS is 1 with FSDP")


def _other_checkpoints(facts: Facts) -> str:
    kind = facts.settings.text("ckpt_format", "torch_dist")
    wrong = facts.settings.on("use_megatron_fsdp") and kind != "fsdp_dtensor"
    return when(wrong, f"checkpoints of format {kind} with FSDP")


def _sharded_checkpoints(facts: Facts) -> str:
    sharded = facts.settings.text("ckpt_format") == "fsdp_dtensor"
    wrong = sharded and not facts.settings.on("use_megatron_fsdp")
    return when(wrong, "checkpoints of format fsdp_dtensor without FSDP")


def _buffer(facts: Facts) -> str:
    if not facts.scheduler or facts.budget is None:
        return ""
    ranks = facts.cp if facts.scheduler == "dp_balanced" else facts.domain
    if ranks is None or ranks * facts.budget >= facts.length:
        return ""
    return f"{ranks} ranks x {facts.budget} tokens < seq_length {facts.length}"


def _evaluation_batch(facts: Facts) -> str:
    if facts.options and "--eval-global-batch-size" not in facts.options:
        return ""  # 0.17 is on a line that has this check, and does not have it itself
    settings, micro = facts.settings, facts.settings.number("micro_batch_size", 1)
    micro = settings.number("eval_micro_batch_size", micro)
    batch = settings.number("eval_global_batch_size", settings.number("global_batch_size", 0))
    if facts.dp is None or micro < 1 or batch % (micro * facts.dp) == 0:
        return ""
    return f"the evaluation batch {batch} is not divisible by {micro} x DP {facts.dp}"


def _stages(facts: Facts) -> str:
    layers = facts.settings.number("num_layers", 0)
    names = (
        "decoder_first_pipeline_num_layers",
        "decoder_last_pipeline_num_layers",
        "pipeline_model_parallel_layout",
        "account_for_embedding_in_pipeline_split",
        "account_for_loss_in_pipeline_split",
        "hybrid_layer_pattern",
    )
    uneven = any(name in facts.settings.values for name in names)
    if facts.pp == 1 or layers % facts.pp == 0 or uneven:
        return ""
    return f"{layers} layers are not divisible by {facts.pp} stages"


# -- configuration --------------------------------------------------------------------------------


def _types_for_layers(facts: Facts) -> str:
    layers = facts.settings.number("num_layers", 0)
    if facts.cp == 1 or len(facts.types) in (1, layers) or not layers:
        return ""
    return f"{len(facts.types)} types for {layers} layers"


def _local(facts: Facts) -> str:
    local = facts.settings.text("transformer_impl") == "local"
    other = [kind for kind in facts.types if kind != "all_gather"]
    return when(local and facts.cp > 1 and bool(other), "local attention with " + ", ".join(other))


def _dispatcher(facts: Facts) -> str:
    default = "allgather" if facts.settings.program == "megatron" else "alltoall"
    kind = facts.settings.text("moe_token_dispatcher_type", default)
    experts = facts.settings.number("num_experts", 0) > 0
    packs = bool(facts.scheduler) or facts.dynamic
    wrong = packs and experts and kind not in ("alltoall", "flex")
    return when(wrong, f"the token dispatcher is {kind}, with a packing scheduler")


def _bias_of_experts(facts: Facts) -> str:
    settings = facts.settings
    bias = settings.program == "megatron" or settings.on("add_bias_linear")
    experts = settings.number("num_experts", 0) > 0 and not settings.on("disable_bias_linear")
    experts = experts and bias
    split = settings.number("expert_tensor_parallel_size", facts.tp)
    return when(experts and split > 1, f"experts with bias over {split} tensor-parallel ranks")


def _partition(facts: Facts) -> str:
    parallel = facts.cp > 1 or facts.dynamic
    if facts.settings.text("cp_partition_mode", "zigzag") != "contiguous" or not parallel:
        return ""
    if not facts.scheduler and not facts.dynamic:
        return "contiguous rows without a packing scheduler"
    kind = facts.settings.text("experimental_attention_variant")
    wrong = facts.cp > 1 and kind not in ("dsv4_hybrid", "gated_delta_net")
    wrong = wrong and (bool(kind) or facts.settings.program == "megatron")  # else the model says it
    return when(wrong, f"contiguous rows with {kind or 'softmax'} attention")


def _alignment(facts: Facts) -> str:
    if not facts.alignment:
        return ""
    if facts.budget is None:
        return f"packed sequences are padded to {facts.alignment} and no budget is given"
    if facts.alignment == "max":
        return ""
    number = facts.settings.number("pad_packed_seq_alignment", 0)
    wrong = number <= 0 or number > facts.budget
    return when(wrong, f"the alignment {number} is not between 1 and the budget {facts.budget}")


def _static_tokens(facts: Facts) -> str:
    if facts.graphs == "none" or not (facts.scheduler or facts.dynamic):
        return ""
    if facts.alignment in ("max", str(facts.budget)):
        return ""
    given = f"an alignment of {facts.alignment}" if facts.alignment else "no alignment"
    return f"graphs of packed sequences with {given}"


def _capacity(facts: Facts) -> str:
    on = facts.graphs != "none" and bool(facts.scheduler or facts.dynamic)
    given = facts.settings.given("thd_max_packed_sequences")
    return when(on and not given and not facts.at("bank-5618"), "no number of packed sequences")


def _tail(facts: Facts) -> str:
    extends = facts.settings.text("thd_tail_padding_policy") == "extend_last"
    parallel = facts.cp > 1 or facts.dynamic
    wrong = extends and parallel and bool(facts.alignment)
    wrong = wrong and not facts.scheduler and not facts.dynamic
    return when(wrong, "extend_last without a packing scheduler")


def _other_scheduler(facts: Facts) -> str:
    given = facts.settings.text("sequence_packing_scheduler")
    named = given or ("dp_balanced" if facts.old_name and facts.scheduler else "")
    wrong = facts.dynamic and named not in ("", "default_dynamic_cp")
    return when(wrong, f"the scheduler is {named}")


def _groups(facts: Facts) -> str:
    groups = facts.key_value_heads
    if not groups or facts.settings.on("multi_latent_attention"):
        return ""
    wrong = groups % facts.tp and facts.tp % groups
    return when(wrong, f"{groups} KV groups are no multiple or divisor of TP {facts.tp}")


def _two_graph_options(facts: Facts) -> str:
    old = facts.settings.on("enable_cuda_graph") or facts.settings.on("external_cuda_graph")
    both = old and facts.settings.text("cuda_graph_impl", "none") != "none"
    return when(both, "an old and a new option for CUDA graphs")


def _slots_alone(facts: Facts) -> str:
    slots = facts.settings.on("cuda_graph_dynamic_microbatches")
    wrong = slots and facts.graphs not in ("none", "transformer_engine")
    return when(wrong, f"dynamic microbatch slots with graphs of kind {facts.graphs}")


def _delayed(facts: Facts) -> str:
    on = facts.dynamic and facts.graphs != "none"
    names = ("delay_wgrad_compute", "overlap_moe_expert_parallel_comm")
    found = [name for name in names if facts.settings.on(name)]
    return when(on and bool(found), ", ".join(found) + " with a bank of graphs")


REFUSED: tuple[Rule, ...] = (
    Rule(DCP + "hybrid-alias", By.PARSER, _unknown, lines=EVERY,
         message="unrecognized arguments",
         remedy="take the name that this line has, or leave the option out", repair=_renamed),
    Rule(LAUNCH + "value-of-two-words", By.PARSER, _split,
         message="unrecognized arguments",
         remedy="write one word: --window-size 8192,0, or quotes around a schedule",
         repair=_joined),
    Rule(LAUNCH + "unknown-option", By.PARSER, _foreign,
         message="unrecognized arguments",
         remedy="take the name that this checkout has, or leave the option out"),
    Rule(LAUNCH + "sizes-of-one-word", By.PARSER, _sizes,
         message="argument --hierarchical-context-parallel-sizes: invalid int value",
         remedy="write --hierarchical-context-parallel-sizes 2 4, without quotes and commas",
         repair=_separate),
    Rule(LAUNCH + "world-size", By.ARGUMENTS, _world, unchecked=Effect.FAILS,
         message="world size (",
         remedy="make TP x PP x CP divide the number of ranks"),
    Rule(HCP + "product", By.ARGUMENTS, _product, unchecked=Effect.FAILS,
         checked_on=("bridge-checked",),
         remedy="give two sizes whose product is context_parallel_size", repair=_two_levels),
    Rule(HCP + "sizes-required", By.ARGUMENTS,
         lambda f: when(f.hierarchical and f.levels is None, "a2a+p2p without sizes"),
         unchecked=Effect.WRONG,
         checked_on=("bridge-checked",),
         message="--hierarchical-context-parallel-sizes must be set",
         remedy="give hierarchical_context_parallel_sizes, the sizes of all-to-all and ring",
         repair=_two_levels),
    Rule(HCP + "sequence-divisible", By.ARGUMENTS,
         lambda f: when(f.cp > 1 and f.length % (2 * f.cp),
                        f"seq_length {f.length} is no multiple of 2 x CP = {2 * f.cp}"),
         unchecked=Effect.FAILS,
         message="seq-length should be a multiple of 2 * context-parallel-size",
         remedy="make seq_length a multiple of 2 x CP"),
    Rule(LAUNCH + "device-connections", By.ARGUMENTS, _connections,
         message="Using tensor model parallelism or context parallelism require setting",
         remedy="export CUDA_DEVICE_MAX_CONNECTIONS=1, or say --blackwell, which does not need it"),
    Rule(LAUNCH + "fsdp-connections", By.ARGUMENTS, _sharded_connections,
         message="requires CUDA_DEVICE_MAX_CONNECTIONS",
         remedy="unset CUDA_DEVICE_MAX_CONNECTIONS"),
    Rule(LAUNCH + "fsdp-checkpoints", By.ARGUMENTS, _other_checkpoints,
         message="fsdp_dtensor",
         remedy="set ckpt_format to fsdp_dtensor", repair={"ckpt_format": "fsdp_dtensor"}),
    Rule(LAUNCH + "fsdp-checkpoints", By.ARGUMENTS, _sharded_checkpoints,
         message="fsdp_dtensor",
         remedy="leave ckpt_format out", repair={"ckpt_format": None}),
    Rule(LAUNCH + "evaluation-batch", By.ARGUMENTS, _evaluation_batch,
         lines=("hybrid-broken", "main-packing", *NEW),
         message="eval_global_batch_size (",
         remedy="make the global batch divisible by micro_batch_size x DP"),
    Rule(LAUNCH + "two-batch-sizes", By.ARGUMENTS,
         lambda f: when(f.settings.given("step_batch_size_schedule")
                        and f.settings.given("global_batch_size"),
                        "a schedule of batch sizes and a global batch size"),
         lines=("hybrid-broken", *WITH_SCHEDULER),
         message="--step-batch-size-schedule",
         remedy="keep one of --step-batch-size-schedule and --global-batch-size",
         repair={"global_batch_size": None}),
    Rule(LAUNCH + "layers-of-stages", By.ARGUMENTS, _stages,
         message="Number of layers should be divisible by the pipeline-model-parallel size",
         remedy="make the number of layers a multiple of PP"),
    Rule(LAUNCH + "virtual-stages", By.ARGUMENTS,
         lambda f: when(f.virtual and f.pp == 1, "virtual stages with PP 1"),
         message="When interleaved schedule is used",
         remedy="raise PP, or leave virtual stages out"),
    Rule(LAUNCH + "heads-of-tp", By.CONFIG,
         lambda f: when(f.heads % f.tp, f"{f.heads} heads are not divisible by TP {f.tp}"),
         message="num_attention_heads (",
         remedy="make the number of heads a multiple of TP"),
    Rule(LAUNCH + "groups-of-tp", By.CONFIG, _groups,
         message="num_query_groups (",
         remedy="make num_query_groups a multiple or a divisor of TP"),
    Rule(LAUNCH + "grouped-latent-attention", By.ARGUMENTS,
         lambda f: when(f.settings.on("group_query_attention")
                        and f.settings.on("multi_latent_attention"),
                        "grouped-query attention with multi-latent attention"),
         message="Group query attention is mutually exclusive with multi latent attention",
         remedy="leave --group-query-attention out",
         repair={"group_query_attention": None, "num_query_groups": None}),
    Rule(HCP + "per-layer-list", By.CONFIG, _types_for_layers,
         message="Length of cp_comm_type",
         remedy="give one type, or one for each layer"),
    Rule(DCP + "pipeline-on-dev-only", By.ARGUMENTS,
         _dynamic(lambda f: when(f.pp > 1, f"PP is {f.pp}")), lines=OLD, unchecked=Effect.FAILS,
         message="Hybrid context parallelism not supported with pipeline parallelism",
         remedy="take PP 1, or dev"),
    Rule(DCP + "no-cuda-graphs", By.ARGUMENTS,
         lambda f: when(f.checked_as_dynamic and f.settings.on("enable_cuda_graph"),
                        "--enable-cuda-graph with Dynamic CP"), lines=(*OLD, V1),
         message="'Namespace' object has no attribute 'enable_cuda_graph'",
         remedy="leave --enable-cuda-graph out", repair={"enable_cuda_graph": None}),
    Rule(DCP + "no-cuda-graphs", By.CONFIG,
         _dynamic(lambda f: when(f.graphs != "none", f"graphs of kind {f.graphs}")), lines=(V2,),
         message="Dynamic context parallelism not supported with CUDA Graph",
         remedy="leave CUDA graphs out"),
    Rule(LAUNCH + "two-graph-options", By.ARGUMENTS, _two_graph_options,
         message="Do not use --enable-cuda-graph or --external-cuda-graph with --cuda-graph-impl",
         remedy="keep --cuda-graph-impl",
         repair={"enable_cuda_graph": None, "external_cuda_graph": None}),
    Rule(DCP + "no-fsdp", By.ARGUMENTS,
         _dynamic(lambda f: when(f.settings.on("use_megatron_fsdp"), "Megatron FSDP is on")),
         lines=(*OLD, *NEW), unchecked=Effect.FAILS,
         message="context parallelism not supported with Megatron FSDP",
         remedy="take the distributed optimizer",
         repair={"use_megatron_fsdp": None, "use_distributed_optimizer": ""}),
    Rule(DCP + "single-loader", By.ARGUMENTS, _dynamic(_loader), lines=(*OLD, *NEW),
         unchecked=Effect.FAILS,
         message="context parallelism only supported with single dataloader type",
         remedy="set dataloader_type to single", repair={"dataloader_type": "single"}),
    Rule(DCP + "per-token-loss", By.ARGUMENTS,
         _dynamic(lambda f: when(not f.per_token_loss, "the loss is a mean per microbatch")),
         lines=(*OLD, *NEW), unchecked=Effect.WRONG,
         message="context parallelism must be used with --calculate-per-token-loss",
         remedy="set calculate_per_token_loss", repair={"calculate_per_token_loss": ""}),
    Rule(DCP + "hybrid-alias", By.CONFIG,
         lambda f: when(f.old_name and f.new_name, "both names are given"), lines=NEW,
         message="Cannot set both hybrid_context_parallel and dynamic_context_parallel",
         remedy="keep dynamic_context_parallel", repair={"hybrid_context_parallel": None}),
    Rule(DCP + "packed-data-set", By.CONFIG, _other_scheduler, lines=NEW,
         message="Dynamic context parallelism requires sequence_packing_scheduler",
         remedy="leave sequence_packing_scheduler out",
         repair={"sequence_packing_scheduler": None}),
    Rule(DCP + "odd-smallest-size", By.CONFIG,
         lambda f: when(f.dynamic and f.smallest < 1, f"the smallest size is {f.smallest}"),
         lines=NEW,
         message="min_dynamic_context_parallel_size must be >= 1",
         remedy="take 1 or a larger power of two",
         repair={"min_dynamic_context_parallel_size": None}),
    Rule(DCP + "odd-smallest-size", By.ARGUMENTS,
         lambda f: when(f.new_name and f.domain is not None and f.smallest > f.domain,
                        f"the smallest size {f.smallest} is above DP x CP = {f.domain}"), lines=NEW,
         unchecked=Effect.FAILS,
         message="min_dynamic_context_parallel_size (",
         remedy="take a power of two up to DP x CP",
         repair={"min_dynamic_context_parallel_size": None}),
    Rule(DCP + "packed-data-set", By.ARGUMENTS,
         lambda f: when(f.settings.on("use_varlen_dataset") and f.settings.on("sft"),
                        "two data sets are asked for"), lines=WITH_SCHEDULER,
         message="--use-varlen-dataset and --sft are mutually exclusive",
         remedy="keep one of --sft and --use-varlen-dataset", repair={"use_varlen_dataset": None}),
    Rule(DCP + "fits-the-domain", By.ARGUMENTS, _buffer, lines=WITH_SCHEDULER,
         unchecked=Effect.FAILS,
         message="Packed sequence buffer size (",
         remedy="raise max_seqlen_per_dp_cp_rank, or lower seq_length"),
    Rule(DCP + "alignment-needs-a-budget", By.CONFIG, _alignment, lines=(V1,),
         message="pad-packed-seq-alignment",
         remedy="set max_seqlen_per_dp_cp_rank, and the alignment to max"),
    Rule(GRAPHS + "static-tokens", By.CONFIG, _static_tokens, lines=(V1,),
         message="THD CUDA Graph requires --pad-packed-seq-alignment",
         remedy="set pad_packed_seq_alignment to max, and max_seqlen_per_dp_cp_rank",
         repair={"pad_packed_seq_alignment": "max"}),
    Rule(GRAPHS + "sequence-capacity", By.CONFIG, _capacity, lines=(V1,),
         message="THD CUDA Graph requires --thd-max-packed-sequences",
         remedy="set thd_max_packed_sequences to the largest number in a microbatch, plus one",
         repair={"thd_max_packed_sequences": "32"}),
    Rule(DCP + "moe-dispatcher", By.CONFIG, _dispatcher, lines=(V1,),
         message="sequence_packing only supports moe_token_dispatcher_type",
         remedy="set moe_token_dispatcher_type to alltoall or flex",
         repair={"moe_token_dispatcher_type": "alltoall"}),
    Rule(LAUNCH + "bias-of-experts", By.CONFIG, _bias_of_experts,
         message="Bias in Moe is only supported when ETP==1",
         remedy="set --disable-bias-linear, or expert_tensor_parallel_size 1",
         repair={"expert_tensor_parallel_size": "1"}),
    Rule(HCP + "transformer-engine-only", By.CONFIG, _local, lines=(V1,),
         message="fallback_to_eager_attn only supports all_gather",
         remedy="set transformer_impl to transformer_engine",
         repair={"transformer_impl": "transformer_engine"}),
    Rule(DCP + "dsv4-partition", By.CONFIG, _partition, lines=(V1,),
         message="cp_partition_mode='contiguous'",
         remedy="set cp_partition_mode to zigzag", repair={"cp_partition_mode": None}),
    Rule(GRAPHS + "static-tokens", By.CONFIG, _tail, lines=(V1,),
         message="thd_tail_padding_policy='extend_last'",
         remedy="set thd_tail_padding_policy to append_dummy_seq",
         repair={"thd_tail_padding_policy": None}),
    Rule(GRAPHS + "layer-graphs-only", By.CONFIG,
         lambda f: when(f.dynamic and f.graphs in ("local", "full_iteration"),
                        f"graphs of kind {f.graphs}"), lines=BANKS,
         message="Dynamic CP supports only layer-wise TE CUDA graphs.",
         remedy="set cuda_graph_impl to transformer_engine",
         repair={"cuda_graph_impl": "transformer_engine", "enable_cuda_graph": None}),
    Rule(GRAPHS + "dynamic-slots", By.CONFIG,
         lambda f: when(f.dynamic and f.graphs == "transformer_engine"
                        and not f.settings.on("cuda_graph_dynamic_microbatches"),
                        "graphs without dynamic microbatch slots"), lines=BANKS,
         message="Dynamic CP CUDA graphs require dynamic microbatch slots.",
         remedy="set cuda_graph_dynamic_microbatches",
         repair={"cuda_graph_dynamic_microbatches": ""}),
    Rule(GRAPHS + "dynamic-slots", By.CONFIG, _slots_alone, lines=(V1,),
         message="cuda_graph_dynamic_microbatches is only supported with",
         remedy="set cuda_graph_impl to transformer_engine, or leave the slots out",
         repair={"cuda_graph_dynamic_microbatches": None}),
    Rule(GRAPHS + "no-delayed-wgrad", By.CONFIG, _delayed, lines=BANKS,
         message="Dynamic CP graphs do not support delayed wgrad or EP overlap.",
         remedy="leave delay_wgrad_compute and overlap_moe_expert_parallel_comm out",
         repair={"delay_wgrad_compute": None, "overlap_moe_expert_parallel_comm": None}),
    Rule(GRAPHS + "no-batch-size-schedule", By.ARGUMENTS,
         lambda f: when(f.dynamic and f.graphs != "none"
                        and f.settings.given("step_batch_size_schedule"),
                        "a schedule of batch sizes with a bank of graphs"), lines=("bank-6479",),
         message="Dynamic CP CUDA graphs do not support step_batch_size_schedule.",
         remedy="leave step_batch_size_schedule out", repair={"step_batch_size_schedule": None}),
)  # fmt: skip
