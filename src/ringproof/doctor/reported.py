"""Rules for faults that people reported and that no check of upstream names before the run.

Versions are those of the releases whose source was read: Megatron-LM 0.16.1, 0.17.1, 0.18.2 and
0.19.2, and Megatron-Bridge 0.3.1, 0.4.2, 0.5.1 and 0.6.2. The rules of ``pad_seq_to_mult`` and of
masks between documents rest on reports and on the answers of maintainers.
"""

from __future__ import annotations

import math
import re

from ringproof.doctor.facts import Facts
from ringproof.doctor.forms import PACK
from ringproof.doctor.frameworks import UNPADDED
from ringproof.doctor.rule import DCP, LAUNCH, Effect, RefusedBy, Rule
from ringproof.launch.shell.parse import whole_number
from ringproof.stack.products import BRIDGE, ENGINE, MEGATRON

CHAT_MULTIPLE = 16
"""Tokens to which Bridge before 0.4 pads conversations."""
SPARSE = ("megatron", "bridge", "nemo-rl", "skyrl")
"""Programs whose sparse attention is that of Megatron-LM: others bring their own."""


# -- Megatron-LM ----------------------------------------------------------------------------------


def _version_is(facts: Facts, since: str, before: str) -> bool:
    """Whether Megatron-LM's version is known and between two."""
    known = bool(facts.versions.get(MEGATRON))
    return known and facts.since(MEGATRON, since) and facts.before(MEGATRON, before)


def _delta_net(facts: Facts, since: str, before: str) -> object:
    variant = facts.text("experimental_attention_variant") == "gated_delta_net"
    wrong = variant and facts.cp > 1 and _version_is(facts, since, before)
    return wrong and f"Gated DeltaNet with CP {facts.cp} before 0.19"


def _delta_net_of_018(facts: Facts) -> object:
    # mcore-bridge, with which ms-swift trains, leaves the unknown argument out
    return facts.program != "ms-swift" and _delta_net(facts, "0.18", "0.19")


def _packs_lengths(facts: Facts) -> bool:
    """Whether packed sequences with their lengths reach the model."""
    if facts.program == "verl":
        return facts.exact(*UNPADDED).lower() == "true"
    if facts.program == "nemo-rl":
        return facts.switch("policy.sequence_packing.enabled")
    slime = facts.has("actor_num_nodes", "actor_num_gpus_per_node")
    return _packs(facts) or facts.on("sft") or slime


def _packed_delta_net(facts: Facts) -> object:
    variant = facts.text("experimental_attention_variant") == "gated_delta_net"
    wrong = variant and _packs_lengths(facts) and _version_is(facts, "0.0", "0.18")
    return wrong and "packed sequences with Gated DeltaNet before 0.18"


def _sparse(facts: Facts) -> bool:
    dsa = facts.text("experimental_attention_variant") == "dsa"
    return dsa and facts.cp > 1 and facts.program in SPARSE


def _sparse_ring(facts: Facts) -> object:
    return _sparse(facts) and _version_is(facts, "0.0", "0.19") and (
        f"sparse attention (dsa) with CP {facts.cp} before 0.19"
    )  # fmt: skip


def _sparse_gather(facts: Facts) -> object:
    gathers = all(kind.replace("_", "") == "allgather" for kind in facts.types)
    return _sparse(facts) and _version_is(facts, "0.19", "99") and not gathers and (
        f"sparse attention (dsa) with CP {facts.cp} and {', '.join(facts.types)}"
    )  # fmt: skip


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


def _end_padding(facts: Facts) -> object:
    """Packs whose end alone is padded, over a ring of an engine that does not see it."""
    packs = facts.program == "bridge" and facts.switch("dataset.pack_sequences_in_batch")
    return packs and facts.cp > 1 and "p2p" in facts.types and facts.before(ENGINE, "2.18") and (
        f"packs of a batch with CP {facts.cp} and p2p: Transformer Engine before 2.18 does not see "
        "padding after the last sequence"
    )  # fmt: skip


REPORTED: tuple[Rule, ...] = (
    Rule(LAUNCH + "gated-delta-net", RefusedBy.CONFIG, lambda f: _delta_net(f, "0.0", "0.18"),
         message="Gated delta net does not support context parallel",
         remedy="take Megatron-Core 0.19 or newer, or CP 1"),
    Rule(LAUNCH + "gated-delta-net", Effect.FAILS, _delta_net_of_018,
         message="got an unexpected keyword argument 'cp_comm_type'",
         remedy="take Megatron-Core 0.19 or newer, or CP 1"),
    Rule(LAUNCH + "packed-delta-net", Effect.FAILS, _packed_delta_net,
         message="GDN does not support packed sequence",
         remedy="take Megatron-Core 0.18 or newer (0.19 with CP), or do not pack"),
    Rule(LAUNCH + "sparse-attention", RefusedBy.CONFIG, _sparse_ring,
         message="Currently context parallelism is not supported by DSAttention",
         remedy="take Megatron-Core 0.19 or newer with cp_comm_type all_gather, or CP 1"),
    Rule(LAUNCH + "sparse-attention", RefusedBy.CONFIG, _sparse_gather,
         message="DSAttention context parallelism currently supports",
         remedy="set cp_comm_type to all_gather", repair={"cp_comm_type": "all_gather"}),
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
    Rule(LAUNCH + "fp8-packed", Effect.FAILS, _fp8_packed,
         message="No dot product attention backend is available",
         remedy="leave fp8_dot_product_attention out: the layers stay in FP8",
         repair={"fp8_dot_product_attention": None}),
    Rule(LAUNCH + "fp8-rows", Effect.FAILS, _fp8_rows,
         message="FP8 execution requires",
         remedy="make the tokens of a rank (seq_length / CP / TP) a multiple of 16, 32 for MXFP8"),
    Rule(LAUNCH + "bridge-packed-stages", Effect.WRONG, _bridge_stages, version_of=BRIDGE,
         remedy="take Bridge 0.5.0 or newer, or at most PP 2"),
    Rule(DCP + "end-padding-unseen", Effect.WRONG, _end_padding, version_of=ENGINE,
         remedy="take Transformer Engine 2.18 or newer, or cp_comm_type a2a"),
    Rule(LAUNCH + "bridge-pack-multiple", Effect.FAILS, _bridge_multiple,
         remedy="set pad_seq_to_mult to lcm(2 x CP, CP x TP), and pack the data again"),
    Rule(LAUNCH + "bridge-chat-padding", Effect.FAILS, _chat, version_of=BRIDGE,
         message="not divisible by",
         remedy="set dataset_kwargs.pad_to_max_length to true, take a CP up to 8, or Bridge 0.4"),
)  # fmt: skip
