"""Rules of the programs that train with Megatron-LM as a library, or without it.

Those of NeMo-RL were read in its workers of August 2026 and in the tags since 0.3, those of SkyRL
and slime in their repositories of August 2026, and the others in released packages: verl 0.8.0 and
0.9.1, torchtitan 0.3.0, LLaMA-Factory 0.9.5, mcore-bridge 1.6.5 and ms-swift 4.6.0.
"""

from __future__ import annotations

import math
import re

from ringproof.doctor.facts import Facts
from ringproof.doctor.rule import LAUNCH, Effect, RefusedBy, Rule
from ringproof.doctor.settings import FALSE
from ringproof.launch.shell.parse import whole_number

FP8_ROWS = 16
"""Rows of a rank that FP8 kernels need a multiple of."""
BUDGETS = ("actor_rollout_ref.actor.ppo_max_token_len_per_gpu", "data.max_token_len_per_gpu")
UNPADDED = ("actor_rollout_ref.model.use_remove_padding", "model.use_remove_padding",
            "actor_rollout_ref.actor.use_remove_padding", "engine.use_remove_padding")  # fmt: skip
DYNAMIC = ("actor_rollout_ref.actor.use_dynamic_bsz", "data.use_dynamic_bsz")
ULYSSES = tuple(f"{section}.ulysses_sequence_parallel_size"
                for section in ("actor_rollout_ref.actor", "actor_rollout_ref.actor.fsdp_config",
                                "engine"))  # fmt: skip
"""Whole names of verl's fields of the model that trains: its critic and others have the same."""
SIZED = "First dimension of the tensor should be divisible by tensor parallel size"
PADDED = "make_sequence_length_divisible_by"
PACKED = "Context parallel size without seq_pack is not supported"
"""What verl and SkyRL say where sequences are padded under CP."""


# -- reinforcement learning -----------------------------------------------------------------------


def _section(facts: Facts) -> str:
    """The part of a configuration of NeMo-RL that trains."""
    return "megatron_cfg" if facts.switch("policy.megatron_cfg.enabled") else "dtensor_cfg"


def _packed_samples(facts: Facts) -> bool:
    return facts.switch("policy.sequence_packing.enabled")


def _policy_multiple(facts: Facts) -> int:
    """What NeMo-RL's sequences have to be a multiple of."""
    section = f"policy.{_section(facts)}."
    cp = facts.whole(f"{section}context_parallel_size", default=1)
    names = (f"{section}tensor_model_parallel_size", f"{section}tensor_parallel_size")
    tp = facts.whole(*names, default=1)
    # packs are padded for FP8 whatever the configuration says
    fp8 = facts.switch(f"{section}fp8_cfg.enabled") and not _packed_samples(facts)
    needed = tp * (2 * cp if cp > 1 else 1)
    return math.lcm(needed, FP8_ROWS * tp * cp) if fp8 else needed


def _policy_padding(facts: Facts) -> object:
    given, needed = facts.entry(f"policy.{PADDED}"), _policy_multiple(facts)
    fp8 = facts.switch("megatron_cfg.fp8_cfg.enabled") and not _packed_samples(facts)
    splits = facts.switch(f"{_section(facts)}.sequence_parallel") or fp8
    splits = splits or facts.whole(f"{_section(facts)}.context_parallel_size") > 1
    size = whole_number(given)
    fixed = any(name.startswith("teachers") for name in facts.fields)  # whose data has one length
    wrong = size is not None and splits and size % needed and not fixed
    what = "TP x 16 with FP8" if fp8 else "TP x 2 CP, or TP without CP,"
    return wrong and f"{PADDED} is {given}, and {what} makes {needed}"


def _policy_packing(facts: Facts) -> object:
    cp = facts.whole("policy.megatron_cfg.context_parallel_size", default=1)
    off = facts.entry("policy.sequence_packing.enabled") in ("False", "false")
    megatron = facts.switch("policy.megatron_cfg.enabled")
    return megatron and cp > 1 and off and f"CP {cp} without sequence packing"


def _padded_rows(facts: Facts) -> object:
    given = facts.exact(*UNPADDED).lower()
    return given == "false" and facts.cp > 1 and f"use_remove_padding is off with CP {facts.cp}"


def _parts(facts: Facts) -> int:
    """Ranks that share a sequence by Ulysses."""
    return whole_number(facts.exact(*ULYSSES)) or 1


def _padded_parts(facts: Facts) -> object:
    off = facts.exact(*UNPADDED).lower() == "false" and _parts(facts) > 1
    return off and f"use_remove_padding is off with Ulysses over {_parts(facts)} ranks"


def _uneven_heads(heads: int, groups: int, parts: int) -> str:
    """Why Ulysses cannot divide heads between ranks; empty where it can, or heads are unknown."""
    if not heads or parts == 1:
        return ""
    if heads % parts:
        return f"{heads} query heads are not divisible by {parts}"
    uneven = groups and groups % parts and parts % groups
    return f"{groups} key-value heads and {parts} ranks do not divide each other" if uneven else ""


def _heads_of_parts(facts: Facts) -> object:
    return _uneven_heads(facts.heads, facts.key_value_heads, _parts(facts))


def _forced_loss(facts: Facts) -> object:
    model = facts.exact("actor_rollout_ref.model.path", "model.path")
    vision = re.search(r"qwen3(-vl|\.[56])-\d+b-a\d+b", model, re.IGNORECASE)
    return vision and facts.cp > 1 and (
        f"Megatron-Bridge turns the loss per token on for {vision[0]} with CP {facts.cp}, and verl "
        "before 0.9 gives no number of tokens: gradients of the router are too large"
    )  # fmt: skip


def _longest(facts: Facts) -> int:
    """Tokens of the longest sample that verl keeps."""
    if facts.entry("data.max_length"):
        return facts.whole("data.max_length")
    lengths = (facts.whole("data.max_prompt_length"), facts.whole("data.max_response_length"))
    return sum(lengths) if all(lengths) else 0


def _token_budget(facts: Facts) -> object:
    budget, longest = facts.whole(*BUDGETS), _longest(facts)
    on = facts.exact(*DYNAMIC) not in ("", *FALSE) and not facts.on("dynamic_context_parallel")
    parts = max(facts.cp, _parts(facts))
    wrong = on and budget and longest > budget * parts
    says = f"a budget of {budget} tokens x CP {parts} < {longest} of the longest sample"
    return wrong and says


def _verl_dynamic(facts: Facts) -> object:
    critic = facts.switch("critic.megatron.dynamic_context_parallel")
    found = ["a critic, which is a value model"] if critic else []
    if facts.on("dynamic_context_parallel"):
        off = facts.exact(*UNPADDED).lower() == "false"
        found += [] if facts.budget else ["no max_seqlen_per_dp_cp_rank"]
        found += ["use_remove_padding off"] if off else []
        found += ["virtual pipeline stages"] if facts.virtual else []
    return found and f"Dynamic CP with {', '.join(found)}"


# -- NeMo-RL without Megatron-LM, and SkyRL --------------------------------------------------------


def _rings(facts: Facts) -> int:
    """CP of NeMo-RL's DTensor workers; 1 where they do not train."""
    if not facts.switch("policy.dtensor_cfg.enabled") or _section(facts) == "megatron_cfg":
        return 1
    return facts.whole("policy.dtensor_cfg.context_parallel_size", default=1)


def _packed_tensors(facts: Facts) -> object:
    packed = facts.switch("policy.sequence_packing.enabled")
    return packed and _rings(facts) > 1 and f"sequence packing with CP {_rings(facts)} of DTensor"


def _split_tensors(facts: Facts) -> object:
    tp = facts.whole("policy.dtensor_cfg.tensor_parallel_size", default=1)
    split = facts.switch("policy.dtensor_cfg.sequence_parallel") and tp > 1
    return split and _rings(facts) > 1 and f"sequence_parallel (TP {tp}) with CP {_rings(facts)}"


def _model_of_tensors(facts: Facts) -> object:
    model = facts.exact("policy.model_name")
    left = re.search(r"gemma-3|-vl-|qwen3\.5-\d+b(?!-a)", model, re.IGNORECASE)
    return left and _rings(facts) > 1 and f"{model} with CP {_rings(facts)} of DTensor"


def _fused_logprobs(facts: Facts) -> object:
    fused = facts.switch("policy.megatron_cfg.use_fused_linear_logprobs")
    cp = facts.whole("policy.megatron_cfg.context_parallel_size", default=1)
    on = facts.switch("policy.megatron_cfg.enabled") and cp > 1
    return on and fused and f"use_fused_linear_logprobs with CP {cp}"


def _value_model(facts: Facts) -> object:
    megatron = facts.switch("value.megatron_cfg.enabled")
    section = "value.megatron_cfg" if megatron else "value.dtensor_cfg"
    cp = facts.whole(f"{section}.context_parallel_size", default=1)
    packed = facts.switch("value.sequence_packing.enabled")
    wrong = cp > 1 and not (megatron and packed)
    return wrong and f"a value model with CP {cp}{'' if megatron else ' of DTensor'}"


def _unpacked_rows(facts: Facts) -> object:
    name = "remove_microbatch_padding"
    given = facts.exact("trainer.use_sample_packing", f"trainer.{name}", name)
    if facts.exact("use_sequence_packing").lower() == "true":  # which sets it in SFT
        return False
    return given.lower() == "false" and facts.cp > 1 and f"CP {facts.cp} without packed samples"


# -- slime, which starts Megatron-LM's own checks --------------------------------------------------


def _gathered_rows(facts: Facts) -> object:
    words = " ".join(facts.arguments).lower()
    sparse = re.search(r"glm[-_]?5|deepseek[-_]?v3[._]?2|\bdsa\b", words)
    wrong = facts.has("allgather_cp") and facts.cp > 1 and not sparse
    return wrong and f"--allgather-cp with CP {facts.cp} and attention that is not sparse"


# -- others ---------------------------------------------------------------------------------------


def _neat(facts: Facts) -> object:
    packed = [name for name in ("neat_packing", "packing") if facts.switch(name)]
    return packed and facts.cp > 1 and (
        f"{', '.join(packed)} with CP {facts.cp}: sub-sequences are not padded to "
        f"2 x CP = {2 * facts.cp}"
    )  # fmt: skip


def _few_groups(facts: Facts) -> object:
    """KV heads that LLaMA-Factory's Ulysses cannot give to every rank."""
    parts, groups = facts.whole("cp_size", default=1), facts.number("num_query_groups", 0)
    few = groups and parts > groups and f"{groups} key-value heads for CP {parts}"
    return few or _uneven_heads(facts.heads, groups, parts)


def _titan(facts: Facts) -> object:
    length, multiple = facts.whole("training.seq_len"), facts.tp * 2 * facts.cp
    wrong = facts.cp > 1 and length % multiple
    return wrong and f"training.seq_len {length} is no multiple of TP x 2 CP = {multiple}"


def _titan_model(facts: Facts) -> str:
    return facts.exact("model.name", "module", "model.flavor", "config").lower()


def _titan_refuses(facts: Facts) -> object:
    found = re.search(r"llama4|qwen3_5|kimi_k2_?\d*", _titan_model(facts))
    return found and facts.cp > 1 and f"{found[0]} with CP {facts.cp}"


def _titan_split(facts: Facts) -> object:
    concerned = re.search(r"qwen3|^$", _titan_model(facts))
    return concerned and facts.cp > 1 and facts.tp > 1 and f"TP {facts.tp} with CP {facts.cp}"


def _blocks_of_32(facts: Facts) -> object:
    packed = facts.switch("packing", "padding_free") and facts.switch("sequence_parallel")
    return packed and facts.tp > 1 and facts.exact("fp8_recipe") == "mxfp8" and (
        f"packed sequences in MXFP8, divided between TP {facts.tp}: ms-swift before July 2026 pads "
        "to TP x 16, and MXFP8 needs TP x 32"
    )  # fmt: skip


def _packed_dense(facts: Facts) -> object:
    size = facts.whole("packed_sequence.packed_sequence_size")
    return size and facts.cp > 1 and (
        f"packed sequences with CP {facts.cp}: dense models of Automodel before July 2026 attend "
        "across the sequences of a pack"
    )  # fmt: skip


FRAMEWORKS: tuple[Rule, ...] = (
    Rule(LAUNCH + "nemo-rl-padding", Effect.FAILS, _policy_padding, programs=("nemo-rl",),
         message=SIZED, or_message="FP8 execution requires",
         remedy=f"set policy.{PADDED} to TP x CP x 2 (CP above 1) or TP; with FP8 to 16 x TP x CP"),
    Rule(LAUNCH + "nemo-rl-packing", Effect.FAILS, _policy_packing, programs=("nemo-rl",),
         remedy="set policy.sequence_packing.enabled to true"),
    Rule(LAUNCH + "nemo-rl-packing", RefusedBy.NEMO_RL, _packed_tensors, programs=("nemo-rl",),
         message="Context parallel is not supported for sequence packing",
         remedy="set policy.sequence_packing.enabled to false, or train with policy.megatron_cfg"),
    Rule(LAUNCH + "nemo-rl-sequence-parallel", RefusedBy.NEMO_RL, _split_tensors,
         programs=("nemo-rl",),
         message="It's a known issue that context parallel can't be used together with sequence",
         remedy="set policy.dtensor_cfg.sequence_parallel to false, or CP to 1"),
    Rule(LAUNCH + "nemo-rl-model", RefusedBy.NEMO_RL, _model_of_tensors, programs=("nemo-rl",),
         message="Context parallel is",
         remedy="set policy.dtensor_cfg.context_parallel_size to 1, or train with megatron_cfg"),
    Rule(LAUNCH + "nemo-rl-fused-logprobs", RefusedBy.NEMO_RL, _fused_logprobs,
         programs=("nemo-rl",),
         message="Context Parallelism is not supported with linear CE fusion loss",
         remedy="set policy.megatron_cfg.use_fused_linear_logprobs to false"),
    Rule(LAUNCH + "nemo-rl-value-model", RefusedBy.NEMO_RL, _value_model, programs=("nemo-rl",),
         message="Context parallelism (CP>1)",
         remedy="set value.sequence_packing.enabled to true with value.megatron_cfg, or CP to 1"),
    Rule(LAUNCH + "skyrl-packing", Effect.FAILS, _unpacked_rows, programs=("skyrl",),
         message=PACKED,
         remedy="set trainer.use_sample_packing (today trainer.remove_microbatch_padding, in SFT "
         "remove_microbatch_padding) to true"),
    Rule(LAUNCH + "slime-gathered-rows", Effect.WRONG, _gathered_rows, programs=("megatron",),
         remedy="leave --allgather-cp out: only GLM-5 and DeepSeek-V3.2 divide rows like that; "
         "slime of August 2026 refuses it"),
    Rule(LAUNCH + "verl-padding", Effect.FAILS, _padded_rows, programs=("verl",),
         message=SIZED, or_message=PACKED,
         remedy="set model.use_remove_padding to True; lengths are then padded to TP x CP x 2"),
    Rule(LAUNCH + "verl-padding", RefusedBy.VERL, _padded_parts, programs=("verl",),
         message="When using sequence parallelism for actor/ref policy, you must enable",
         remedy="set actor_rollout_ref.model.use_remove_padding to True"),
    Rule(LAUNCH + "verl-dynamic", RefusedBy.VERL, _verl_dynamic, programs=("verl",),
         message="must be a positive integer", or_message="Dynamic CP currently supports",
         remedy="set the budget, use_remove_padding on; no virtual stages, no critic with it"),
    Rule(LAUNCH + "ulysses-heads", Effect.FAILS, _heads_of_parts, programs=("verl",),
         message="must be divisible by ulysses_sp_size",
         remedy="take a size that divides the query heads, and divides the key-value heads or is "
         "a multiple of them"),
    Rule(LAUNCH + "verl-loss-of-experts", Effect.DEPENDS, _forced_loss, programs=("verl",),
         remedy="take verl 0.9 or newer, or CP 1"),
    Rule(LAUNCH + "verl-budget", Effect.FAILS, _token_budget, programs=("verl",),
         message="max_token_len",
         remedy="raise the budget per GPU to the longest sample divided by CP"),
    Rule(LAUNCH + "llama-factory-packing", Effect.FAILS, _neat, programs=("llama-factory",),
         message="alignment",
         remedy="turn neat_packing and packing off, or set context_parallel_size to 1"),
    Rule(LAUNCH + "torchtitan-length", Effect.FAILS, _titan, programs=("torchtitan",),
         remedy="make training.seq_len a multiple of TP x 2 CP"),
    Rule(LAUNCH + "llama-factory-heads", Effect.FAILS, _few_groups, programs=("llama-factory",),
         remedy="take a cp_size that divides the key-value heads of the model"),
    Rule(LAUNCH + "torchtitan-model", Effect.FAILS, _titan_refuses, programs=("torchtitan",),
         message="Context Parallel is not",
         remedy="set parallelism.context_parallel_degree to 1, or take another model"),
    Rule(LAUNCH + "torchtitan-split", Effect.DEPENDS, _titan_split, programs=("torchtitan",),
         remedy="before torchtitan 0.3, models such as qwen3 fail like this; take TP 1, or 0.3"),
    Rule(LAUNCH + "mxfp8-blocks", Effect.DEPENDS, _blocks_of_32, programs=("ms-swift",),
         message="MXFP8 requires tensor dims that are divisible by 32",
         remedy="take ms-swift 4.6 or newer, or another fp8_recipe"),
    Rule(LAUNCH + "automodel-packs", Effect.DEPENDS, _packed_dense, programs=("automodel",),
         remedy="take NeMo Automodel 0.7 with the attention of Transformer Engine, or CP 1"),
)  # fmt: skip
