"""The shape of a model: the weights a token is multiplied with, and the bytes attention moves.

Sources of the presets: the ``config.json`` published with each model (huggingface.co, the folder
named in the table) and, for the hybrid and the example, NVIDIA's recipes.

    preset              published in
    llama3-8b           meta-llama/Meta-Llama-3-8B
    llama3-70b          meta-llama/Meta-Llama-3-70B
    qwen3-30b-a3b       Qwen/Qwen3-30B-A3B (128 experts of width 768, 8 per token)
    deepseek-v3         deepseek-ai/DeepSeek-V3 (3 dense layers of 18432; 58 with 8 routed and one
                        shared expert of 2048 per token, which is 18432 again); arXiv 2412.19437
    moonlight-16b-a3b   moonshotai/Moonlight-16B-A3B (one dense layer of 11264; 26 with 6 routed
                        and 2 shared experts of 1408 per token, 11264 again); arXiv 2502.16982
    nemotron-h-8b       nvidia/Nemotron-H-8B-Base-8K; Megatron-Bridge's recipe of the same name:
                        52 layers, of which 24 Mamba-2, 24 MLP and 4 attention; arXiv 2504.03624
    dcp-example         ``examples/dynamic_context_parallel/benchmark_dcp.sh`` of Megatron-LM's dev
                        branch; what it leaves out is Megatron-LM's default (no gate, as many
                        key/value heads as heads, learned positions, tied embedding)
"""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Annotated

from pydantic import Field, StrictBool, StrictStr
from pydantic.dataclasses import dataclass

from ringproof.errors import InputError
from ringproof.reference.planning.forms import CLOSED

ITEM_BYTES = 2
"""bf16."""
_MOST = 10**15
_Count = Annotated[int, Field(ge=1, le=_MOST, strict=True)]
_OrNone = Annotated[int, Field(ge=0, le=_MOST, strict=True)]


@dataclass(frozen=True, config=CLOSED)
class ModelShape:
    """A model, as far as its time per token depends on it.

    Attributes:
        name: Name for messages.
        parameters: All weights, experts that a token does not visit included; their gradients
            are what the gradient reduction moves.
        layers: All layers: what is launched one after the other.
        hidden: Width of the residual stream.
        heads, kv_heads: Query heads, and heads of keys and values (under MLA as many as heads:
            they are expanded before they are exchanged).
        head_dim: Width of a head of q and k, the part with rotary positions included.
        v_head_dim: Width of a head of v and of the output; `head_dim` where not given.
        ffn: Width of the feed-forward active for a token: of all experts it visits and the
            shared ones together.
        gated: Whether the feed-forward has a gate (three matrices instead of two).
        vocabulary: Rows of the output head.
        attention_layers, ffn_layers: How many layers have attention, and a feed-forward; all
            where not given.
        q_lora_rank: MLA: width of the compressed query; 0 for none.
        kv_lora_rank: MLA: width of the compressed keys and values; 0 for plain attention.
        rope_head_dim: MLA: the part of `head_dim` with rotary positions, shared by all heads.
        recurrent_layers: Layers of another kind (Mamba).
        recurrent_weights: Weights each of them multiplies a token with.
        experts: Experts of a layer that has them; 0 for none.

    Raises:
        InputError: A size out of range, or one that contradicts another.
    """

    name: StrictStr
    parameters: _Count
    layers: _Count
    hidden: _Count
    heads: _Count
    kv_heads: _Count
    head_dim: _Count
    ffn: _Count
    vocabulary: _OrNone
    _: KW_ONLY
    v_head_dim: _OrNone = 0
    gated: StrictBool = True
    attention_layers: _OrNone = 0
    ffn_layers: _OrNone = 0
    q_lora_rank: _OrNone = 0
    kv_lora_rank: _OrNone = 0
    rope_head_dim: _OrNone = 0
    recurrent_layers: _OrNone = 0
    recurrent_weights: _OrNone = 0
    experts: _OrNone = 0

    def __post_init__(self) -> None:
        defaults = {"v_head_dim": "head_dim", "attention_layers": "layers", "ffn_layers": "layers"}
        for name, other in defaults.items():
            if not getattr(self, name):
                object.__setattr__(self, name, getattr(self, other))
        for name in ("attention_layers", "ffn_layers", "recurrent_layers"):
            if getattr(self, name) > self.layers:
                problem = f"{getattr(self, name)} is more than the {self.layers} layers"
                raise InputError(f"model.{name}", f"{problem}; correct it")
        if self.heads % self.kv_heads:
            problem = f"{self.kv_heads} does not divide the {self.heads} heads"
            raise InputError("model.kv_heads", f"{problem}; correct it")
        if self.rope_head_dim > self.head_dim:
            problem = f"{self.rope_head_dim} is more than the head dimension {self.head_dim}"
            raise InputError("model.rope_head_dim", f"{problem}, of which it is a part; correct it")

    @property
    def attention_weights(self) -> int:
        """Weights of one attention layer's projections."""
        out = self.heads * self.v_head_dim * self.hidden
        query_width = self.heads * self.head_dim
        query = self.hidden * query_width
        if self.q_lora_rank:
            query = (self.hidden + query_width) * self.q_lora_rank
        if not self.kv_lora_rank:
            kv = self.hidden * self.kv_heads * (self.head_dim + self.v_head_dim)
            return query + kv + out
        expanded = self.heads * (self.head_dim - self.rope_head_dim + self.v_head_dim)
        kv = self.hidden * (self.kv_lora_rank + self.rope_head_dim) + self.kv_lora_rank * expanded
        return query + kv + out

    @property
    def layer_weights(self) -> int:
        """Weights that a token meets in all layers."""
        matrices = 3 if self.gated else 2
        return (
            self.attention_layers * self.attention_weights
            + self.ffn_layers * matrices * self.hidden * self.ffn
            + self.recurrent_layers * self.recurrent_weights
        )

    @property
    def layer_flops_per_token(self) -> int:
        """Forward, all layers, attention itself left out: one multiplication and one addition
        per weight."""
        return 2 * self.layer_weights

    @property
    def head_flops_per_token(self) -> int:
        """Forward, output head."""
        return 2 * self.hidden * self.vocabulary

    @property
    def q_bytes_per_token(self) -> int:
        """Queries of one layer, all heads, in bf16."""
        return self.heads * self.head_dim * ITEM_BYTES

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values together."""
        return self.kv_heads * (self.head_dim + self.v_head_dim) * ITEM_BYTES

    @property
    def out_bytes_per_token(self) -> int:
        """The output of attention, before its projection."""
        return self.heads * self.v_head_dim * ITEM_BYTES


# name, parameters, layers, hidden, heads, kv_heads, head_dim, ffn, vocabulary
LLAMA3_8B = ModelShape("llama3-8b", 8_030_261_248, 32, 4096, 32, 8, 128, 14336, 128256)
LLAMA3_70B = ModelShape("llama3-70b", 70_553_706_496, 80, 8192, 64, 8, 128, 28672, 128256)
QWEN3_30B_A3B = ModelShape(
    *("qwen3-30b-a3b", 30_532_122_624, 48, 2048, 32, 4, 128, 8 * 768, 151936),
    experts=128,
)
DEEPSEEK_V3 = ModelShape(
    *("deepseek-v3", 671_026_419_200, 61, 7168, 128, 128, 128 + 64, (8 + 1) * 2048, 129280),
    v_head_dim=128,
    q_lora_rank=1536,
    kv_lora_rank=512,
    rope_head_dim=64,
    experts=256,
)
MOONLIGHT_16B_A3B = ModelShape(
    *("moonlight-16b-a3b", 15_960_111_936, 27, 2048, 16, 16, 128 + 64, (6 + 2) * 1408, 163840),
    v_head_dim=128,
    kv_lora_rank=512,
    rope_head_dim=64,
    experts=64,
)
# In: gate, input, B, C (8 groups of state 128) and 128 time steps; out: 128 heads of 64.
NEMOTRON_H_8B = ModelShape(
    *("nemotron-h-8b", 8_100_852_736, 52, 4096, 32, 8, 128, 21504, 131072),
    gated=False,
    attention_layers=4,
    ffn_layers=24,
    recurrent_layers=24,
    recurrent_weights=4096 * (2 * 8192 + 2 * 8 * 128 + 128) + 8192 * 4096,
)
DCP_EXAMPLE = ModelShape(
    *("dcp-example", 889_516_032, 12, 2048, 16, 16, 128, 8192, 131072), gated=False
)
SHAPES = (
    LLAMA3_8B,
    LLAMA3_70B,
    QWEN3_30B_A3B,
    DEEPSEEK_V3,
    MOONLIGHT_16B_A3B,
    NEMOTRON_H_8B,
    DCP_EXAMPLE,
)
