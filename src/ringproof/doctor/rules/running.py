"""Settings that upstream accepts and that end, or spoil, a run later."""

from __future__ import annotations

from pathlib import PurePath

from ringproof.doctor.facts import NEW, OLD, V1, Facts, is_power_of_two, power_below
from ringproof.doctor.rules.rule import DCP, GRAPHS, HCP, LAUNCH, Effect, Rule, when

TYPES = ("p2p", "a2a", "all_gather", "a2a+p2p")
LAYERS_ONLY = "only the layers see --hybrid-context-parallel"
NO_BACKEND = "No dot product attention backend is available"
SMALLEST = "min_dynamic_context_parallel_size"
LONG = 32_768
"""Tokens from which on a dense mask of a sample has a gigabyte."""


# -- hierarchical CP ------------------------------------------------------------------------------


def _count_of_levels(facts: Facts) -> str:
    count = len(facts.levels or ())
    return when(facts.hierarchical and count not in (0, 2), f"{count} levels")


def _level_of_one(facts: Facts) -> str:
    levels = facts.levels or ()
    found = facts.hierarchical and len(levels) == 2 and 1 in levels
    return when(found, f"the sizes {list(levels)} have a level of one rank")


def _unused(facts: Facts) -> str:
    named = ", ".join(dict.fromkeys(facts.types))
    found = facts.levels and not facts.hierarchical and facts.cp > 1
    return when(found, f"sizes are given and the type is {named}")


def _heads(facts: Facts) -> tuple[tuple[int, str], ...]:
    """Heads of a TP rank; none where they are not known or do not decide."""
    if not facts.heads or facts.settings.on("multi_latent_attention"):
        return ()
    heads, groups = (max(count // facts.tp, 1) for count in (facts.heads, facts.key_value_heads))
    return (heads, "query heads"), (groups, "KV heads")


def _odd_heads(facts: Facts) -> str:
    exchanges = facts.cp > 1 and not {"a2a", "a2a+p2p"}.isdisjoint(facts.types)
    wrong = [f"{count} {what}" for count, what in _heads(facts) if count % 2]
    return when(exchanges and wrong, f"{' and '.join(wrong)} per TP rank with an all-to-all")


def _heads_of(facts: Facts, size: int, level: str) -> str:
    wrong = [f"{count} {what}" for count, what in _heads(facts) if count % size]
    odd = any(count % 2 for count, _ in _heads(facts))
    found = size > 1 and wrong and not odd
    return when(found, f"{' and '.join(wrong)} per TP rank are not divisible by {level} {size}")


def _heads_of_level(facts: Facts) -> str:
    levels = facts.levels or ()
    if not facts.hierarchical or len(levels) != 2:
        return ""
    return _heads_of(facts, levels[0], "the first level")


def _misspelt(facts: Facts) -> str:
    other = [kind for kind in facts.types if kind not in TYPES]
    return when(other and facts.cp > 1, f"{', '.join(other)} is no communication type")


def _unsupported(facts: Facts, kind: str) -> str:
    """Features of attention that a communication type does not have."""
    if kind not in facts.types or (facts.cp == 1 and not _acts(facts)):
        return ""
    found = []
    if facts.settings.given("window_size") and kind in ("p2p", "a2a+p2p"):
        found.append("a sliding window")
    softmax = facts.settings.text("softmax_type", "vanilla")
    if softmax != "vanilla":
        found.append(f"softmax {softmax}")
    return when(found, f"{kind} with {' and '.join(found)}")


def _node(facts: Facts) -> str:
    levels, node = facts.levels or (), facts.settings.ranks_per_node
    if (
        not facts.hierarchical
        or len(levels) != 2
        or not node
        or (facts.settings.ranks or 0) <= node
    ):
        return ""
    inner = facts.tp * levels[0]
    return when(node % inner, f"TP {facts.tp} x first level {levels[0]} = {inner} does not divide "
                 f"the {node} ranks of a node")  # fmt: skip


# -- Dynamic CP -----------------------------------------------------------------------------------


def _acts(facts: Facts) -> bool:
    """Whether Dynamic CP is on in all of upstream, not in its layers alone."""
    return facts.checked_as_dynamic or (facts.dynamic and facts.settings.program != "megatron")


def _alias(facts: Facts) -> bool:
    return facts.old_name and not facts.new_name and facts.settings.program == "megatron"


def _unscheduled_alias(facts: Facts) -> object:
    return _alias(facts) and not facts.scheduler and facts.packed_data


def _rerun(facts: Facts) -> str:
    """The check that comes before the loop, unless it is off."""
    on = facts.settings.program == "megatron"
    on = on and facts.settings.text("rerun_mode", "validate_results") != "disabled"
    return when(facts.old_name and on, "the rerun state machine refuses the iterator of the loop")


def _odd_domain(facts: Facts) -> str:
    domain = facts.domain
    found = _acts(facts) and domain is not None and domain > 1 and domain % 2
    return when(found, f"DP x CP = {domain} is odd")


def _uneven_domain(facts: Facts) -> str:
    domain = facts.domain
    if not _acts(facts) or domain is None or domain % 2 or is_power_of_two(domain):
        return ""
    return f"DP x CP = {domain} is no power of two"


def _too_long(facts: Facts) -> str:
    if not facts.dynamic or facts.domain is None or not facts.budget:
        return ""
    ranks = power_below(facts.domain)
    room = f"{ranks} ranks x {facts.budget} tokens"
    return when(ranks * facts.budget < facts.length, f"{room} < seq_length {facts.length}")


def _drawn(facts: Facts) -> bool:
    """Whether samples of ``--sft`` are drawn by upstream and collated without a scheduler."""
    return _plain_conversations(facts) and facts.settings.on("mock_data")


def _several_samples(facts: Facts) -> str:
    given = facts.settings.number("micro_batch_size", 1)
    found = _plain_conversations(facts) and given != 1 and not _drawn(facts)
    return when(found, f"micro_batch_size is {given} with --sft")


def _several_drawn_samples(facts: Facts) -> str:
    given = facts.settings.number("micro_batch_size", 1)
    return when(_drawn(facts) and given != 1, f"micro_batch_size is {given} with --sft")


def _odd_smallest(facts: Facts) -> str:
    odd = facts.new_name and facts.smallest > 1 and not is_power_of_two(facts.smallest)
    fits = facts.domain is None or 2 * facts.smallest <= facts.domain
    return when(odd and fits, f"the smallest size is {facts.smallest}")


def _only_size(facts: Facts) -> str:
    """The smallest size leaves no other than the whole domain."""
    domain, smallest = facts.domain, facts.smallest
    odd = facts.new_name and not is_power_of_two(smallest)
    found = odd and domain is not None and domain // 2 < smallest <= domain
    return when(found, f"the smallest size {smallest} leaves {domain} ranks only")


# -- graphs ---------------------------------------------------------------------------------------


def _bank(facts: Facts) -> bool:
    return facts.dynamic and facts.graphs == "transformer_engine"


def _bank_domain(facts: Facts) -> str:
    domain = facts.domain
    odd = domain is not None and not is_power_of_two(domain)
    wrong = odd or not is_power_of_two(max(facts.smallest, 1))
    return when(_bank(facts) and wrong, f"sizes from {facts.smallest} to {domain}")


def _odd_budget(facts: Facts) -> str:
    if not _bank(facts) or facts.budget is None:
        return ""
    wrong = facts.budget % 2 or facts.budget % facts.split
    return when(wrong, f"a budget of {facts.budget} tokens with TP {facts.tp}")


def _one_sequence(facts: Facts) -> str:
    given = facts.settings.number("thd_max_packed_sequences", 2)
    return when(_bank(facts) and given < 2, f"room for {given} sequence, the dummy included")


def _released_engine(facts: Facts) -> str:
    engines = [line for line in facts.lines if line.startswith("engine")]
    found = _bank(facts) and engines and not facts.at("engine-slots")
    return when(found, "this Transformer Engine has no memory slots")


# -- launching ------------------------------------------------------------------------------------


def _evaluation_interval(facts: Facts) -> str:
    settings = facts.settings
    wrong = settings.program == "megatron" and not settings.given("eval_interval")
    wrong = wrong and settings.given("micro_batch_size")  # else it is a program of its own
    wrong = wrong and not settings.on("full_validation") and not settings.on("skip_train")
    wrong = wrong and not settings.given("train_samples") and settings.given("train_iters")
    return when(wrong, "--eval-interval is not set")


def _iterator(facts: Facts) -> str:
    external = facts.settings.text("dataloader_type") == "external"
    found = external and PurePath(facts.settings.script).name == "pretrain_gpt.py"
    return when(found, "pretrain_gpt.py yields data sets, and no loader of your own")


def _masked_conversations(facts: Facts) -> str:
    settings = facts.settings
    kept = "no_create_attention_mask_in_dataloader" not in settings.values
    drawn = facts.at(V1) and settings.on("mock_data")
    found = settings.program == "megatron" and settings.on("sft") and kept and not drawn
    return when(found, "--sft with a mask of attention in each sample")


def _plain_conversations(facts: Facts) -> bool:
    packs = facts.scheduler or facts.dynamic
    return facts.settings.program == "megatron" and facts.settings.on("sft") and not packs


def _torch_norm(facts: Facts) -> bool:
    """Whether PyTorch's own normalisation is used, as local layers do for RMSNorm."""
    settings = facts.settings
    local = settings.program == "megatron" and settings.text("transformer_impl") == "local"
    return local and settings.text("normalization") == "RMSNorm"


def _plain_experts(facts: Facts) -> bool:
    """Whether experts compute one by one, with the fused activation that upstream turns on."""
    settings = facts.settings
    on = settings.program == "megatron" and settings.number("num_experts", 0) > 0
    return on and not settings.on("disable_bias_linear") and not settings.on("moe_grouped_gemm")


def _experts_of_gelu(facts: Facts) -> str:
    gated = {"swiglu", "quick_geglu", "no_bias_gelu_fusion", "squared_relu"}
    found = _plain_experts(facts) and gated.isdisjoint(facts.settings.values)
    return when(found, "experts with bias and the fused GELU")


def _experts_of_swiglu(facts: Facts) -> str:
    names = facts.settings.values
    found = _plain_experts(facts) and "swiglu" in names and "no_bias_swiglu_fusion" not in names
    return when(found, "experts with bias and the fused SwiGLU")


def _experts(facts: Facts) -> str:
    ranks, given = facts.settings.ranks, facts.settings.given("expert_tensor_parallel_size")
    if ranks is None or not (given or facts.settings.program == "megatron"):
        return ""  # a library's model may bring a size of its own
    if ranks % facts.model_size or ranks % facts.expert_size == 0:
        return ""
    parallel = facts.settings.number("expert_model_parallel_size", 1)
    split = facts.expert_size // (parallel * facts.pp)
    return f"{ranks} ranks are not divisible by ETP {split} x EP {parallel} x PP {facts.pp}"


def _dense_mask(facts: Facts) -> str:
    kept = "no_create_attention_mask_in_dataloader" not in facts.settings.values
    long = facts.length >= LONG and facts.settings.program == "megatron" and not facts.packed_data
    gigabytes = facts.length**2 / 1e9
    return when(kept and long, f"each sample carries a mask of {gigabytes:.0f} GB")


def _scheduled(facts: Facts) -> dict[str, str | None]:
    """A scheduler with room for one sequence of full length over the CP ranks."""
    if not facts.at(V1):
        return {}
    budget = {} if facts.budget else {
        "max_seqlen_per_dp_cp_rank": str(-(-facts.length // facts.cp))
    }  # fmt: skip
    return {"sequence_packing_scheduler": "dp_balanced", **budget}


RUNNING: tuple[Rule, ...] = (
    Rule(HCP + "two-levels", Effect.FAILS, _count_of_levels,
         message="CP implementation a2a+p2p requires cp_group",
         remedy="give two sizes: of the all-to-all, then of the ring"),
    Rule(HCP + "level-of-one", Effect.IDLE, _level_of_one,
         remedy="name p2p or a2a, or give both levels at least two ranks"),
    Rule(HCP + "unused-sizes", Effect.IDLE, _unused,
         remedy="set cp_comm_type to a2a+p2p, or leave the sizes out",
         repair={"cp_comm_type": "a2a+p2p"}),
    Rule(HCP + "heads-level-zero", Effect.FAILS, _heads_of_level,
         message="shape '[",
         remedy="choose a first level that divides both numbers of heads per TP rank"),
    Rule(HCP + "heads-pure-a2a", Effect.FAILS,
         lambda f: when("a2a" in f.types, _heads_of(f, f.cp, "CP")),
         message="cp_comm_type='a2a' requires num_heads % cp_size == 0",
         remedy="take p2p, or a2a+p2p with a first level that divides the heads"),
    Rule(LAUNCH + "odd-heads", Effect.FAILS, _odd_heads,
         message=NO_BACKEND,
         remedy="take p2p or all_gather, or an even number of heads on each TP rank",
         repair={"cp_comm_type": "p2p", "hierarchical_context_parallel_sizes": None}),
    Rule(HCP + "config-accepts-anything", Effect.FAILS, _misspelt,
         message="Unsupported communication type",
         remedy="write p2p, a2a, all_gather or a2a+p2p"),
    Rule(HCP + "no-window-bias-sink", Effect.FAILS, lambda facts: _unsupported(facts, "a2a+p2p"),
         message=NO_BACKEND,
         remedy="take a2a, or leave the window and the softmax at their defaults",
         repair={"cp_comm_type": "a2a", "hierarchical_context_parallel_sizes": None}),
    Rule(LAUNCH + "window-of-a-ring", Effect.FAILS,
         lambda facts: _unsupported(facts, "p2p") or _unsupported(facts, "all_gather"),
         message=NO_BACKEND,
         remedy="take a2a, or leave the window and the softmax at their defaults",
         repair={"cp_comm_type": "a2a"}),
    Rule(HCP + "packed-sequences", Effect.FAILS,
         lambda f: when(f.hierarchical and f.cp > 1 and (f.packed_data or f.scheduler),
                        "packed sequences with a2a+p2p"),
         lines=("engine-without-size", "engine-without-packing"),
         message="thd format is not supported with hierarchical CP implementation yet",
         remedy="take Transformer Engine 2.19 or newer, or p2p"),
    Rule(HCP + "transformer-engine-only", Effect.FAILS,
         lambda f: when(f.settings.text("transformer_impl") == "local" and f.cp > 1,
                        "local attention with CP"), lines=("without-dynamic-cp", *OLD),
         message="Context parallelism is only supported by TEDotProductAttention",
         remedy="set transformer_impl to transformer_engine",
         repair={"transformer_impl": "transformer_engine"}),
    Rule(HCP + "node-boundary", Effect.SLOW, _node,
         remedy="choose a first level whose product with TP divides the ranks of a node"),
    Rule(HCP + "decentralized-groups", Effect.FAILS,
         lambda f: when(f.hierarchical and f.settings.on("use_decentralized_pg"),
                        "decentralized process groups have no levels"),
         message="Decentralized process groups",
         remedy="set dist.use_decentralized_pg to false", repair={"use_decentralized_pg": "false"}),
    Rule(DCP + "hybrid-alias", Effect.WRONG,
         lambda f: when(_alias(f) and f.scheduler, LAYERS_ONLY), lines=(V1,),
         remedy="write --dynamic-context-parallel",
         repair={"dynamic_context_parallel": "", "hybrid_context_parallel": None}),
    Rule(DCP + "hybrid-alias", Effect.FAILS,
         lambda f: when(_unscheduled_alias(f) and f.budget,
               f"{LAYERS_ONLY}, and batches are packed"), lines=(V1,),
         message="micro-batch-size must be 1 for packing",
         remedy="write --dynamic-context-parallel",
         repair={"dynamic_context_parallel": "", "hybrid_context_parallel": None}),
    Rule(DCP + "hybrid-alias", Effect.FAILS,
         lambda f: when(_unscheduled_alias(f) and not f.budget,
               f"{LAYERS_ONLY}, and there is no budget"), lines=(V1,),
         message="unsupported operand type(s) for *: 'NoneType' and 'int'",
         remedy="write --dynamic-context-parallel, and set max_seqlen_per_dp_cp_rank",
         repair={"dynamic_context_parallel": "", "hybrid_context_parallel": None}),
    Rule(DCP + "hybrid-alias", Effect.FAILS,
         lambda f: when(f.new_name and f.settings.program in ("bridge", "verl"),
                        "this Megatron-Core has no dynamic_context_parallel"),
         lines=("without-dynamic-cp", *OLD),
         remedy="take a Megatron-Core that has it, such as dev"),
    Rule(DCP + "main-loses-the-size", Effect.FAILS,
         lambda f: when(f.old_name, "the training loop of this line does not run"),
         lines=("hybrid-broken",),
         message="IndexError: tuple index out of range",
         remedy="take dev, where the feature is --dynamic-context-parallel"),
    Rule(LAUNCH + "rerun-mode", Effect.FAILS, _rerun, lines=("hybrid-0.16", "hybrid-broken"),
         message="data iterator is not wrapped with RerunDataIterator",
         remedy="set --rerun-mode disabled", repair={"rerun_mode": "disabled"}),
    Rule(DCP + "power-of-two-domain", Effect.FAILS, _odd_domain, lines=(*OLD, V1),
         message="requires an even number of ranks",
         remedy="make DP x CP a power of two"),
    Rule(DCP + "power-of-two-domain", Effect.FAILS, _uneven_domain, lines=(*OLD, V1),
         message="KeyError: ", or_message="requires CP size",
         remedy="make DP x CP a power of two"),
    Rule(DCP + "domain-loop-v2", Effect.FAILS,
         lambda f: when(f.virtual and (_odd_domain(f) or _uneven_domain(f)),
                        f"virtual stages with DP x CP = {f.domain}"), lines=("dynamic-v2",),
         remedy="make DP x CP a power of two"),
    Rule(DCP + "missing-budget", Effect.FAILS,
         lambda f: when(f.dynamic and f.budget is None, "max_seqlen_per_dp_cp_rank is not set"),
         lines=OLD,
         message="unsupported operand type(s) for /: 'int' and 'NoneType'",
         remedy="set max_seqlen_per_dp_cp_rank"),
    Rule(DCP + "budget-set", Effect.SLOW,
         lambda f: when(f.new_name and f.budget is None and f.domain is not None,
                        f"the longest sequence of {f.length} tokens gets all {f.domain} ranks"),
         lines=(V1,),
         remedy="set max_seqlen_per_dp_cp_rank to what fits one GPU"),
    Rule(DCP + "oversized-sequence", Effect.FAILS, _too_long, lines=(*OLD, *NEW),
         message="requires CP size",
         remedy="raise max_seqlen_per_dp_cp_rank, or lower seq_length"),
    Rule(DCP + "no-lengths", Effect.FAILS,
         lambda f: when((f.dynamic or f.scheduler) and f.settings.program == "megatron"
                        and not f.packed_data, "neither --sft nor --use-varlen-dataset"), lines=NEW,
         message="KeyError: 'cu_seqlens'",
         remedy="give --sft or --use-varlen-dataset, or a data set of your own with lengths"),
    Rule(LAUNCH + "conversations-of-one-sample", Effect.FAILS, _several_samples, lines=(V1,),
         message="micro-batch-size must be 1 for packing",
         remedy="set micro_batch_size to 1, or sequence_packing_scheduler to dp_balanced",
         repair={"micro_batch_size": "1"}),
    Rule(LAUNCH + "conversations-of-one-sample", Effect.FAILS, _several_drawn_samples, lines=(V1,),
         message="stack expects each tensor to be equal size",
         remedy="set micro_batch_size to 1", repair={"micro_batch_size": "1"}),
    Rule(DCP + "no-stream", Effect.FAILS,
         lambda f: when(f.dynamic and f.cp == 1, "static CP is 1"),
         lines=("hybrid-0.16", "hybrid-broken"),
         message="'NoneType' object has no attribute 'wait_event'",
         remedy="set context_parallel_size to 2 or more", repair={"context_parallel_size": "2"}),
    Rule(DCP + "odd-smallest-size", Effect.FAILS, _odd_smallest, lines=(V1,),
         message="IndexError",
         remedy="take a power of two",
         repair=lambda facts: {SMALLEST: str(power_below(facts.smallest))}),
    Rule(DCP + "odd-smallest-size", Effect.IDLE, _only_size, lines=(V1,),
         remedy="take a power of two up to half of DP x CP",
         repair=lambda facts: {SMALLEST: str(power_below(facts.domain or 2) // 2)}),
    Rule(DCP + "hierarchical-type", Effect.FAILS,
         lambda f: when(f.dynamic and f.hierarchical, "a2a+p2p with Dynamic CP"),
         lines=(*OLD, *NEW),
         message="CP implementation a2a+p2p requires cp_group",
         remedy="take p2p",
         repair={"cp_comm_type": "p2p", "hierarchical_context_parallel_sizes": None}),
    Rule(DCP + "graphs-capture-static-size", Effect.WRONG,
         lambda f: when(f.dynamic and f.graphs != "none",
                        f"graphs of kind {f.graphs} are captured with static CP {f.cp}"),
         lines=("static-geometry",),
         remedy="leave CUDA graphs out, or take pull request 6479",
         repair={"cuda_graph_impl": "none"}),
    Rule(DCP + "mla-on-dev-only", Effect.FAILS,
         lambda f: when(f.dynamic and f.settings.on("multi_latent_attention"), "MLA"), lines=OLD,
         message="is not supported with MLA yet",
         remedy="take dev"),
    Rule(DCP + "router-static-group", Effect.WRONG,
         lambda f: when(f.dynamic and f.settings.number("num_experts", 0) > 0,
                        "a router under Dynamic CP"), lines=OLD,
         remedy="take dev, where the counts go over the microbatch's group"),
    Rule(DCP + "evaluation-not-wrapped", Effect.FAILS,
         lambda f: when(f.dynamic and f.settings.number("eval_iters", 100) != 0,
                        "evaluation is on (eval_iters is not 0)"),
         lines=("hybrid-0.16", "hybrid-broken"),
         message="KeyError: ", or_message="IndexError: list index out of range",
         remedy="evaluate in another run, without Dynamic CP; --eval-iters 0 fails with --sft"),
    Rule(DCP + "bridge-flags-only", Effect.IDLE,
         lambda f: when(f.dynamic and f.settings.program == "bridge",
                        "this line of Bridge schedules no microbatches"), lines=("bridge-flags",),
         remedy="take Bridge with pull request 6127, or Megatron-LM's own training script"),
    Rule(DCP + "gradients-averaged", Effect.WRONG,
         lambda f: when(f.dynamic and f.settings.program == "bridge"
                        and f.settings.on("average_in_collective"),
                        "gradients are averaged in the collective"),
         remedy="set ddp.average_in_collective to false",
         repair={"average_in_collective": "false"}),
    Rule(GRAPHS + "powers-of-two", Effect.FAILS, _bank_domain, lines=("bank-6479", "bank-5618"),
         message="Dynamic CP graph sizes must be powers of two with min <= max.",
         remedy="make DP x CP and the smallest size powers of two"),
    Rule(GRAPHS + "even-budget", Effect.FAILS, _odd_budget, lines=("bank-6479",),
         remedy="make max_seqlen_per_dp_cp_rank even, and divisible by TP"),
    Rule(GRAPHS + "sequence-capacity", Effect.FAILS, _one_sequence,
         lines=("bank-6479", "bank-5618"),
         remedy="set thd_max_packed_sequences to 2 or more"),
    Rule(GRAPHS + "needs-both", Effect.FAILS, _released_engine, lines=("bank-6479",),
         message="cannot import name 'set_cp_p2p_transport_group'",
         remedy="take Transformer Engine's pull request 3353"),
    Rule(GRAPHS + "flash-only", Effect.FAILS,
         lambda f: when(_bank(f) and f.settings.text("attention_backend") == "flash",
                        "--attention-backend flash"), lines=("bank-6479",),
         message="No dot product attention backend is available",
         remedy="take --attention-backend fused", repair={"attention_backend": "fused"}),
    Rule(LAUNCH + "evaluation-interval", Effect.FAILS, _evaluation_interval,
         lines=(*OLD, *NEW),
         message="unsupported operand type(s) for //: 'int' and 'NoneType'",
         remedy="set --eval-interval, for example to the number of steps",
         repair=lambda facts: {"eval_interval": facts.settings.text("train_iters", "1000")}),
    Rule(LAUNCH + "external-loader", Effect.FAILS, _iterator,
         message="object is not an iterator",
         remedy="leave --dataloader-type out, or start a program that yields a loader",
         repair={"dataloader_type": None}),
    Rule(LAUNCH + "conversations-with-mask", Effect.FAILS, _masked_conversations, lines=(*OLD, V1),
         remedy="give --no-create-attention-mask-in-dataloader",
         repair={"no_create_attention_mask_in_dataloader": ""}),
    Rule(LAUNCH + "conversations-without-scheduler", Effect.FAILS,
         lambda f: when(_plain_conversations(f) and f.cp > 1,
                        f"--sft over CP {f.cp} without a packing scheduler"),
         lines=("hybrid-0.16", V1),
         message="incompatible function arguments",
         remedy="on dev give --sequence-packing-scheduler dp_balanced and a budget; 0.16 has none",
         repair=_scheduled),
    Rule(LAUNCH + "conversations-of-0.16", Effect.FAILS,
         lambda f: when(_plain_conversations(f) and f.cp == 1, "--sft without CP"),
         lines=("hybrid-0.16",),
         message="must both have shape [batch_size + 1]",
         remedy="take a later release, in which --sft trains"),
    Rule(LAUNCH + "experts-with-bias", Effect.FAILS, _experts_of_gelu, lines=(*OLD, V1),
         message="Only support fusion of swiglu and quick_gelu with per_token_scale in MLP.",
         remedy="give --disable-bias-linear", repair={"disable_bias_linear": ""}),
    Rule(LAUNCH + "experts-with-bias", Effect.FAILS, _experts_of_swiglu, lines=(*OLD, V1),
         message="Bias is not supported for weighted swiglu fusion",
         remedy="give --disable-bias-linear", repair={"disable_bias_linear": ""}),
    Rule(LAUNCH + "local-norm", Effect.FAILS,
         lambda f: when(_torch_norm(f) and "no_persist_layer_norm" not in f.settings.values,
                        "local layers with RMSNorm, and the persistent kernel is asked for"),
         lines=(*OLD, *NEW),
         message="persist_layer_norm not supported by torch LayerNorm",
         remedy="give --no-persist-layer-norm, or take transformer_impl transformer_engine",
         repair={"no_persist_layer_norm": ""}),
    Rule(LAUNCH + "local-norm", Effect.FAILS,
         lambda f: when(_torch_norm(f) and f.tp > 1 and f.settings.on("sequence_parallel"),
                        "local layers with RMSNorm and sequence parallelism"), lines=(*OLD, *NEW),
         message="sequence parallel not supported by torch LayerNorm",
         remedy="set transformer_impl to transformer_engine, or leave --sequence-parallel out",
         repair={"transformer_impl": "transformer_engine"}),
    Rule(LAUNCH + "expert-world-size", Effect.FAILS, _experts,
         message="world_size (",
         remedy="make ETP x EP x PP divide the number of ranks; CP has no part in it"),
    Rule(LAUNCH + "dense-mask", Effect.SLOW, _dense_mask,
         remedy="give --no-create-attention-mask-in-dataloader; CP attention is causal without it",
         repair={"no_create_attention_mask_in_dataloader": ""}),
)  # fmt: skip
