"""What a model is made of, and the presets: tiny, but with every part of the real one."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

from ringproof.errors import InputError

MIXERS = ("attention", "latent", "mamba")
FEED_FORWARDS = ("swiglu", "squared-relu", "experts")
ATTENTIONS = ("attention", "latent")
SHAPES = ("attention", "latent", "mamba", "experts")  # parts with a shape of their own


Shape = TypeVar("Shape")


@dataclass(frozen=True)
class LayerKind:
    """One layer: a mixer over rows, a feed-forward on each row, or both in this order.

    Args:
        mixer: ``attention`` (GQA), ``latent`` (MLA), ``mamba`` (Mamba-2), or ``None``.
        feed_forward: ``swiglu``, ``squared-relu``, ``experts`` (MoE), or ``None``.
    """

    mixer: str | None
    feed_forward: str | None


@dataclass(frozen=True, kw_only=True)
class AttentionShape:
    """GQA.

    Args:
        heads: Query heads.
        kv_heads: Key/value heads; divides ``heads``.
        head_width: Of queries, keys and values.
        normalise: RMS norm of queries and keys, per head (Qwen3).
        rotary: Whether positions are encoded (Nemotron-H's attention has none).

    Raises:
        InputError: Heads that cannot be grouped, or a width of which no pairs can be turned.
    """

    heads: int
    kv_heads: int
    head_width: int
    normalise: bool = False
    rotary: bool = True

    def __post_init__(self) -> None:
        if self.kv_heads < 1 or self.heads % self.kv_heads:
            problem = f"does not divide {self.heads} query heads"
            raise InputError("kv_heads", self.kv_heads, problem, "choose a divisor")
        if self.rotary and self.head_width % 2:
            raise InputError("head_width", self.head_width, "is odd", "RoPE turns pairs")


@dataclass(frozen=True, kw_only=True)
class LatentShape:
    """MLA with decoupled RoPE (DeepSeek-V2; Moonlight compresses no queries).

    Args:
        heads: Query heads, as many as key/value heads.
        latent_width: Of the compressed keys and values.
        content_width: Of queries and keys, the part without position.
        rotary_width: Of queries and keys, the part with it; its key is shared by all heads.
        value_width: Of values.
    """

    heads: int
    latent_width: int
    content_width: int
    rotary_width: int
    value_width: int


@dataclass(frozen=True, kw_only=True)
class MambaShape:
    """Mamba-2 (arXiv 2405.21060).

    Args:
        heads: SSM heads.
        head_width: Channels of a head.
        state_width: SSM state of a channel.
        groups: Groups of heads that share B and C; divides ``heads``.
        convolution: Taps of the causal convolution.
    """

    heads: int
    head_width: int
    state_width: int
    groups: int
    convolution: int = 4


@dataclass(frozen=True, kw_only=True)
class ExpertsShape:
    """Mixture of experts.

    Args:
        experts: Routed experts.
        chosen: Of them for each token (top-k).
        width: Hidden width of one expert.
        shared_width: Hidden width of the shared expert.
        score: How the router rates experts, ``softmax`` or ``sigmoid``.
        scale: Of the routed experts' sum (``routed_scaling_factor``).
        auxiliary: Coefficient of the balance loss.
    """

    experts: int
    chosen: int
    width: int
    shared_width: int
    score: str = "softmax"
    scale: float = 1.0
    auxiliary: float = 1e-3


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A model.

    Args:
        name: For messages and logs.
        hidden: Width of the residual stream.
        feed_forward: Hidden width of a dense feed-forward.
        layers: In order.
        attention, latent, mamba, experts: Shapes of the parts that occur.
        vocabulary: Bytes.
        rotary_base: Of RoPE's frequencies.
        norm_epsilon: Of RMS norms.
        mtp_depths: Tokens predicted beyond the next (multi-token prediction).
        mtp_weight: Weight of their mean loss.
        tied: Whether the output head is the embedding.

    Raises:
        InputError: No layer, an unknown part, or a part without a shape.
    """

    name: str
    hidden: int
    feed_forward: int
    layers: tuple[LayerKind, ...]
    attention: AttentionShape | None = None
    latent: LatentShape | None = None
    mamba: MambaShape | None = None
    experts: ExpertsShape | None = None
    vocabulary: int = 256
    rotary_base: float = 10_000.0
    norm_epsilon: float = 1e-6
    mtp_depths: int = 0
    mtp_weight: float = 0.3
    tied: bool = False

    def __post_init__(self) -> None:
        if not self.layers:
            raise InputError("layers", self.layers, "there is none", "give one")
        for kind in self.layers:
            for part, known in ((kind.mixer, MIXERS), (kind.feed_forward, FEED_FORWARDS)):
                if part is not None and part not in known:
                    raise InputError("layers", part, "unknown part", f"use {', '.join(known)}")
                if part in SHAPES:
                    required(getattr(self, part), part)
        if self.mtp_depths < 0:
            raise InputError("mtp_depths", self.mtp_depths, "below 0", "give 0 or more")

    @property
    def mtp_layer(self) -> LayerKind:
        """Of which kind the layer of a multi-token prediction module is: the last that attends.

        The last of all where none does.
        """
        attending = (kind for kind in reversed(self.layers) if kind.mixer in ATTENTIONS)
        return next(attending, self.layers[-1])


def required(shape: Shape | None, part: str) -> Shape:
    """The shape of a part that a layer is made of.

    Raises:
        InputError: The model gives none.
    """
    if shape is None:
        raise InputError(part, None, "a layer needs this part", f"give the model its {part} shape")
    return shape


def preset(name: str) -> ModelConfig:
    """A preset by its name.

    Raises:
        InputError: There is none of that name.
    """
    if name not in PRESETS:
        raise InputError("preset", name, "unknown", f"use one of {', '.join(PRESETS)}")
    return PRESETS[name]


_QWEN3 = ModelConfig(
    name="qwen3-tiny",
    hidden=64,
    feed_forward=128,
    layers=(LayerKind("attention", "swiglu"),) * 4,
    attention=AttentionShape(heads=8, kv_heads=4, head_width=16, normalise=True),
    rotary_base=1_000_000.0,
    tied=True,
)
_MOONLIGHT = ModelConfig(
    name="moonlight-tiny",
    hidden=64,
    feed_forward=128,
    layers=(LayerKind("latent", "swiglu"), *(LayerKind("latent", "experts"),) * 3),
    latent=LatentShape(heads=8, latent_width=32, content_width=16, rotary_width=8, value_width=16),
    experts=ExpertsShape(
        experts=8, chosen=2, width=32, shared_width=64, score="sigmoid", scale=2.446
    ),
    rotary_base=50_000.0,
)
_NEMOTRON = ModelConfig(
    name="nemotron-h-tiny",
    hidden=64,
    feed_forward=128,
    layers=(
        LayerKind("mamba", None),
        LayerKind(None, "squared-relu"),
        LayerKind("attention", None),
        LayerKind(None, "squared-relu"),
    )
    * 2,
    attention=AttentionShape(heads=8, kv_heads=4, head_width=16, rotary=False),
    mamba=MambaShape(heads=24, head_width=8, state_width=16, groups=2),
)
PRESETS = MappingProxyType({config.name: config for config in (_QWEN3, _MOONLIGHT, _NEMOTRON)})
