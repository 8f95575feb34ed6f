"""Models and data that conformance cases train: command lines of Megatron's own programs."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

SEQUENCE_TOKENS = 128
PER_RANK_TOKENS = 64  # of dynamic and hybrid CP: a sequence of 128 tokens needs 2 ranks
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
class Model:
    """A model that a case trains.

    Attributes:
        arguments: Options that describe it.
        script: Megatron's program that trains it.
    """

    arguments: str
    script: str = GPT


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


MODELS = MappingProxyType({
    "dense": Model("--num-layers 2"),
    "deep": Model("--num-layers 4"),
    "gqa": Model("--num-layers 2 --group-query-attention --num-query-groups 2"),
    "one-group": Model("--num-layers 2 --group-query-attention --num-query-groups 1"),
    "window": Model("--num-layers 2 --window-size 32,0"),
    "mla": Model(
        "--num-layers 2 --multi-latent-attention --kv-lora-rank 16 --q-lora-rank 32 "
        "--qk-head-dim 16 --qk-pos-emb-head-dim 8 --v-head-dim 16 --no-rope-fusion"
    ),
    "moe": Model(
        "--num-layers 2 --num-experts 4 --moe-router-topk 2 --moe-grouped-gemm "
        "--moe-router-load-balancing-type none --moe-token-dispatcher-type alltoall "
        "--moe-ffn-hidden-size 64"
    ),
    "moe-aux": Model(
        "--num-layers 2 --num-experts 4 --moe-router-topk 2 --moe-grouped-gemm "
        "--moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 1e-2 "
        "--moe-token-dispatcher-type alltoall --moe-ffn-hidden-size 64"
    ),
    "mtp": Model("--num-layers 2 --mtp-num-layers 1"),
    "hybrid": Model(
        "--hybrid-layer-pattern M*M- --mamba-state-dim 16 --mamba-head-dim 16 "
        "--mamba-num-groups 4 --mamba-num-heads 8",
        HYBRID,
    ),
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
