"""Rules for faults that people reported and that no check of upstream names before the run.

Versions are those of the releases whose source was read: Megatron-LM 0.16.1, 0.17.1, 0.18.2 and
0.19.2, Megatron-Bridge 0.3.1, 0.4.2, 0.5.1 and 0.6.2, and verl 0.8.0 and 0.9.1. The rules of
LLaMA-Factory, torchtitan and NeMo-RL, of ``pad_seq_to_mult`` and of masks between documents rest on
reports and on the answers of maintainers.
"""

from __future__ import annotations

import math
import re

from ringproof.doctor.facts import Facts
from ringproof.doctor.recipes import PACK, finetunes, sets_loss
from ringproof.doctor.rule import LAUNCH, Effect, RefusedBy, Rule
from ringproof.doctor.settings import FALSE
from ringproof.launch.shell.parse import whole_number
from ringproof.stack.products import BRIDGE, MEGATRON

CHAT_MULTIPLE = 16
"""Tokens to which Bridge before 0.4 pads conversations."""
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


# -- Megatron-LM ----------------------------------------------------------------------------------


def _version_is(facts: Facts, since: str, before: str) -> bool:
    """Whether Megatron-LM's version is known and between two."""
    known = bool(facts.versions.get(MEGATRON))
    return known and facts.since(MEGATRON, since) and facts.before(MEGATRON, before)


def _delta_net(facts: Facts, since: str, before: str) -> object:
    variant = facts.text("experimental_attention_variant") == "gated_delta_net"
    wrong = variant and facts.cp > 1 and _version_is(facts, since, before)
    return wrong and f"Gated DeltaNet with CP {facts.cp} before 0.19"


def _stages_without_lengths(facts: Facts) -> object:
    packed = facts.megatron and facts.on("sft")
    wrong = packed and facts.pp > 2 and _version_is(facts, "0.15", "0.17")
    return wrong and f"packed conversations over PP {facts.pp}: middle stages get no lengths"


def _lengths_of_one_rank(facts: Facts) -> object:
    packed = facts.megatron and facts.on("sft") and facts.tp > 1 and facts.pp > 1
    wrong = packed and _version_is(facts, "0.17", "0.18")
    return wrong and (
        f"packed conversations over TP {facts.tp} and PP {facts.pp}: "
        "only the first stage's TP ranks all get the lengths"
    )


def _masked(facts: Facts) -> object:
    names = [name for name in ("sft", "eod_mask_loss") if facts.on(name)]
    wrong = facts.megatron and facts.cp > 1 and names and not facts.per_token_loss
    says = f"{', '.join(map(facts.written, names))} with CP {facts.cp} and a loss per rank"
    return wrong and not facts.checked_as_dynamic and (
        f"{says}: each CP rank divides by its own number of tokens, which masks make different"
    )  # fmt: skip


def _small_auxiliary_loss(facts: Facts) -> object:
    coefficient = facts.text("moe_aux_loss_coeff", "0")
    factor = facts.split * facts.cp
    kinds = facts.values.get("moe_router_load_balancing_type", ("aux_loss",))
    balances = any("aux_loss" in kind for kind in kinds)  # "none" is a value here
    on = balances and facts.experts > 0 and facts.per_token_loss
    on = on and not re.fullmatch(r"[0.]*", coefficient)
    wrong = on and factor > 1 and _version_is(facts, "0.0", "0.19")
    return wrong and (
        f"the auxiliary loss of the router is {factor} times too small with a loss per token"
    )


def _causal_only(facts: Facts) -> object:
    wrong = facts.megatron and facts.on("reset_attention_mask") and facts.cp > 1
    fused = facts.text("transformer_impl", "transformer_engine") != "local"
    return wrong and fused and (
        f"{facts.written('reset_attention_mask')} with CP {facts.cp}: attention is causal over the "
        "whole sample, across documents"
    )  # fmt: skip


def _documents(facts: Facts, kind: str) -> object:
    name = "dataloader_inter_document_masking"
    wrong = facts.megatron and facts.on(name) and facts.cp > 1 and kind in facts.types
    return wrong and f"{facts.written(name)} with CP {facts.cp} and {kind}"


def _second_fsdp(facts: Facts) -> object:
    second = facts.on("use_megatron_fsdp") and facts.text("megatron_fsdp_version") == "2"
    sizes = {"TP": facts.tp, "PP": facts.pp, "CP": facts.cp}
    given = [f"{name} {size}" for name, size in sizes.items() if size > 1]
    return second and given and f"Megatron-FSDP version 2 with {', '.join(given)}"


def _fp8_packed(facts: Facts) -> object:
    fp8 = facts.on("fp8_dot_product_attention") and facts.cp > 1
    return fp8 and (_packs(facts) or facts.packed_data or facts.scheduler) and (
        f"FP8 attention of packed sequences with CP {facts.cp}"
    )  # fmt: skip


def _fp8_rows(facts: Facts) -> object:
    fp8 = facts.on("fp8_format") or facts.on("fp8")
    if not fp8 or not facts.length or facts.cp * facts.split == 1:
        return ""
    rows = facts.length * facts.number("micro_batch_size", 1) / (facts.cp * facts.split)
    wrong = rows % 8
    return wrong and f"FP8 with {rows:g} rows on a rank, which 8 does not divide"


# -- Megatron-Bridge ------------------------------------------------------------------------------


def _packs(facts: Facts) -> bool:
    return facts.program == "bridge" and facts.whole(*PACK) > 0


def _bridge_stages(facts: Facts) -> object:
    wrong = _packs(facts) and facts.pp > 2 and facts.before(BRIDGE, "0.5.0")
    return wrong and (
        f"packed sequences over PP {facts.pp}: before Bridge 0.5.0 middle stages get no lengths "
        "and attend across documents"
    )


def _bridge_multiple(facts: Facts) -> object:
    given = facts.entry("pad_seq_to_mult")
    needed = _pack_multiple(facts)
    size = whole_number(given)
    wrong = facts.program == "bridge" and size is not None and needed > 1 and size % needed
    return wrong and f"pad_seq_to_mult is {given}, and CP and TP need a multiple of {needed}"


def _pack_multiple(facts: Facts) -> int:
    """Tokens that have to divide each packed sequence."""
    ring = 2 * facts.cp if facts.cp > 1 else 1
    return math.lcm(ring, facts.cp * facts.split)


def _chat(facts: Facts) -> object:
    chat = facts.program == "bridge" and facts.switch("dataset_kwargs.chat", "dataset.chat")
    padded = facts.switch("pad_to_max_length", "dataset_kwargs.pad_to_max_length")
    needed = _pack_multiple(facts)
    wrong = chat and not padded and CHAT_MULTIPLE % needed and facts.before(BRIDGE, "0.4.0")
    return wrong and (
        f"conversations are padded to {CHAT_MULTIPLE} before Bridge 0.4, "
        f"and CP {facts.cp} needs a multiple of {needed}"
    )


def _bridge_loss(facts: Facts) -> object:
    wrong = finetunes(facts) and facts.cp > 1 and sets_loss(facts.entry("recipe")) is False
    return wrong and not facts.on("calculate_per_token_loss") and (
        f"fine-tuning with CP {facts.cp} and without calculate_per_token_loss"
    )  # fmt: skip


def _bridge_average(facts: Facts) -> object:
    wrong = finetunes(facts) and facts.cp > 1 and facts.on("average_in_collective")
    return wrong and f"fine-tuning with CP {facts.cp} and ddp.average_in_collective"


def _evaluation_size(facts: Facts) -> object:
    size = facts.whole("dist.eval_context_parallel_size")
    if facts.program != "bridge" or size < 1:
        return ""
    if facts.length % (2 * size) and size > 1:
        return f"seq_length {facts.length} is no multiple of 2 x eval CP = {2 * size}"
    product = facts.tp * facts.pp * size
    wrong = facts.ranks is not None and facts.ranks % product
    return wrong and f"{facts.ranks} ranks are not divisible by TP x PP x eval CP = {product}"


# -- reinforcement learning -----------------------------------------------------------------------


def _section(facts: Facts) -> str:
    """The part of a configuration of NeMo-RL that trains."""
    return "megatron_cfg" if facts.switch("policy.megatron_cfg.enabled") else "dtensor_cfg"


def _policy_multiple(facts: Facts) -> int:
    """What NeMo-RL's sequences have to be a multiple of."""
    section = f"policy.{_section(facts)}."
    cp = facts.whole(f"{section}context_parallel_size", default=1)
    names = (f"{section}tensor_model_parallel_size", f"{section}tensor_parallel_size")
    tp = facts.whole(*names, default=1)
    fp8 = facts.switch(f"{section}fp8_cfg.enabled")
    needed = tp * (2 * cp if cp > 1 else 1)
    return math.lcm(needed, FP8_ROWS * tp * cp) if fp8 else needed


def _policy_padding(facts: Facts) -> object:
    given, needed = facts.entry(f"policy.{PADDED}"), _policy_multiple(facts)
    fp8 = facts.switch("megatron_cfg.fp8_cfg.enabled")
    splits = facts.switch(f"{_section(facts)}.sequence_parallel") or fp8
    splits = splits or facts.whole(f"{_section(facts)}.context_parallel_size") > 1
    size = whole_number(given)
    wrong = size is not None and splits and size % needed
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


def _longest(facts: Facts) -> int:
    """Tokens of the longest sample that verl keeps."""
    if facts.entry("data.max_length"):
        return facts.whole("data.max_length")
    lengths = (facts.whole("data.max_prompt_length"), facts.whole("data.max_response_length"))
    return sum(lengths) if all(lengths) else 0


def _token_budget(facts: Facts) -> object:
    budget, longest = facts.whole(*BUDGETS), _longest(facts)
    on = facts.exact(*DYNAMIC) not in ("", *FALSE) and not facts.on("dynamic_context_parallel")
    parts = max(facts.cp, whole_number(facts.exact(*ULYSSES)) or 1)
    wrong = on and budget and longest > budget * parts
    says = f"a budget of {budget} tokens x CP {parts} < {longest} of the longest sample"
    return wrong and says


def _verl_dynamic(facts: Facts) -> object:
    if not facts.on("dynamic_context_parallel"):
        return ""
    found = []
    if not facts.budget:
        found.append("no max_seqlen_per_dp_cp_rank")
    if facts.exact(*UNPADDED).lower() == "false":
        found.append("use_remove_padding off")
    if facts.virtual:
        found.append("virtual pipeline stages")
    return found and f"Dynamic CP with {', '.join(found)}"


def _verl_critic(facts: Facts) -> object:
    on = facts.switch("critic.megatron.dynamic_context_parallel")
    return on and "Dynamic CP of a critic, which is a value model"


# -- others ---------------------------------------------------------------------------------------


def _neat(facts: Facts) -> object:
    packed = [name for name in ("neat_packing", "packing") if facts.switch(name)]
    return packed and facts.cp > 1 and (
        f"{', '.join(packed)} with CP {facts.cp}: sub-sequences are not padded to "
        f"2 x CP = {2 * facts.cp}"
    )  # fmt: skip


def _titan(facts: Facts) -> object:
    length, multiple = facts.whole("training.seq_len"), facts.tp * 2 * facts.cp
    wrong = facts.cp > 1 and length % multiple
    return wrong and f"training.seq_len {length} is no multiple of TP x 2 CP = {multiple}"


REPORTED: tuple[Rule, ...] = (
    Rule(LAUNCH + "gated-delta-net", RefusedBy.CONFIG, lambda f: _delta_net(f, "0.0", "0.18"),
         message="Gated delta net does not support context parallel",
         remedy="take Megatron-Core 0.19 or newer, or CP 1"),
    Rule(LAUNCH + "gated-delta-net", Effect.FAILS, lambda f: _delta_net(f, "0.18", "0.19"),
         message="got an unexpected keyword argument 'cp_comm_type'",
         remedy="take Megatron-Core 0.19 or newer, or CP 1"),
    Rule(LAUNCH + "packed-stages", Effect.WRONG, _stages_without_lengths,
         remedy="take Megatron-LM 0.18 or newer, or at most PP 2"),
    Rule(LAUNCH + "packed-stages", Effect.FAILS, _lengths_of_one_rank,
         message="Tensors must have same number of dimensions",
         remedy="take Megatron-LM 0.18 or newer, or TP 1, or PP 1"),
    Rule(LAUNCH + "masked-loss", Effect.WRONG, _masked,
         remedy="give --calculate-per-token-loss", repair={"calculate_per_token_loss": ""}),
    Rule(LAUNCH + "auxiliary-loss", Effect.WRONG, _small_auxiliary_loss,
         remedy="take Megatron-Core 0.19 or newer, or multiply moe_aux_loss_coeff by that factor"),
    Rule(LAUNCH + "reset-attention-mask", Effect.IDLE, _causal_only,
         remedy="for separate documents take packed samples: --dataloader-inter-document-masking "
         "with --cp-comm-type a2a (0.19 and main), or a data set with lengths"),
    Rule(LAUNCH + "inter-document-masking", Effect.FAILS, lambda f: _documents(f, "p2p"),
         message="", remedy="take cp_comm_type a2a, where CP divides the heads"),
    Rule(LAUNCH + "inter-document-masking", Effect.WRONG, lambda f: _documents(f, "all_gather"),
         remedy="take cp_comm_type a2a, where CP divides the heads"),
    Rule(LAUNCH + "second-fsdp", Effect.FAILS, _second_fsdp,
         message="MFSDP v2 does not currently support",
         remedy="take --megatron-fsdp-version 1, or a later main",
         repair={"megatron_fsdp_version": "1"}),
    Rule(LAUNCH + "fp8-packed", Effect.FAILS, _fp8_packed,
         message="No dot product attention backend is available",
         remedy="leave fp8_dot_product_attention out: the layers stay in FP8",
         repair={"fp8_dot_product_attention": None}),
    Rule(LAUNCH + "fp8-rows", Effect.FAILS, _fp8_rows,
         message="FP8 execution requires",
         remedy="make the tokens of a rank (seq_length / CP / TP) a multiple of 16, 32 for MXFP8"),
    Rule(LAUNCH + "bridge-packed-stages", Effect.WRONG, _bridge_stages,
         remedy="take Bridge 0.5.0 or newer, or at most PP 2"),
    Rule(LAUNCH + "bridge-pack-multiple", Effect.FAILS, _bridge_multiple,
         remedy="set pad_seq_to_mult to lcm(2 x CP, CP x TP), and pack the data again"),
    Rule(LAUNCH + "bridge-chat-padding", Effect.FAILS, _chat,
         message="not divisible by",
         remedy="set dataset_kwargs.pad_to_max_length to true, take a CP up to 8, or Bridge 0.4"),
    Rule(LAUNCH + "bridge-finetuning", RefusedBy.BRIDGE, _bridge_loss,
         message="When finetuning with CP>1, calculate_per_token_loss",
         remedy="set model.calculate_per_token_loss and unset ddp.average_in_collective",
         repair={"calculate_per_token_loss": "true"}),
    Rule(LAUNCH + "bridge-finetuning", RefusedBy.BRIDGE, _bridge_average,
         message="When finetuning with CP>1, average_in_collective",
         remedy="set ddp.average_in_collective to false",
         repair={"average_in_collective": "false"}),
    Rule(LAUNCH + "bridge-evaluation", RefusedBy.BRIDGE, _evaluation_size,
         remedy="take an eval_context_parallel_size that divides ranks and length"),
    Rule(LAUNCH + "nemo-rl-padding", Effect.FAILS, _policy_padding, programs=("nemo-rl",),
         message=SIZED, or_message="FP8 execution requires",
         remedy=f"set policy.{PADDED} to TP x CP x 2 (CP above 1) or TP; with FP8 to 16 x TP x CP"),
    Rule(LAUNCH + "nemo-rl-packing", Effect.FAILS, _policy_packing, programs=("nemo-rl",),
         remedy="set policy.sequence_packing.enabled to true"),
    Rule(LAUNCH + "verl-padding", Effect.FAILS, _padded_rows, programs=("verl",),
         message=SIZED,
         remedy="set model.use_remove_padding to True; lengths are then padded to TP x CP x 2"),
    Rule(LAUNCH + "verl-budget", Effect.FAILS, _token_budget, programs=("verl",),
         message="max_token_len",
         remedy="raise the budget per GPU to the longest sample divided by CP"),
    Rule(LAUNCH + "verl-dynamic", RefusedBy.VERL, _verl_dynamic, programs=("verl",),
         message="dynamic",
         remedy="set the budget, keep use_remove_padding on, and leave virtual stages out"),
    Rule(LAUNCH + "verl-critic", RefusedBy.VERL, _verl_critic, programs=("verl",),
         message="Dynamic CP currently supports language models only",
         remedy="leave critic.megatron.dynamic_context_parallel out"),
    Rule(LAUNCH + "llama-factory-packing", Effect.FAILS, _neat, programs=("llama-factory",),
         message="alignment",
         remedy="turn neat_packing and packing off, or set context_parallel_size to 1"),
    Rule(LAUNCH + "torchtitan-length", Effect.FAILS, _titan, programs=("torchtitan",),
         remedy="make training.seq_len a multiple of TP x 2 CP"),
)  # fmt: skip
