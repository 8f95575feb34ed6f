"""The conformance matrix: each case is a small training, a place in the table and its path."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ringproof.errors import InputError, shown

GPT = "pretrain_gpt.py"
HYBRID = "pretrain_hybrid.py"

BASE = (
    "--hidden-size 64 --num-attention-heads 4 --seq-length 128 --max-position-embeddings 128 "
    "--micro-batch-size 1 --global-batch-size 8 --lr 1e-3 --min-lr 1e-3 --normalization RMSNorm "
    "--swiglu --position-embedding-type rope --disable-bias-linear "
    "--untie-embeddings-and-output-weights --transformer-impl transformer_engine "
    "--make-vocab-size-divisible-by 128 --num-workers 0 --attention-dropout 0 --hidden-dropout 0 "
    "--log-interval 1 --eval-interval 1000 --eval-iters 1 --split 90,10,0"
)


@dataclass(frozen=True)
class Data:
    """Samples that a case trains on.

    Attributes:
        arguments: Options that select them; ``{folder}`` is where data files lie.
        reference: Options of the run on one rank only.
        conversations: Whether the files are conversations, which a stand-in of the packages
            ``datasets`` and ``transformers`` reads.
    """

    arguments: str
    reference: str = ""
    conversations: bool = False


_EXPERTS = (
    "--num-layers 2 --num-experts 4 --moe-router-topk 2 --moe-grouped-gemm "
    "--moe-token-dispatcher-type alltoall --moe-ffn-hidden-size 64"
)
MODELS = MappingProxyType({
    "dense": "--num-layers 2",
    "deep": "--num-layers 4",
    "gqa": "--num-layers 2 --group-query-attention --num-query-groups 2",
    "one-group": "--num-layers 2 --group-query-attention --num-query-groups 1",
    "window": "--num-layers 2 --window-size 32,0",
    "mla": "--num-layers 2 --multi-latent-attention --kv-lora-rank 16 --q-lora-rank 32 "
    "--qk-head-dim 16 --qk-pos-emb-head-dim 8 --v-head-dim 16 --no-rope-fusion",
    "moe": f"{_EXPERTS} --moe-router-load-balancing-type none",
    "moe-aux": f"{_EXPERTS} --moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 1e-2",
    "mtp": "--num-layers 2 --mtp-num-layers 1",
    "hybrid": "--hybrid-layer-pattern M*M- --mamba-state-dim 16 --mamba-head-dim 16 "
    "--mamba-num-groups 4 --mamba-num-heads 8",
})  # fmt: skip

_VARLEN = (
    '{"mode":"distribution","type":"lognormal","min_seq_len":8,"max_seq_len":128,'
    '"mean_seq_len":48,"lognormal_sigma":0.9}'
)
_MOCK = "--tokenizer-type NullTokenizer --vocab-size 255 --mock-data"
_PACKED = "--calculate-per-token-loss --null-tokenizer-pad-id 0"

DATA = MappingProxyType({
    "plain": Data(_MOCK),
    "per-token": Data(f"{_MOCK} --calculate-per-token-loss"),
    "varlen": Data(
        f"{_MOCK} {_PACKED} --use-varlen-dataset --varlen-mock-dataset-config-json {_VARLEN}",
        "--sequence-packing-scheduler dp_balanced --max-seqlen-per-dp-cp-rank 128",
    ),
    "sft-mock": Data(
        f"{_MOCK} {_PACKED} --sft --sft-mock-dataset-config-json {_VARLEN}",
        "--sequence-packing-scheduler dp_balanced --max-seqlen-per-dp-cp-rank 128",
    ),
    "sft": Data(
        "--no-create-attention-mask-in-dataloader "
        "--calculate-per-token-loss --sft --sft-tokenizer-prompt-format default "
        "--tokenizer-type SFTTokenizer --tokenizer-model rehearsal --vocab-size 255 "
        "--data-path {folder}/conversations.jsonl",
        conversations=True,
    ),
})  # fmt: skip

MEGATRON_FSDP = (
    "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params "
    "--ckpt-format fsdp_dtensor --no-gradient-accumulation-fusion --use-distributed-optimizer"
)
TORCH_FSDP = "--use-torch-fsdp2 --ckpt-format torch_dist --no-gradient-accumulation-fusion"
OVERLAPPED = "--overlap-grad-reduce --overlap-param-gather --use-distributed-optimizer"
DYNAMIC = (
    "--dynamic-context-parallel --sequence-packing-scheduler default_dynamic_cp "
    "--max-seqlen-per-dp-cp-rank 64"
)
BALANCED = "--sequence-packing-scheduler dp_balanced --max-seqlen-per-dp-cp-rank {share}"
HYBRID_CP = "--hybrid-context-parallel --max-seqlen-per-dp-cp-rank 64"
NO_RERUN = "--rerun-mode disabled"  # what it validates by default cannot hold hybrid CP's iterator


@dataclass(frozen=True)
class Case:
    """One training on several ranks, compared with the same training on one.

    Attributes:
        id: Name, for people and for ``--case``.
        group: Section of the table.
        model: Key of `MODELS`.
        data: Key of `DATA`.
        arguments: Options that the reference on one rank does not have.
        path: Attention paths that must be seen, as ``TYPE:SIZE`` or ``TYPE:SIZExSIZE``.
        both: Options that case and reference share.
        dtype: Dtype of the program, which decides what counts as equal.
        evaluates: Whether losses of evaluations are compared, too.
        connections: ``CUDA_DEVICE_MAX_CONNECTIONS``: FSDP asks for another value than TP and CP.
    """

    id: str
    group: str
    ranks: int
    arguments: str
    path: tuple[str, ...]
    model: str = "dense"
    data: str = "plain"
    both: str = ""
    dtype: str = "float32"
    evaluates: bool = False
    connections: int = 1

    @property
    def script(self) -> str:
        """Name of Megatron's program that trains the model."""
        return HYBRID if self.model == "hybrid" else GPT


def _cp(size: int, comm: str = "p2p") -> str:
    if comm == "a2a+p2p":
        return (
            f"--context-parallel-size {size} --cp-comm-type a2a+p2p "
            f"--hierarchical-context-parallel-sizes 2 {size // 2}"
        )
    return f"--context-parallel-size {size} --cp-comm-type {comm}"


def _static(
    name: str, ranks: int, size: int, comm: str = "p2p", *, data: str = "plain", more: str = "",
    **fields: Any,
) -> Case:  # fmt: skip
    path = f"{comm}:2x{size // 2}" if comm == "a2a+p2p" else f"{comm}:{size}"
    arguments = f"{_cp(size, comm)} {more}".strip()
    group = "static" if data in ("plain", "per-token") else "static packed"
    return Case(name, group, ranks, arguments, (path,), data=data, **fields)


TP2 = "--tensor-model-parallel-size 2"
SP = f"{TP2} --sequence-parallel"
PP2 = "--pipeline-model-parallel-size 2"
VPP2 = f"{PP2} --num-layers-per-virtual-pipeline-stage 1"
EP2 = "--expert-model-parallel-size 2"
FULL = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
EVAL = "--eval-interval 2"

STATIC = (
    _static("static-p2p-cp2", 2, 2),
    _static("static-p2p-cp4", 4, 4),
    _static("static-a2a-cp2", 2, 2, "a2a"),
    _static("static-all-gather-cp2", 2, 2, "all_gather"),
    _static("static-hcp-2x2", 4, 4, "a2a+p2p"),
    _static("static-p2p-gqa", 2, 2, model="gqa"),
    _static("static-hcp-gqa", 4, 4, "a2a+p2p", model="gqa"),
    _static("static-a2a-one-group", 2, 2, "a2a", model="one-group"),
    _static("static-p2p-window", 2, 2, model="window"),
    _static("static-a2a-window", 2, 2, "a2a", model="window"),
    _static("static-p2p-tp2", 4, 2, more=TP2),
    _static("static-p2p-tp2-sp", 4, 2, more=SP),
    _static("static-a2a-tp2-sp", 4, 2, "a2a", more=SP),
    _static("static-hcp-tp2-sp", 8, 4, "a2a+p2p", more=SP),
    _static("static-p2p-pp2", 4, 2, model="deep", more=PP2),
    _static("static-p2p-pp2-vpp2", 4, 2, model="deep", more=VPP2),
    _static("static-p2p-dp2", 4, 2),
    _static("static-p2p-dp2-distopt", 4, 2, more=OVERLAPPED),
    _static("static-p2p-moe-ep2", 2, 2, model="moe", more=EP2),
    _static("static-a2a-moe-ep2", 2, 2, "a2a", model="moe", more=EP2),
    _static("static-p2p-moe-aux-loss", 2, 2, model="moe-aux"),
    _static("static-p2p-mla", 2, 2, model="mla"),
    _static("static-a2a-mla", 2, 2, "a2a", model="mla"),
    _static("static-p2p-mtp", 2, 2, model="mtp"),
    _static("static-p2p-mtp-per-token", 2, 2, model="mtp", data="per-token"),
    _static("static-p2p-mamba", 2, 2, model="hybrid"),
    _static("static-a2a-mamba", 2, 2, "a2a", model="hybrid"),
    _static("static-p2p-mamba-tp2-sp", 4, 2, model="hybrid", more=SP),
    _static("static-p2p-recompute", 2, 2, more=FULL),
    _static("static-hcp-recompute", 4, 4, "a2a+p2p", more=FULL),
    _static("static-p2p-eval", 2, 2, both=EVAL, evaluates=True),
    _static("static-p2p-per-token", 4, 2, data="per-token"),
    _static("static-p2p-bf16", 2, 2, both="--bf16", dtype="bfloat16"),
    _static("static-p2p-megatron-fsdp", 4, 2, more=MEGATRON_FSDP, connections=8),
    _static("static-p2p-torch-fsdp2", 4, 2, more=TORCH_FSDP, connections=8),
    Case("static-hcp-without-sizes", "static", 4,
         "--context-parallel-size 4 --cp-comm-type a2a+p2p", ("a2a+p2p:2x2",)),
)  # fmt: skip

PACKED = (
    _static("sft-p2p-cp2", 2, 2, data="sft"),
    _static("sft-a2a-cp2", 2, 2, "a2a", data="sft"),
    _static("sft-all-gather-cp2", 2, 2, "all_gather", data="sft"),
    _static("sft-hcp-2x2", 4, 4, "a2a+p2p", data="sft"),
    _static("sft-p2p-tp2-sp", 4, 2, data="sft", more=SP),
    _static("sft-p2p-pp2", 4, 2, data="sft", model="deep", more=PP2),
    _static("sft-p2p-mamba", 2, 2, data="sft", model="hybrid"),
    *(
        _static(f"varlen-{name}", size, size, comm, data="varlen",
                more=BALANCED.format(share=128 // size))
        for name, size, comm in (
            ("p2p-cp2", 2, "p2p"), ("a2a-cp2", 2, "a2a"), ("all-gather-cp2", 2, "all_gather"),
            ("hcp-2x2", 4, "a2a+p2p"),
        )
    ),
    _static("varlen-p2p-mtp", 2, 2, data="varlen", model="mtp", more=BALANCED.format(share=64)),
    _static("varlen-p2p-mamba", 2, 2, data="varlen", model="hybrid",
            more=BALANCED.format(share=64)),
    _static("sft-mock-p2p-cp2", 2, 2, data="sft-mock", more=BALANCED.format(share=64)),
)  # fmt: skip


def _dynamic(
    name: str, ranks: int, *paths: str, data: str = "varlen", more: str = "", **fields: Any
) -> Case:
    arguments = f"{DYNAMIC} {more}".strip()
    path = paths or ("p2p:2",)
    return Case(f"dynamic-cp-{name}", "dynamic", ranks, arguments, path, data=data, **fields)


DYNAMIC_CASES = (
    _dynamic("2", 2),
    _dynamic("4", 4),
    _dynamic("4-of-cp2", 4, more=_cp(2)),
    _dynamic("min2", 4, "p2p:2", "p2p:4", more="--min-dynamic-context-parallel-size 2"),
    _dynamic("a2a", 4, "a2a:2", more="--cp-comm-type a2a"),
    _dynamic("a2a-of-cp2", 4, "a2a:2", more=_cp(2, "a2a")),
    _dynamic("all-gather-of-cp2", 4, "all_gather:2", more=_cp(2, "all_gather")),
    _dynamic("hcp-2x2", 4, "a2a+p2p:2x2", more=_cp(4, "a2a+p2p")),
    _dynamic("6", 6, "p2p:2", both="--global-batch-size 12"),
    _dynamic("tp2-sp", 4, more=SP),
    _dynamic("pp2", 4, model="deep", more=PP2),
    _dynamic("pp2-vpp2", 4, model="deep", more=VPP2),
    _dynamic("pp2-vpp2-16", 4, model="deep", more=VPP2, both="--global-batch-size 16"),
    _dynamic("distopt", 4, more=OVERLAPPED),
    _dynamic("recompute", 2, more=FULL),
    _dynamic("gqa", 4, model="gqa"),
    _dynamic("mla", 2, model="mla"),
    _dynamic("moe-ep2", 4, model="moe", more=EP2),
    _dynamic("moe-aux-loss", 2, model="moe-aux"),
    _dynamic("mtp", 2, model="mtp"),
    _dynamic("mamba", 2, model="hybrid"),
    _dynamic("eval", 2, both=EVAL, evaluates=True),
    _dynamic("pad-max", 4, more="--pad-packed-seq-alignment max"),
    _dynamic("sft-mock", 2, data="sft-mock"),
    _dynamic("bf16", 2, both="--bf16", dtype="bfloat16"),
    _dynamic("megatron-fsdp", 2, more=MEGATRON_FSDP, connections=8),
)  # fmt: skip


def _hybrid(name: str, ranks: int, more: str = "", **fields: Any) -> Case:
    arguments = f"{HYBRID_CP} {more}".strip()
    path = ("p2p:2",)
    return Case(f"hybrid-cp-{name}", "hybrid", ranks, arguments, path, data="sft", **fields)


HYBRID_CASES = (
    _hybrid("default-rerun", 2),
    _hybrid("2", 2, NO_RERUN),
    _hybrid("4", 4, NO_RERUN),
    _hybrid("4-of-cp2", 4, f"{NO_RERUN} {_cp(2)}"),
    _hybrid("tp2-sp", 4, f"{NO_RERUN} {SP}"),
    _hybrid("pp2", 4, f"{NO_RERUN} {PP2}", model="deep"),
    _hybrid("moe-ep2", 2, f"{NO_RERUN} {EP2}", model="moe"),
    _hybrid("mla", 2, NO_RERUN, model="mla"),
    _hybrid("eval", 2, NO_RERUN, both=EVAL, evaluates=True),
)

CASES = (*STATIC, *PACKED, *DYNAMIC_CASES, *HYBRID_CASES)


def chosen(ids: Iterable[str], groups: Iterable[str] = ()) -> tuple[Case, ...]:
    """Return the cases with these ids or of these groups, in the order of the matrix.

    Args:
        ids: Identifiers of cases.

    Raises:
        InputError: There is no such case or group.
    """
    wanted, sections = list(ids), list(groups)
    for option, given, known in (
        ("--case", wanted, {case.id for case in CASES}),
        ("--group", sections, {case.group for case in CASES}),
    ):
        for name in given:
            if name not in known:
                sentence = f"{shown(name)} does not exist; see ringproof conform --list"
                raise InputError(option, sentence)
    if not wanted and not sections:
        return CASES
    return tuple(case for case in CASES if case.id in wanted or case.group in sections)
