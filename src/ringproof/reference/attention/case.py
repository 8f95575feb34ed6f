"""The case of a parity measurement, checked without torch before any rank starts."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ringproof.errors import InputError
from ringproof.reference.attention.heads import check_heads
from ringproof.reference.packing.partition import check_divisible
from ringproof.reference.packing.sequences import PackedSequences
from ringproof.reference.packing.shards import check_pack
from ringproof.reference.topology.hierarchy import check_sizes

DTYPES = ("float64", "float32", "bfloat16", "float16")
DENSE_SCORES_LIMIT_BYTES = 4 << 30

LARGEST_SCALE = 1e6
"""Scores of this scale still have exponents in every data type's LSE."""


@dataclass(frozen=True, kw_only=True)
class ParityCase:
    """One measurement.

    Args:
        world: Ranks in the flat CP group.
        hierarchical_sizes: Two levels for ``a2a+p2p``, empty otherwise.
        seq_len: Tokens in the whole sequence; with ``packed``, rows of the pack.
        batch: Sequences; with ``packed``, 1.
        packed: The sequences of a pack (THD); ``None`` measures BSHD.
        head_dim: Width of queries and keys.
        v_head_dim: Width of values.
        causal: Causal mask, or full attention.
        scale: Softmax scale; ``head_dim ** -0.5`` when ``None``.
        kv_replication: See :class:`AttentionOptions`.
        seed: Seed of the random inputs, which are the same on every rank and for every world.
    """

    world: int
    comm_type: str = "p2p"
    hierarchical_sizes: tuple[int, ...] = ()
    seq_len: int = 256
    batch: int = 1
    packed: PackedSequences | None = None
    heads: int = 8
    kv_heads: int = 8
    head_dim: int = 16
    v_head_dim: int = 16
    dtype: str = "float64"
    causal: bool = True
    partition: str = "zigzag"
    scale: float | None = None
    kernel: str = "auto"
    kv_replication: int = 1
    seed: int = 0

    def check(self) -> None:
        """Refuse what cannot be measured, before any rank is started.

        Raises:
            InputError: A size is below 1, a shape does not fit the type, or the
                dense oracle would need more than 4 GiB.
        """
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int) and field.name not in ("seed", "causal") and value < 1:
                raise InputError(field.name, f"{value} is less than 1; give 1 or more")
        if not 0 <= self.seed < 1 << 63:
            raise InputError("seed", f"{self.seed} is not in [0, 2**63); choose another")
        if self.scale is not None and not abs(self.scale) <= LARGEST_SCALE:
            problem = f"{self.scale} is not a number up to {LARGEST_SCALE:g}"
            raise InputError("scale", f"{problem}; give head-dim**-0.5 or leave it out")
        if self.packed:
            check_pack(self.packed, self.world, self.partition)
        else:
            check_divisible(self.seq_len, self.world, self.partition)
        self._check_levels()
        check_heads(self.heads, self.kv_heads, self.exchange_size, self.kv_replication)
        longest = max(self.packed.lengths) if self.packed else self.seq_len
        scores = self.batch * self.heads // self.kv_heads * longest**2 * 8
        if scores > DENSE_SCORES_LIMIT_BYTES:
            name = "packed" if self.packed else "seq_len"
            problem = f"the dense oracle's scores of {longest} tokens take {scores >> 30} GiB"
            raise InputError(name, f"{problem}; shorten the sequence")

    @property
    def layout(self) -> str:
        """``thd`` for a pack, ``bshd`` otherwise."""
        return "thd" if self.packed else "bshd"

    @property
    def exchange_size(self) -> int:
        """Ranks that share the heads of one all-to-all."""
        if self.comm_type == "a2a+p2p":
            return self.hierarchical_sizes[0]
        return self.world if self.comm_type == "a2a" else 1

    def _check_levels(self) -> None:
        name, sizes = "hierarchical_sizes", self.hierarchical_sizes
        if self.comm_type != "a2a+p2p":
            if sizes:
                problem = f"{list(sizes)} are levels, and {self.comm_type} has none"
                raise InputError(name, f"{problem}; leave them out")
            return
        check_sizes(sizes, self.world)
        if len(sizes) != 2:
            raise InputError(name, f"a2a+p2p has two levels, not {len(sizes)}; give two sizes")
