"""Settings that upstream accepts and that end, or spoil, a run later."""

from __future__ import annotations

from pathlib import PurePath

from ringproof.doctor.facts import WITH_NEW_NAME, Facts, is_power_of_two
from ringproof.doctor.rules.rule import DCP, GRAPHS, HCP, LAUNCH, Effect, Rule

OLD = ("hybrid-0.16", "hybrid-broken", "main-packing")
V1 = "dynamic-v1"
TYPES = ("p2p", "a2a", "all_gather", "a2a+p2p")
NO_BACKEND = "No dot product attention backend is available"
LONG = 32_768
"""Tokens from which on a dense mask of a sample has a gigabyte."""


def _when(condition: object, text: str) -> str:
    return text if condition else ""


# -- hierarchical CP ------------------------------------------------------------------------------


def _count_of_levels(facts: Facts) -> str:
    count = len(facts.levels or ())
    return _when(facts.hierarchical and count not in (0, 2), f"{count} levels")


def _level_of_one(facts: Facts) -> str:
    levels = facts.levels or ()
    found = facts.hierarchical and len(levels) == 2 and 1 in levels
    return _when(found, f"the sizes {list(levels)} have a level of one rank")


def _unused(facts: Facts) -> str:
    named = ", ".join(dict.fromkeys(facts.types))
    found = facts.levels and not facts.hierarchical and facts.cp > 1
    return _when(found, f"sizes are given and the type is {named}")


def _heads(facts: Facts) -> tuple[tuple[int, str], ...]:
    """Heads of a TP rank; none where they are not known or do not decide."""
    if not facts.heads or facts.settings.on("multi_latent_attention"):
        return ()
    heads, groups = (max(count // facts.tp, 1) for count in (facts.heads, facts.key_value_heads))
    return (heads, "query heads"), (groups, "KV heads")


def _odd_heads(facts: Facts) -> str:
    exchanges = facts.cp > 1 and not {"a2a", "a2a+p2p"}.isdisjoint(facts.types)
    wrong = [f"{count} {what}" for count, what in _heads(facts) if count % 2]
    return _when(exchanges and wrong, f"{' and '.join(wrong)} per TP rank with an all-to-all")


def _heads_of(facts: Facts, size: int, level: str) -> str:
    wrong = [f"{count} {what}" for count, what in _heads(facts) if count % size]
    odd = any(count % 2 for count, _ in _heads(facts))
    found = size > 1 and wrong and not odd
    return _when(found, f"{' and '.join(wrong)} per TP rank are not divisible by {level} {size}")


def _heads_of_level(facts: Facts) -> str:
    levels = facts.levels or ()
    if not facts.hierarchical or len(levels) != 2:
        return ""
    return _heads_of(facts, levels[0], "the first level")


def _heads_of_a2a(facts: Facts) -> str:
    return _heads_of(facts, facts.cp, "CP") if "a2a" in facts.types else ""


def _misspelt(facts: Facts) -> str:
    other = [kind for kind in facts.types if kind not in TYPES]
    return _when(other and facts.cp > 1, f"{', '.join(other)} is no communication type")


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
    return _when(found, f"{kind} with {' and '.join(found)}")


def _packed(facts: Facts) -> str:
    return _when(facts.hierarchical and facts.cp > 1 and (facts.packed_data or facts.scheduler),
                 "packed sequences with a2a+p2p")  # fmt: skip


def _local(facts: Facts) -> str:
    local = facts.settings.text("transformer_impl") == "local"
    return _when(local and facts.cp > 1, "local attention with CP")


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
    return _when(node % inner, f"TP {facts.tp} x first level {levels[0]} = {inner} does not divide "
                 f"the {node} ranks of a node")  # fmt: skip


def _no_recipe_sizes(facts: Facts) -> str:
    return _when(facts.hierarchical and facts.settings.on("use_decentralized_pg"),
                 "decentralized process groups have no levels")  # fmt: skip


# -- Dynamic CP -----------------------------------------------------------------------------------


def _acts(facts: Facts) -> bool:
    """Whether Dynamic CP is on in all of upstream, not in its layers alone."""
    return facts.checked_as_dynamic or (facts.dynamic and facts.settings.program != "megatron")


def _alias(facts: Facts) -> bool:
    return facts.old_name and not facts.new_name and facts.settings.program == "megatron"


def _alias_with_scheduler(facts: Facts) -> str:
    found = _alias(facts) and facts.scheduler
    return _when(found, "only the layers see --hybrid-context-parallel")


def _alias_alone(facts: Facts) -> str:
    found = _alias(facts) and not facts.scheduler and facts.packed_data and facts.budget
    return _when(found, "only the layers see --hybrid-context-parallel, and batches are packed")


def _alias_without_budget(facts: Facts) -> str:
    found = _alias(facts) and not facts.scheduler and facts.packed_data and not facts.budget
    return _when(found, "only the layers see --hybrid-context-parallel, and there is no budget")


def _unknown_field(facts: Facts) -> str:
    found = facts.new_name and facts.settings.program in ("bridge", "verl")
    return _when(found, "this Megatron-Core has no dynamic_context_parallel")


def _no_loop(facts: Facts) -> str:
    return _when(facts.old_name, "the training loop of this line does not run")


def _rerun(facts: Facts) -> str:
    """The check that comes before the loop, unless it is off."""
    on = facts.settings.program == "megatron"
    on = on and facts.settings.text("rerun_mode", "validate_results") != "disabled"
    return _when(facts.old_name and on, "the rerun state machine refuses the iterator of the loop")


def _odd_domain(facts: Facts) -> str:
    domain = facts.domain
    found = _acts(facts) and domain is not None and domain > 1 and domain % 2
    return _when(found, f"DP x CP = {domain} is odd")


def _uneven_domain(facts: Facts) -> str:
    domain = facts.domain
    if not _acts(facts) or domain is None or domain % 2 or is_power_of_two(domain):
        return ""
    return f"DP x CP = {domain} is no power of two"


def _endless(facts: Facts) -> str:
    uneven = _odd_domain(facts) or _uneven_domain(facts)
    return _when(facts.virtual and uneven, f"virtual stages with DP x CP = {facts.domain}")


def _no_budget(facts: Facts) -> str:
    return _when(facts.dynamic and facts.budget is None, "max_seqlen_per_dp_cp_rank is not set")


def _filled_budget(facts: Facts) -> str:
    if not facts.new_name or facts.budget is not None or facts.domain is None:
        return ""
    return f"the longest sequence of {facts.length} tokens gets all {facts.domain} ranks"


def _too_long(facts: Facts) -> str:
    if not facts.dynamic or facts.domain is None or not facts.budget:
        return ""
    ranks = 1 << (facts.domain.bit_length() - 1)
    room = f"{ranks} ranks x {facts.budget} tokens"
    return _when(ranks * facts.budget < facts.length, f"{room} < seq_length {facts.length}")


def _no_lengths(facts: Facts) -> str:
    packs = (facts.dynamic or facts.scheduler) and facts.settings.program == "megatron"
    return _when(packs and not facts.packed_data, "neither --sft nor --use-varlen-dataset")


def _drawn(facts: Facts) -> bool:
    """Whether samples of ``--sft`` are drawn by upstream and collated without a scheduler."""
    return _plain_conversations(facts) and facts.settings.on("mock_data")


def _several_samples(facts: Facts) -> str:
    given = facts.settings.number("micro_batch_size", 1)
    found = _plain_conversations(facts) and given != 1 and not _drawn(facts)
    return _when(found, f"micro_batch_size is {given} with --sft")


def _several_drawn_samples(facts: Facts) -> str:
    given = facts.settings.number("micro_batch_size", 1)
    return _when(_drawn(facts) and given != 1, f"micro_batch_size is {given} with --sft")


def _static_one(facts: Facts) -> str:
    return _when(facts.dynamic and facts.cp == 1, "static CP is 1")


def _odd_smallest(facts: Facts) -> str:
    odd = facts.new_name and facts.smallest > 1 and not is_power_of_two(facts.smallest)
    fits = facts.domain is None or 2 * facts.smallest <= facts.domain
    return _when(odd and fits, f"the smallest size is {facts.smallest}")


def _only_size(facts: Facts) -> str:
    """The smallest size leaves no other than the whole domain."""
    domain, smallest = facts.domain, facts.smallest
    odd = facts.new_name and not is_power_of_two(smallest)
    found = odd and domain is not None and domain // 2 < smallest <= domain
    return _when(found, f"the smallest size {smallest} leaves {domain} ranks only")


def _power_below(number: int) -> int:
    """Return the largest power of two that is not above a number."""
    return 1 << (number.bit_length() - 1)


def _dynamic_levels(facts: Facts) -> str:
    return _when(facts.dynamic and facts.hierarchical, "a2a+p2p with Dynamic CP")


def _captured(facts: Facts) -> str:
    found = facts.dynamic and facts.graphs != "none"
    return _when(found, f"graphs of kind {facts.graphs} are captured with static CP {facts.cp}")


def _latent(facts: Facts) -> str:
    return _when(facts.dynamic and facts.settings.on("multi_latent_attention"), "MLA")


def _router(facts: Facts) -> str:
    found = facts.dynamic and facts.settings.number("num_experts", 0) > 0
    return _when(found, "a router under Dynamic CP")


def _evaluates(facts: Facts) -> str:
    if not facts.dynamic or facts.settings.number("eval_iters", 100) == 0:
        return ""
    return "evaluation is on (eval_iters is not 0)"


def _library(facts: Facts) -> str:
    found = facts.dynamic and facts.settings.program == "bridge"
    return _when(found, "this line of Bridge schedules no microbatches")


def _averaged(facts: Facts) -> str:
    settings = facts.settings
    found = facts.dynamic and settings.program == "bridge" and settings.on("average_in_collective")
    return _when(found, "gradients are averaged in the collective")


# -- graphs ---------------------------------------------------------------------------------------


def _bank(facts: Facts) -> bool:
    return facts.dynamic and facts.graphs == "transformer_engine"


def _bank_domain(facts: Facts) -> str:
    domain = facts.domain
    odd = domain is not None and not is_power_of_two(domain)
    wrong = odd or not is_power_of_two(max(facts.smallest, 1))
    return _when(_bank(facts) and wrong, f"sizes from {facts.smallest} to {domain}")


def _odd_budget(facts: Facts) -> str:
    if not _bank(facts) or facts.budget is None:
        return ""
    split = facts.tp if facts.settings.on("sequence_parallel") else 1
    wrong = facts.budget % 2 or facts.budget % split
    return _when(wrong, f"a budget of {facts.budget} tokens with TP {facts.tp}")


def _one_sequence(facts: Facts) -> str:
    given = facts.settings.number("thd_max_packed_sequences", 2)
    return _when(_bank(facts) and given < 2, f"room for {given} sequence, the dummy included")


def _released_engine(facts: Facts) -> str:
    engines = [line for line in facts.lines if line.startswith("engine")]
    found = _bank(facts) and engines and not facts.at("engine-slots")
    return _when(found, "this Transformer Engine has no memory slots")


def _flash(facts: Facts) -> str:
    found = _bank(facts) and facts.settings.text("attention_backend") == "flash"
    return _when(found, "--attention-backend flash")


# -- launching ------------------------------------------------------------------------------------


def _evaluation_interval(facts: Facts) -> str:
    settings = facts.settings
    wrong = settings.program == "megatron" and not settings.given("eval_interval")
    wrong = wrong and settings.given("micro_batch_size")  # else it is a program of its own
    wrong = wrong and not settings.on("full_validation") and not settings.on("skip_train")
    wrong = wrong and not settings.given("train_samples") and settings.given("train_iters")
    return _when(wrong, "--eval-interval is not set")


def _iterator(facts: Facts) -> str:
    external = facts.settings.text("dataloader_type") == "external"
    found = external and PurePath(facts.settings.script).name == "pretrain_gpt.py"
    return _when(found, "pretrain_gpt.py yields data sets, and no loader of your own")


def _masked_conversations(facts: Facts) -> str:
    settings = facts.settings
    kept = "no_create_attention_mask_in_dataloader" not in settings.values
    drawn = facts.at(V1) and settings.on("mock_data")
    found = settings.program == "megatron" and settings.on("sft") and kept and not drawn
    return _when(found, "--sft with a mask of attention in each sample")


def _plain_conversations(facts: Facts) -> bool:
    packs = facts.scheduler or facts.dynamic
    return facts.settings.program == "megatron" and facts.settings.on("sft") and not packs


def _shared_conversations(facts: Facts) -> str:
    found = _plain_conversations(facts) and facts.cp > 1
    return _when(found, f"--sft over CP {facts.cp} without a packing scheduler")


def _conversations_of_one(facts: Facts) -> str:
    return _when(_plain_conversations(facts) and facts.cp == 1, "--sft without CP")


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
    return _when(found, "experts with bias and the fused GELU")


def _experts_of_swiglu(facts: Facts) -> str:
    names = facts.settings.values
    found = _plain_experts(facts) and "swiglu" in names and "no_bias_swiglu_fusion" not in names
    return _when(found, "experts with bias and the fused SwiGLU")


def _persistent_norm(facts: Facts) -> str:
    found = _torch_norm(facts) and "no_persist_layer_norm" not in facts.settings.values
    return _when(found, "local layers with RMSNorm, and the persistent kernel is asked for")


def _split_norm(facts: Facts) -> str:
    found = _torch_norm(facts) and facts.tp > 1 and facts.settings.on("sequence_parallel")
    return _when(found, "local layers with RMSNorm and sequence parallelism")


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
    return _when(kept and long, f"each sample carries a mask of {gigabytes:.0f} GB")


def _scheduled(facts: Facts) -> dict[str, str | None]:
    """A scheduler with room for one sequence of full length over the CP ranks."""
    if not facts.at(V1):
        return {}
    budget = {} if facts.budget else {
        "max_seqlen_per_dp_cp_rank": str(-(-facts.length // facts.cp))
    }  # fmt: skip
    return {"sequence_packing_scheduler": "dp_balanced", **budget}


RUNNING: tuple[Rule, ...] = (
    Rule(
        statement=HCP + "two-levels",
        effect=Effect.FAILS,
        broken=_count_of_levels,
        message="CP implementation a2a+p2p requires cp_group",
        remedy="give two sizes: of the all-to-all, then of the ring",
    ),
    Rule(
        statement=HCP + "level-of-one",
        effect=Effect.IDLE,
        broken=_level_of_one,
        remedy="name p2p or a2a, or give both levels at least two ranks",
    ),
    Rule(
        statement=HCP + "unused-sizes",
        effect=Effect.IDLE,
        broken=_unused,
        remedy="set cp_comm_type to a2a+p2p, or leave the sizes out",
        repair=lambda _: {"cp_comm_type": "a2a+p2p"},
    ),
    Rule(
        statement=HCP + "heads-level-zero",
        effect=Effect.FAILS,
        broken=_heads_of_level,
        message="shape '[",
        remedy="choose a first level that divides both numbers of heads per TP rank",
    ),
    Rule(
        statement=HCP + "heads-pure-a2a",
        effect=Effect.FAILS,
        broken=_heads_of_a2a,
        message="cp_comm_type='a2a' requires num_heads % cp_size == 0",
        remedy="take p2p, or a2a+p2p with a first level that divides the heads",
    ),
    Rule(
        statement=LAUNCH + "odd-heads",
        effect=Effect.FAILS,
        broken=_odd_heads,
        message=NO_BACKEND,
        remedy="take p2p or all_gather, or an even number of heads on each TP rank",
        repair=lambda _: {"cp_comm_type": "p2p", "hierarchical_context_parallel_sizes": None},
    ),
    Rule(
        statement=HCP + "config-accepts-anything",
        effect=Effect.FAILS,
        broken=_misspelt,
        message="Unsupported communication type",
        remedy="write p2p, a2a, all_gather or a2a+p2p",
    ),
    Rule(
        statement=HCP + "no-window-bias-sink",
        effect=Effect.FAILS,
        broken=lambda facts: _unsupported(facts, "a2a+p2p"),
        message=NO_BACKEND,
        remedy="take a2a, or leave the window and the softmax at their defaults",
        repair=lambda _: {"cp_comm_type": "a2a", "hierarchical_context_parallel_sizes": None},
    ),
    Rule(
        statement=LAUNCH + "window-of-a-ring",
        effect=Effect.FAILS,
        broken=lambda facts: _unsupported(facts, "p2p") or _unsupported(facts, "all_gather"),
        message=NO_BACKEND,
        remedy="take a2a, or leave the window and the softmax at their defaults",
        repair=lambda _: {"cp_comm_type": "a2a"},
    ),
    Rule(
        statement=HCP + "packed-sequences",
        effect=Effect.FAILS,
        lines=("engine-without-size", "engine-without-packing"),
        broken=_packed,
        message="thd format is not supported with hierarchical CP implementation yet",
        remedy="take Transformer Engine 2.19 or newer, or p2p",
    ),
    Rule(
        statement=HCP + "transformer-engine-only",
        effect=Effect.FAILS,
        lines=("without-dynamic-cp", *OLD),
        broken=_local,
        message="Context parallelism is only supported by TEDotProductAttention",
        remedy="set transformer_impl to transformer_engine",
        repair=lambda _: {"transformer_impl": "transformer_engine"},
    ),
    Rule(
        statement=HCP + "node-boundary",
        effect=Effect.SLOW,
        broken=_node,
        remedy="choose a first level whose product with TP divides the ranks of a node",
    ),
    Rule(
        statement=HCP + "decentralized-groups",
        effect=Effect.FAILS,
        broken=_no_recipe_sizes,
        message="Decentralized process groups",
        remedy="set dist.use_decentralized_pg to false",
        repair=lambda _: {"use_decentralized_pg": "false"},
    ),
    Rule(
        statement=DCP + "hybrid-alias",
        effect=Effect.WRONG,
        lines=(V1,),
        broken=_alias_with_scheduler,
        remedy="write --dynamic-context-parallel",
        repair=lambda _: {"dynamic_context_parallel": "", "hybrid_context_parallel": None},
    ),
    Rule(
        statement=DCP + "hybrid-alias",
        effect=Effect.FAILS,
        lines=(V1,),
        broken=_alias_alone,
        message="micro-batch-size must be 1 for packing",
        remedy="write --dynamic-context-parallel",
        repair=lambda _: {"dynamic_context_parallel": "", "hybrid_context_parallel": None},
    ),
    Rule(
        statement=DCP + "hybrid-alias",
        effect=Effect.FAILS,
        lines=(V1,),
        broken=_alias_without_budget,
        message="unsupported operand type(s) for *: 'NoneType' and 'int'",
        remedy="write --dynamic-context-parallel, and set max_seqlen_per_dp_cp_rank",
        repair=lambda _: {"dynamic_context_parallel": "", "hybrid_context_parallel": None},
    ),
    Rule(
        statement=DCP + "hybrid-alias",
        effect=Effect.FAILS,
        lines=("without-dynamic-cp", *OLD),
        broken=_unknown_field,
        remedy="take a Megatron-Core that has it, such as dev",
    ),
    Rule(
        statement=DCP + "main-loses-the-size",
        effect=Effect.FAILS,
        lines=("hybrid-broken",),
        broken=_no_loop,
        message="IndexError: tuple index out of range",
        remedy="take dev, where the feature is --dynamic-context-parallel",
    ),
    Rule(
        statement=LAUNCH + "rerun-mode",
        effect=Effect.FAILS,
        lines=("hybrid-0.16", "hybrid-broken"),
        broken=_rerun,
        message="data iterator is not wrapped with RerunDataIterator",
        remedy="set --rerun-mode disabled",
        repair=lambda _: {"rerun_mode": "disabled"},
    ),
    Rule(
        statement=DCP + "power-of-two-domain",
        effect=Effect.FAILS,
        lines=(*OLD, V1),
        broken=_odd_domain,
        message="requires an even number of ranks",
        remedy="make DP x CP a power of two",
    ),
    Rule(
        statement=DCP + "power-of-two-domain",
        effect=Effect.FAILS,
        lines=(*OLD, V1),
        broken=_uneven_domain,
        message="KeyError: ",
        or_message="requires CP size",
        remedy="make DP x CP a power of two",
    ),
    Rule(
        statement=DCP + "domain-loop-v2",
        effect=Effect.FAILS,
        lines=("dynamic-v2",),
        broken=_endless,
        remedy="make DP x CP a power of two",
    ),
    Rule(
        statement=DCP + "missing-budget",
        effect=Effect.FAILS,
        lines=OLD,
        broken=_no_budget,
        message="unsupported operand type(s) for /: 'int' and 'NoneType'",
        remedy="set max_seqlen_per_dp_cp_rank",
    ),
    Rule(
        statement=DCP + "budget-set",
        effect=Effect.SLOW,
        lines=(V1,),
        broken=_filled_budget,
        remedy="set max_seqlen_per_dp_cp_rank to what fits one GPU",
    ),
    Rule(
        statement=DCP + "oversized-sequence",
        effect=Effect.FAILS,
        lines=(*OLD, *WITH_NEW_NAME),
        broken=_too_long,
        message="requires CP size",
        remedy="raise max_seqlen_per_dp_cp_rank, or lower seq_length",
    ),
    Rule(
        statement=DCP + "no-lengths",
        effect=Effect.FAILS,
        lines=WITH_NEW_NAME,
        broken=_no_lengths,
        message="KeyError: 'cu_seqlens'",
        remedy="give --sft or --use-varlen-dataset, or a data set of your own with lengths",
    ),
    Rule(
        statement=LAUNCH + "conversations-of-one-sample",
        effect=Effect.FAILS,
        lines=(V1,),
        broken=_several_samples,
        message="micro-batch-size must be 1 for packing",
        remedy="set micro_batch_size to 1, or sequence_packing_scheduler to dp_balanced",
        repair=lambda _: {"micro_batch_size": "1"},
    ),
    Rule(
        statement=LAUNCH + "conversations-of-one-sample",
        effect=Effect.FAILS,
        lines=(V1,),
        broken=_several_drawn_samples,
        message="stack expects each tensor to be equal size",
        remedy="set micro_batch_size to 1",
        repair=lambda _: {"micro_batch_size": "1"},
    ),
    Rule(
        statement=DCP + "no-stream",
        effect=Effect.FAILS,
        lines=("hybrid-0.16", "hybrid-broken"),
        broken=_static_one,
        message="'NoneType' object has no attribute 'wait_event'",
        remedy="set context_parallel_size to 2 or more",
        repair=lambda _: {"context_parallel_size": "2"},
    ),
    Rule(
        statement=DCP + "odd-smallest-size",
        effect=Effect.FAILS,
        lines=(V1,),
        broken=_odd_smallest,
        message="IndexError",
        remedy="take a power of two",
        repair=lambda facts: {
            "min_dynamic_context_parallel_size": str(_power_below(facts.smallest))
        },
    ),
    Rule(
        statement=DCP + "odd-smallest-size",
        effect=Effect.IDLE,
        lines=(V1,),
        broken=_only_size,
        remedy="take a power of two up to half of DP x CP",
        repair=lambda facts: {
            "min_dynamic_context_parallel_size": str(_power_below(facts.domain or 2) // 2)
        },
    ),
    Rule(
        statement=DCP + "hierarchical-type",
        effect=Effect.FAILS,
        lines=(*OLD, *WITH_NEW_NAME),
        broken=_dynamic_levels,
        message="CP implementation a2a+p2p requires cp_group",
        remedy="take p2p",
        repair=lambda _: {"cp_comm_type": "p2p", "hierarchical_context_parallel_sizes": None},
    ),
    Rule(
        statement=DCP + "graphs-capture-static-size",
        effect=Effect.WRONG,
        lines=("static-geometry",),
        broken=_captured,
        remedy="leave CUDA graphs out, or take pull request 6479",
        repair=lambda _: {"cuda_graph_impl": "none"},
    ),
    Rule(
        statement=DCP + "mla-on-dev-only",
        effect=Effect.FAILS,
        lines=OLD,
        broken=_latent,
        message="is not supported with MLA yet",
        remedy="take dev",
    ),
    Rule(
        statement=DCP + "router-static-group",
        effect=Effect.WRONG,
        lines=OLD,
        broken=_router,
        remedy="take dev, where the counts go over the microbatch's group",
    ),
    Rule(
        statement=DCP + "evaluation-not-wrapped",
        effect=Effect.FAILS,
        lines=("hybrid-0.16", "hybrid-broken"),
        broken=_evaluates,
        message="KeyError: ",
        or_message="IndexError: list index out of range",
        remedy="evaluate in another run, without Dynamic CP; --eval-iters 0 fails with --sft",
    ),
    Rule(
        statement=DCP + "bridge-flags-only",
        effect=Effect.IDLE,
        lines=("bridge-flags",),
        broken=_library,
        remedy="take Bridge with pull request 6127, or Megatron-LM's own training script",
    ),
    Rule(
        statement=DCP + "gradients-averaged",
        effect=Effect.WRONG,
        broken=_averaged,
        remedy="set ddp.average_in_collective to false",
        repair=lambda _: {"average_in_collective": "false"},
    ),
    Rule(
        statement=GRAPHS + "powers-of-two",
        effect=Effect.FAILS,
        lines=("bank-6479", "bank-5618"),
        broken=_bank_domain,
        message="Dynamic CP graph sizes must be powers of two with min <= max.",
        remedy="make DP x CP and the smallest size powers of two",
    ),
    Rule(
        statement=GRAPHS + "even-budget",
        effect=Effect.FAILS,
        lines=("bank-6479",),
        broken=_odd_budget,
        remedy="make max_seqlen_per_dp_cp_rank even, and divisible by TP",
    ),
    Rule(
        statement=GRAPHS + "sequence-capacity",
        effect=Effect.FAILS,
        lines=("bank-6479", "bank-5618"),
        broken=_one_sequence,
        remedy="set thd_max_packed_sequences to 2 or more",
    ),
    Rule(
        statement=GRAPHS + "needs-both",
        effect=Effect.FAILS,
        lines=("bank-6479",),
        broken=_released_engine,
        message="cannot import name 'set_cp_p2p_transport_group'",
        remedy="take Transformer Engine's pull request 3353",
    ),
    Rule(
        statement=GRAPHS + "flash-only",
        effect=Effect.FAILS,
        lines=("bank-6479",),
        broken=_flash,
        message="No dot product attention backend is available",
        remedy="take --attention-backend fused",
        repair=lambda _: {"attention_backend": "fused"},
    ),
    Rule(
        statement=LAUNCH + "evaluation-interval",
        effect=Effect.FAILS,
        lines=(*OLD, *WITH_NEW_NAME),
        broken=_evaluation_interval,
        message="unsupported operand type(s) for //: 'int' and 'NoneType'",
        remedy="set --eval-interval, for example to the number of steps",
        repair=lambda facts: {"eval_interval": facts.settings.text("train_iters", "1000")},
    ),
    Rule(
        statement=LAUNCH + "external-loader",
        effect=Effect.FAILS,
        broken=_iterator,
        message="object is not an iterator",
        remedy="leave --dataloader-type out, or start a program that yields a loader",
        repair=lambda _: {"dataloader_type": None},
    ),
    Rule(
        statement=LAUNCH + "conversations-with-mask",
        effect=Effect.FAILS,
        lines=(*OLD, V1),
        broken=_masked_conversations,
        remedy="give --no-create-attention-mask-in-dataloader",
        repair=lambda _: {"no_create_attention_mask_in_dataloader": ""},
    ),
    Rule(
        statement=LAUNCH + "conversations-without-scheduler",
        effect=Effect.FAILS,
        lines=("hybrid-0.16", V1),
        broken=_shared_conversations,
        message="incompatible function arguments",
        remedy="on dev give --sequence-packing-scheduler dp_balanced and a budget; 0.16 has none",
        repair=_scheduled,
    ),
    Rule(
        statement=LAUNCH + "conversations-of-0.16",
        effect=Effect.FAILS,
        lines=("hybrid-0.16",),
        broken=_conversations_of_one,
        message="must both have shape [batch_size + 1]",
        remedy="take a later release, in which --sft trains",
    ),
    Rule(
        statement=LAUNCH + "experts-with-bias",
        effect=Effect.FAILS,
        lines=(*OLD, V1),
        broken=_experts_of_gelu,
        message="Only support fusion of swiglu and quick_gelu with per_token_scale in MLP.",
        remedy="give --disable-bias-linear",
        repair=lambda _: {"disable_bias_linear": ""},
    ),
    Rule(
        statement=LAUNCH + "experts-with-bias",
        effect=Effect.FAILS,
        lines=(*OLD, V1),
        broken=_experts_of_swiglu,
        message="Bias is not supported for weighted swiglu fusion",
        remedy="give --disable-bias-linear",
        repair=lambda _: {"disable_bias_linear": ""},
    ),
    Rule(
        statement=LAUNCH + "local-norm",
        effect=Effect.FAILS,
        lines=(*OLD, *WITH_NEW_NAME),
        broken=_persistent_norm,
        message="persist_layer_norm not supported by torch LayerNorm",
        remedy="give --no-persist-layer-norm, or take transformer_impl transformer_engine",
        repair=lambda _: {"no_persist_layer_norm": ""},
    ),
    Rule(
        statement=LAUNCH + "local-norm",
        effect=Effect.FAILS,
        lines=(*OLD, *WITH_NEW_NAME),
        broken=_split_norm,
        message="sequence parallel not supported by torch LayerNorm",
        remedy="set transformer_impl to transformer_engine, or leave --sequence-parallel out",
        repair=lambda _: {"transformer_impl": "transformer_engine"},
    ),
    Rule(
        statement=LAUNCH + "expert-world-size",
        effect=Effect.FAILS,
        broken=_experts,
        message="world_size (",
        remedy="make ETP x EP x PP divide the number of ranks; CP has no part in it",
    ),
    Rule(
        statement=LAUNCH + "dense-mask",
        effect=Effect.SLOW,
        broken=_dense_mask,
        remedy="give --no-create-attention-mask-in-dataloader; CP attention is causal without it",
        repair=lambda _: {"no_create_attention_mask_in_dataloader": ""},
    ),
)
