"""Rules for settings that upstream accepts and that make a run fail, train wrong or be slow.

A setting that has no effect also belongs here.
"""

from __future__ import annotations

from pathlib import PurePath
from types import MappingProxyType

from ringproof.doctor.facts import NEW, OLD, V1, Facts, is_power_of_two, power_below
from ringproof.doctor.rule import DCP, GRAPHS, HCP, LAUNCH, Effect, Rule

TYPES = ("p2p", "a2a", "all_gather", "a2a+p2p")
LAYERS_ONLY = "only the layers see --hybrid-context-parallel"
NO_BACKEND = "No dot product attention backend is available"
RINGS = ("p2p", "a2a+p2p")
UNMASKED = "no_create_attention_mask_in_dataloader"
MOST_SEQUENCES = "thd_max_packed_sequences"
SMALLEST = "min_dynamic_context_parallel_size"
PRESENT_NAME = MappingProxyType({"dynamic_context_parallel": "", "hybrid_context_parallel": None})
RING = MappingProxyType({"cp_comm_type": "p2p", "hierarchical_context_parallel_sizes": None})
LONG = 32_768
"""Tokens from which on a dense mask of a sample has a gigabyte."""


def _packs_on_ampere(facts: Facts) -> object:
    return facts.ampere and facts.dynamic and "Dynamic CP before Hopper, where no kernel packs"


# -- hierarchical CP ------------------------------------------------------------------------------


def _heads(facts: Facts) -> tuple[tuple[int, str], ...]:
    """Heads of a TP rank; none where they are not known or do not decide."""
    if not facts.heads or facts.on("multi_latent_attention"):
        return ()
    heads, groups = (max(count // facts.tp, 1) for count in (facts.heads, facts.key_value_heads))
    return (heads, "query heads"), (groups, "KV heads")


def _heads_of(facts: Facts, size: int, level: str) -> object:
    wrong = [f"{count} {what}" for count, what in _heads(facts) if count % size]
    odd = any(count % 2 for count, _ in _heads(facts))
    text = f"{' and '.join(wrong)} per TP rank are not divisible by {level} {size}"
    return size > 1 and wrong and not odd and text


def _odd_heads(facts: Facts) -> object:
    exchanges = facts.cp > 1 and not {"a2a", "a2a+p2p"}.isdisjoint(facts.types)
    wrong = [f"{count} {what}" for count, what in _heads(facts) if count % 2]
    return exchanges and wrong and f"{' and '.join(wrong)} per TP rank with an all-to-all"


def _misspelt(facts: Facts) -> object:
    other = [kind for kind in facts.types if kind not in TYPES]
    return other and facts.cp > 1 and f"{', '.join(other)} is no communication type"


def _unsupported(facts: Facts, kind: str) -> object:
    """Features of attention that a communication type does not have."""
    softmax = facts.text("softmax_type", "vanilla")
    found = ["a sliding window"] if facts.given("window_size") and kind in RINGS else []
    found += [f"softmax {softmax}"] if softmax != "vanilla" else []
    runs = kind in facts.types and (facts.cp > 1 or _acts(facts))
    return runs and found and f"{kind} with {' and '.join(found)}"


def _special(facts: Facts) -> bool:
    """Whether attention has a window or a softmax that no ring has."""
    return facts.given("window_size") or facts.text("softmax_type", "vanilla") != "vanilla"


def _exchanges(facts: Facts) -> bool:
    """Whether an all-to-all over the CP ranks divides the heads of a TP rank."""
    return all(count % facts.cp == 0 and count % 2 == 0 for count, _ in _heads(facts))


def _outside_ring(facts: Facts) -> dict[str, str | None]:
    """The type that has the features and divides the heads; empty where there is none."""
    if _exchanges(facts):
        return {"cp_comm_type": "a2a", "hierarchical_context_parallel_sizes": None}
    plain = facts.text("softmax_type", "vanilla") == "vanilla"
    return {"cp_comm_type": "all_gather"} if plain else {}


def _advised(facts: Facts) -> str:
    repair = _outside_ring(facts)
    if repair.get("cp_comm_type") == "a2a":
        return "take a2a (with packed sequences from cuDNN 9.18 on), whose CP divides the heads"
    if repair:
        return "take all_gather: CP does not divide the heads of a TP rank, as a2a needs"
    fewest = min((count for count, _ in _heads(facts)), default=1) * facts.tp
    return (
        "only a2a has this, and its CP has to divide the heads of each TP rank: "
        f"lower TP x CP to a divisor of {fewest}, such as TP 1 or CP {max(fewest // facts.tp, 1)}, "
        "and take a2a"
    )


def _node(facts: Facts) -> object:
    ranks, node = facts.ranks or 0, facts.ranks_per_node
    if not facts.two_levels or not node or ranks <= node:
        return ""
    inner = facts.tp * facts.two_levels[0]
    product = f"TP {facts.tp} x first level {facts.two_levels[0]} = {inner}"
    return node % inner and f"{product} does not divide the {node} ranks of a node"


# -- Dynamic CP -----------------------------------------------------------------------------------


def _acts(facts: Facts) -> bool:
    """Whether Dynamic CP is on in all of upstream, not in its layers alone."""
    return facts.checked_as_dynamic or (facts.dynamic and not facts.megatron)


def _alias(facts: Facts) -> bool:
    return facts.old_name and not facts.new_name and facts.megatron


def _odd_domain(facts: Facts) -> object:
    odd = _acts(facts) and facts.domain is not None and facts.domain > 1 and facts.domain % 2
    return odd and f"DP x CP = {facts.domain} is odd"


def _uneven_domain(facts: Facts) -> object:
    even = _acts(facts) and facts.domain is not None and facts.domain % 2 == 0
    uneven = even and not is_power_of_two(facts.domain or 0)
    return uneven and f"DP x CP = {facts.domain} is no power of two"


def _too_long(facts: Facts) -> object:
    if not facts.dynamic or facts.domain is None or not facts.budget:
        return ""
    ranks = power_below(facts.domain)
    room = f"{ranks} ranks x {facts.budget} tokens"
    return ranks * facts.budget < facts.length and f"{room} < seq_length {facts.length}"


def _only_size(facts: Facts) -> object:
    """The smallest size leaves no other than the whole domain."""
    domain, smallest = facts.domain or 0, facts.smallest
    only = not is_power_of_two(smallest) and domain // 2 < smallest <= domain
    return facts.new_name and only and f"the smallest size {smallest} leaves {domain} ranks only"


# -- graphs ---------------------------------------------------------------------------------------


def _bank(facts: Facts) -> bool:
    return facts.dynamic and facts.graphs == "transformer_engine"


def _bank_domain(facts: Facts) -> object:
    sizes = (facts.domain or 1, max(facts.smallest, 1))
    odd = _bank(facts) and not all(map(is_power_of_two, sizes))
    return odd and f"sizes from {facts.smallest} to {facts.domain}"


def _odd_budget(facts: Facts) -> object:
    budget = facts.budget or 0
    odd = _bank(facts) and (budget % 2 or budget % facts.split)
    return odd and f"a budget of {budget} tokens with TP {facts.tp}"


# -- launching ------------------------------------------------------------------------------------


def _evaluation_interval(facts: Facts) -> object:
    missing = facts.megatron and not facts.given("eval_interval")
    missing = missing and facts.given("micro_batch_size")  # else it is a program of its own
    evaluates = not facts.on("full_validation") and not facts.on("skip_train")
    steps = facts.given("train_iters") and not facts.given("train_samples")
    return missing and evaluates and steps and "--eval-interval is not set"


def _conversations(facts: Facts) -> bool:
    """Whether samples of ``--sft`` are collated without a scheduler."""
    return facts.megatron and facts.on("sft") and not facts.packs


def _several_samples(facts: Facts) -> object:
    given = facts.number("micro_batch_size", 1)
    return _conversations(facts) and given != 1 and f"micro_batch_size is {given} with --sft"


def _dense_mask(facts: Facts) -> object:
    long = facts.length >= LONG and facts.megatron and not facts.packed_data
    gigabytes = facts.length**2 / 1e9
    return long and not facts.has(UNMASKED) and (
        f"each sample carries a mask of {gigabytes:.0f} GB"
    )  # fmt: skip


def _experts(facts: Facts) -> object:
    ranks, given = facts.ranks, facts.given("expert_tensor_parallel_size")
    if ranks is None or not (given or facts.megatron):
        return ""  # a library's model may bring a size of its own
    if ranks % facts.model_size or ranks % facts.expert_size == 0:
        return ""
    parallel = facts.number("expert_model_parallel_size", 1)
    split = facts.expert_size // (parallel * facts.pp)
    return f"{ranks} ranks are not divisible by ETP {split} x EP {parallel} x PP {facts.pp}"


def _scheduled(facts: Facts) -> dict[str, str | None]:
    """A scheduler with room for one sequence of full length over the CP ranks."""
    if not facts.at(V1):
        return {}
    budget = {} if facts.budget or not facts.length else {
        "max_seqlen_per_dp_cp_rank": str(-(-facts.length // facts.cp))
    }  # fmt: skip
    return {"sequence_packing_scheduler": "dp_balanced", **budget}


ACCEPTED: tuple[Rule, ...] = (
    Rule(HCP + "two-levels", Effect.FAILS,
         lambda f: f.hierarchical and len(f.levels or ()) not in (0, 2)
         and f"{len(f.levels or ())} levels",
         message="CP implementation a2a+p2p requires cp_group",
         remedy="give two sizes: of the all-to-all, then of the ring"),
    Rule(HCP + "level-of-one", Effect.IDLE,
         lambda f: 1 in f.two_levels and f"the sizes {list(f.two_levels)} have a level of one rank",
         remedy="name p2p or a2a, or give both levels at least two ranks"),
    Rule(HCP + "unused-sizes", Effect.IDLE,
         lambda f: f.levels and not f.hierarchical and f.cp > 1
         and f"sizes are given and the type is {', '.join(dict.fromkeys(f.types))}",
         remedy="set cp_comm_type to a2a+p2p, or leave the sizes out",
         repair={"cp_comm_type": "a2a+p2p"}),
    Rule(HCP + "heads-level-zero", Effect.FAILS,
         lambda f: f.two_levels and _heads_of(f, f.two_levels[0], "the first level"),
         message="shape '[",
         remedy="choose a first level that divides both numbers of heads per TP rank"),
    Rule(HCP + "heads-pure-a2a", Effect.FAILS,
         lambda f: "a2a" in f.types and _heads_of(f, f.cp, "CP"),
         message="cp_comm_type='a2a' requires num_heads % cp_size == 0",
         remedy=lambda f: _advised(f) if _special(f)
         else "take p2p, or a2a+p2p with a first level that divides the heads"),
    Rule(LAUNCH + "odd-heads", Effect.FAILS, _odd_heads,
         message=NO_BACKEND,
         remedy=lambda f: _advised(f) if _special(f)
         else "take p2p or all_gather, or an even number of heads on each TP rank",
         repair=lambda f: {} if _special(f) else RING),
    Rule(HCP + "config-accepts-anything", Effect.FAILS, _misspelt,
         message="Unsupported communication type",
         remedy="write p2p, a2a, all_gather or a2a+p2p"),
    Rule(DCP + "flash-ruled-out", Effect.FAILS, _packs_on_ampere, lines=NEW, message=NO_BACKEND,
         remedy="train with static CP and padded sequences, or on Hopper or newer"),
    Rule(HCP + "no-window-bias-sink", Effect.FAILS, lambda facts: _unsupported(facts, "a2a+p2p"),
         message=NO_BACKEND, remedy=_advised, repair=_outside_ring),
    Rule(LAUNCH + "window-of-a-ring", Effect.FAILS,
         lambda facts: _unsupported(facts, "p2p") or _unsupported(facts, "all_gather"),
         message=NO_BACKEND, remedy=_advised, repair=_outside_ring),
    Rule(HCP + "packed-sequences", Effect.FAILS,
         lambda f: f.hierarchical and f.cp > 1 and (f.packed_data or f.scheduler)
         and "packed sequences with a2a+p2p",
         lines=("engine-without-size", "engine-without-packing"),
         message="thd format is not supported with hierarchical CP implementation yet",
         remedy="take Transformer Engine 2.19 or newer, or p2p"),
    Rule(HCP + "transformer-engine-only", Effect.FAILS,
         lambda f: f.text("transformer_impl") == "local" and f.cp > 1
         and "local attention with CP", lines=("without-dynamic-cp", *OLD),
         message="Context parallelism is only supported by TEDotProductAttention",
         remedy="set transformer_impl to transformer_engine",
         repair={"transformer_impl": "transformer_engine"}),
    Rule(HCP + "node-boundary", Effect.SLOW, _node,
         remedy="choose a first level whose product with TP divides the ranks of a node"),
    Rule(HCP + "decentralized-groups", Effect.FAILS,
         lambda f: f.hierarchical and f.on("use_decentralized_pg")
         and "decentralized process groups have no levels",
         message="Decentralized process groups",
         remedy="set dist.use_decentralized_pg to false", repair={"use_decentralized_pg": "false"}),
    Rule(DCP + "hybrid-alias", Effect.WRONG,
         lambda f: _alias(f) and f.scheduler and LAYERS_ONLY, lines=(V1,),
         remedy="write --dynamic-context-parallel",
         repair=PRESENT_NAME),
    Rule(DCP + "hybrid-alias", Effect.FAILS,
         lambda f: _alias(f) and not f.scheduler and f.packed_data and f.budget
         and f"{LAYERS_ONLY}, and batches are packed", lines=(V1,),
         message="micro-batch-size must be 1 for packing",
         remedy="write --dynamic-context-parallel",
         repair=PRESENT_NAME),
    Rule(DCP + "hybrid-alias", Effect.FAILS,
         lambda f: _alias(f) and not f.scheduler and f.packed_data and not f.budget
         and f"{LAYERS_ONLY}, and there is no budget", lines=(V1,),
         message="unsupported operand type(s) for *: 'NoneType' and 'int'",
         remedy="write --dynamic-context-parallel, and set max_seqlen_per_dp_cp_rank",
         repair=PRESENT_NAME),
    Rule(DCP + "hybrid-alias", Effect.FAILS,
         lambda f: f.new_name and f.program in ("bridge", "verl")
         and "this Megatron-Core has no dynamic_context_parallel",
         lines=("without-dynamic-cp", *OLD),
         remedy="take a Megatron-Core that has it, such as dev"),
    Rule(DCP + "main-loses-the-size", Effect.FAILS,
         lambda f: f.old_name and "the training loop of this line does not run",
         lines=("hybrid-broken",),
         message="IndexError: tuple index out of range",
         remedy="take dev, where the feature is --dynamic-context-parallel"),
    Rule(LAUNCH + "rerun-mode", Effect.FAILS,
         lambda f: f.old_name and f.megatron and f.text("rerun_mode") != "disabled"
         and "the rerun state machine refuses the iterator of the loop",
         lines=("hybrid-0.16", "hybrid-broken"),
         message="data iterator is not wrapped with RerunDataIterator",
         remedy="set --rerun-mode disabled", repair={"rerun_mode": "disabled"}),
    Rule(DCP + "power-of-two-domain", Effect.FAILS, _odd_domain, lines=(*OLD, V1),
         message="requires an even number of ranks",
         remedy="make DP x CP a power of two"),
    Rule(DCP + "power-of-two-domain", Effect.FAILS, _uneven_domain, lines=(*OLD, V1),
         message="KeyError: ", or_message="requires CP size",
         remedy="make DP x CP a power of two"),
    Rule(DCP + "domain-loop-v2", Effect.FAILS,
         lambda f: f.virtual and (_odd_domain(f) or _uneven_domain(f))
         and f"virtual stages with DP x CP = {f.domain}", lines=("dynamic-v2",),
         remedy="make DP x CP a power of two"),
    Rule(DCP + "missing-budget", Effect.FAILS,
         lambda f: f.dynamic and f.budget is None and "max_seqlen_per_dp_cp_rank is not set",
         lines=OLD,
         message="unsupported operand type(s) for /: 'int' and 'NoneType'",
         remedy="set max_seqlen_per_dp_cp_rank"),
    Rule(DCP + "budget-set", Effect.SLOW,
         lambda f: f.new_name and f.budget is None and f.domain is not None
         and f"the longest sequence of {f.length} tokens gets all {f.domain} ranks",
         lines=(V1,),
         remedy="set max_seqlen_per_dp_cp_rank to what fits one GPU"),
    Rule(DCP + "oversized-sequence", Effect.FAILS, _too_long, lines=(*OLD, *NEW),
         message="requires CP size",
         remedy="raise max_seqlen_per_dp_cp_rank, or lower seq_length"),
    Rule(DCP + "no-lengths", Effect.FAILS,
         lambda f: (f.dynamic or f.scheduler) and f.megatron
         and not f.packed_data and "neither --sft nor --use-varlen-dataset", lines=NEW,
         message="KeyError: 'cu_seqlens'",
         remedy="give --sft or --use-varlen-dataset, or a data set of your own with lengths"),
    Rule(LAUNCH + "conversations-of-one-sample", Effect.FAILS,
         lambda f: not f.on("mock_data") and _several_samples(f), lines=(V1,),
         message="micro-batch-size must be 1 for packing",
         remedy="set micro_batch_size to 1, or sequence_packing_scheduler to dp_balanced",
         repair={"micro_batch_size": "1"}),
    Rule(LAUNCH + "conversations-of-one-sample", Effect.FAILS,
         lambda f: f.on("mock_data") and _several_samples(f), lines=(V1,),
         message="stack expects each tensor to be equal size",
         remedy="set micro_batch_size to 1", repair={"micro_batch_size": "1"}),
    Rule(DCP + "no-stream", Effect.FAILS,
         lambda f: f.dynamic and f.cp == 1 and "static CP is 1",
         lines=("hybrid-0.16", "hybrid-broken"),
         message="'NoneType' object has no attribute 'wait_event'",
         remedy="set context_parallel_size to 2 or more", repair={"context_parallel_size": "2"}),
    Rule(DCP + "odd-smallest-size", Effect.FAILS,
         lambda f: f.new_name and f.smallest > 1 and not is_power_of_two(f.smallest)
         and (f.domain is None or 2 * f.smallest <= f.domain)
         and f"the smallest size is {f.smallest}", lines=(V1,),
         message="IndexError",
         remedy="take a power of two",
         repair=lambda facts: {SMALLEST: str(power_below(facts.smallest))}),
    Rule(DCP + "odd-smallest-size", Effect.IDLE, _only_size, lines=(V1,),
         remedy="take a power of two up to half of DP x CP",
         repair=lambda facts: {SMALLEST: str(power_below(facts.domain or 2) // 2)}),
    Rule(DCP + "hierarchical-type", Effect.FAILS,
         lambda f: f.dynamic and f.hierarchical and "a2a+p2p with Dynamic CP",
         lines=(*OLD, *NEW),
         message="CP implementation a2a+p2p requires cp_group",
         remedy="take p2p",
         repair=RING),
    Rule(DCP + "graphs-capture-static-size", Effect.WRONG,
         lambda f: f.dynamic and f.graphs != "none"
         and f"graphs of kind {f.graphs} are captured with static CP {f.cp}",
         lines=("static-geometry",),
         remedy="leave CUDA graphs out, or take pull request 6479",
         repair={"cuda_graph_impl": "none"}),
    Rule(DCP + "mla-on-dev-only", Effect.FAILS,
         lambda f: f.dynamic and f.on("multi_latent_attention") and "MLA", lines=OLD,
         message="is not supported with MLA yet",
         remedy="take dev"),
    Rule(DCP + "router-static-group", Effect.WRONG,
         lambda f: f.dynamic and f.experts > 0 and "a router under Dynamic CP", lines=OLD,
         remedy="take dev, where the counts go over the microbatch's group"),
    Rule(DCP + "evaluation-not-wrapped", Effect.FAILS,
         lambda f: f.dynamic and f.number("eval_iters", 100) != 0
         and "evaluation is on (eval_iters is not 0)",
         lines=("hybrid-0.16", "hybrid-broken"),
         message="KeyError: ", or_message="IndexError: list index out of range",
         remedy="evaluate in another run, without Dynamic CP; --eval-iters 0 fails with --sft"),
    Rule(DCP + "bridge-flags-only", Effect.IDLE,
         lambda f: f.dynamic and f.program == "bridge"
         and "this line of Bridge schedules no microbatches", lines=("bridge-flags",),
         remedy="take Bridge with pull request 6127, or Megatron-LM's own training script"),
    Rule(DCP + "gradients-averaged", Effect.WRONG,
         lambda f: f.dynamic and f.program == "bridge" and f.on("average_in_collective")
         and "gradients are averaged in the collective",
         remedy="set ddp.average_in_collective to false",
         repair={"average_in_collective": "false"}),
    Rule(GRAPHS + "powers-of-two", Effect.FAILS, _bank_domain, lines=("bank-6479", "bank-5618"),
         message="Dynamic CP graph sizes must be powers of two with min <= max.",
         remedy="make DP x CP and the smallest size powers of two"),
    Rule(GRAPHS + "even-budget", Effect.FAILS, _odd_budget, lines=("bank-6479",),
         remedy="make max_seqlen_per_dp_cp_rank even, and divisible by TP"),
    Rule(GRAPHS + "sequence-capacity", Effect.FAILS,
         lambda f: _bank(f) and f.number(MOST_SEQUENCES, 2) < 2
         and f"room for {f.text(MOST_SEQUENCES)} sequence, the dummy included",
         lines=("bank-6479", "bank-5618"),
         remedy="set thd_max_packed_sequences to 2 or more"),
    Rule(GRAPHS + "needs-both", Effect.FAILS,
         lambda f: _bank(f) and any(line.startswith("engine") for line in f.lines)
         and not f.at("engine-slots") and "this Transformer Engine has no memory slots",
         lines=("bank-6479",),
         message="cannot import name 'set_cp_p2p_transport_group'",
         remedy="take Transformer Engine's pull request 3353"),
    Rule(GRAPHS + "flash-only", Effect.FAILS,
         lambda f: _bank(f) and f.text("attention_backend") == "flash"
         and "--attention-backend flash", lines=("bank-6479",),
         message="No dot product attention backend is available",
         remedy="take --attention-backend fused", repair={"attention_backend": "fused"}),
    Rule(LAUNCH + "evaluation-interval", Effect.FAILS, _evaluation_interval,
         lines=(*OLD, *NEW),
         message="unsupported operand type(s) for //: 'int' and 'NoneType'",
         remedy="set --eval-interval, for example to the number of steps",
         repair=lambda facts: {"eval_interval": facts.text("train_iters", "1000")}),
    Rule(LAUNCH + "external-loader", Effect.FAILS,
         lambda f: f.text("dataloader_type") == "external"
         and PurePath(f.script).name == "pretrain_gpt.py"
         and "pretrain_gpt.py yields data sets, and no loader of your own",
         message="object is not an iterator",
         remedy="leave --dataloader-type out, or start a program that yields a loader",
         repair={"dataloader_type": None}),
    Rule(LAUNCH + "conversations-with-mask", Effect.FAILS,
         lambda f: f.megatron and f.on("sft") and not f.has(UNMASKED)
         and not (f.at(V1) and f.on("mock_data"))
         and "--sft with a mask of attention in each sample", lines=(*OLD, V1),
         remedy="give --no-create-attention-mask-in-dataloader",
         repair={UNMASKED: ""}),
    Rule(LAUNCH + "conversations-without-scheduler", Effect.FAILS,
         lambda f: _conversations(f) and f.cp > 1
         and f"--sft over CP {f.cp} without a packing scheduler",
         lines=("hybrid-0.16", V1),
         message="incompatible function arguments",
         remedy="on dev give --sequence-packing-scheduler dp_balanced and a budget; 0.16 has none",
         repair=_scheduled),
    Rule(LAUNCH + "conversations-of-0.16", Effect.FAILS,
         lambda f: _conversations(f) and f.cp == 1 and "--sft without CP",
         lines=("hybrid-0.16",),
         message="must both have shape [batch_size + 1]",
         remedy="take a later release, in which --sft trains"),
    Rule(LAUNCH + "expert-world-size", Effect.FAILS, _experts,
         message="world_size (",
         remedy="make ETP x EP x PP divide the number of ranks; CP has no part in it"),
    Rule(LAUNCH + "dense-mask", Effect.SLOW, _dense_mask,
         remedy="give --no-create-attention-mask-in-dataloader; CP attention is causal without it",
         repair={UNMASKED: ""}),
)  # fmt: skip
