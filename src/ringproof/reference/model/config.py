"""Configuration of a model, and presets: tiny models with every part of the real ones."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

from ringproof.errors import InputError, check_name

MIXERS = ("attention", "latent")
FEED_FORWARDS = ("swiglu", "experts")
SCORES = ("softmax", "sigmoid")  # of a router
SHAPES = ("attention", "latent", "experts")  # parts with a shape of their own


Shape = TypeVar("Shape")


@dataclass(frozen=True)
class LayerKind:
    """One layer: a mixer over rows, a feed-forward on each row, or both in this order.

    Args:
        mixer: ``attention`` (GQA), ``latent`` (MLA), or ``None``.
        feed_forward: ``swiglu``, ``experts`` (MoE), or ``None``.
    """

    mixer: str | None
    feed_forward: str | None


@dataclass(frozen=True, kw_only=True)
class AttentionShape:
    """Grouped-query attention.

    Args:
        heads: Query heads.
        kv_heads: Key/value heads; divides ``heads``.
        head_width: Channels of a query, key or value.
        normalise: Whether queries and keys are RMS-normalized, per head (Qwen3).

    Raises:
        InputError: The heads cannot be grouped, or the width is odd.
    """

    heads: int
    kv_heads: int
    head_width: int
    normalise: bool = False

    def __post_init__(self) -> None:
        if self.kv_heads < 1 or self.heads % self.kv_heads:
            problem = f"{self.kv_heads} does not divide {self.heads} query heads"
            raise InputError("kv_heads", f"{problem}; choose a divisor")
        if self.head_width % 2:
            problem = f"{self.head_width} is odd, and RoPE turns pairs"
            raise InputError("head_width", f"{problem}; give an even width")


@dataclass(frozen=True, kw_only=True)
class LatentShape:
    """MLA with decoupled RoPE (DeepSeek-V2; Moonlight compresses no queries).

    Args:
        heads: Query heads, as many as key/value heads.
        latent_width: Channels of the compressed keys and values.
        content_width: Channels of queries and keys without position.
        rotary_width: Channels of queries and keys with position; all heads share the key.
        value_width: Channels of values.
    """

    heads: int
    latent_width: int
    content_width: int
    rotary_width: int
    value_width: int


@dataclass(frozen=True, kw_only=True)
class ExpertsShape:
    """Mixture of experts.

    Args:
        experts: Routed experts.
        chosen: Experts of each token (top-k).
        width, shared_width: Hidden width of a routed expert and of the shared one.
        score: Score function of the router, ``softmax`` or ``sigmoid``.
        scale: Factor of the routed experts' sum (``routed_scaling_factor``).
        auxiliary: Coefficient of the balance loss.

    Raises:
        InputError: The score is unknown, or there are more choices than experts.
    """

    experts: int
    chosen: int
    width: int
    shared_width: int
    score: str = "softmax"
    scale: float = 1.0
    auxiliary: float = 1e-3

    def __post_init__(self) -> None:
        check_name("score", self.score, SCORES)
        if not 1 <= self.chosen <= self.experts:
            problem = f"{self.chosen} cannot be chosen of {self.experts} experts"
            raise InputError("chosen", f"{problem}; choose from 1 to all of them")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A model.

    Args:
        name: Name for messages and logs.
        hidden: Width of the residual stream.
        feed_forward: Hidden width of a dense feed-forward.
        attention, latent, experts: Shapes of the parts that occur.
        rotary_base: Base of RoPE's frequencies.
        mtp_depths: Tokens predicted beyond the next (multi-token prediction).
        mtp_weight: Weight of their mean loss.
        tied: Whether the output head is the embedding.

    Raises:
        InputError: There is no layer, an unknown part, or a part without a shape.
    """

    name: str
    hidden: int
    feed_forward: int
    layers: tuple[LayerKind, ...]
    attention: AttentionShape | None = None
    latent: LatentShape | None = None
    experts: ExpertsShape | None = None
    vocabulary: int = 256
    rotary_base: float = 10_000.0
    norm_epsilon: float = 1e-6
    mtp_depths: int = 0
    mtp_weight: float = 0.3
    tied: bool = False

    def __post_init__(self) -> None:
        if not self.layers:
            raise InputError("layers", "the model has no layer; give one")
        for kind in self.layers:
            for part, known in ((kind.mixer, MIXERS), (kind.feed_forward, FEED_FORWARDS)):
                if part is not None:
                    check_name("layers", part, known)
                if part in SHAPES:
                    required(getattr(self, part), part)
        if self.mtp_depths < 0:
            raise InputError("mtp_depths", f"{self.mtp_depths} is negative; give 0 or more")

    @property
    def mtp_layer(self) -> LayerKind:
        """Kind of the layer of a prediction module: that of the last layer."""
        return self.layers[-1]


def required(shape: Shape | None, part: str) -> Shape:
    """Return the shape of a part that a layer needs.

    Raises:
        InputError: The model has none.
    """
    if shape is None:
        raise InputError(part, f"a layer needs this part; give the model its {part} shape")
    return shape


def preset(name: str) -> ModelConfig:
    """Return a preset by its name.

    Raises:
        InputError: The name is unknown.
    """
    check_name("preset", name, PRESETS)
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
PRESETS = MappingProxyType({config.name: config for config in (_QWEN3, _MOONLIGHT)})
