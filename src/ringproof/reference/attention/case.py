"""What a parity measurement is asked to do. No torch: a command can refuse before it starts."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ringproof.errors import InputError
from ringproof.reference.attention.heads import check_heads
from ringproof.reference.attention.names import COMM_TYPES, KERNEL_NAMES, check_name
from ringproof.reference.packing.partition import check_divisible
from ringproof.reference.topology.hierarchy import check_sizes

DTYPES = ("float64", "float32", "bfloat16", "float16")
DENSE_SCORES_LIMIT_BYTES = 4 << 30


@dataclass(frozen=True, kw_only=True)
class ParityCase:
    """One measurement.

    Args:
        world: Ranks in the flat CP group.
        comm_type: One of :data:`COMM_TYPES`.
        hierarchical_sizes: Two levels for ``a2a+p2p``, empty otherwise.
        seq_len: Tokens in the whole sequence.
        batch: Sequences.
        heads: Query heads.
        kv_heads: Key/value heads.
        head_dim: Width of queries and keys.
        v_head_dim: Width of values.
        dtype: One of :data:`DTYPES`.
        causal: Causal mask, or full attention.
        partition: ``zigzag`` or ``contiguous``.
        scale: Softmax scale; ``head_dim ** -0.5`` when ``None``.
        kernel: ``auto``, ``sdpa`` or ``reference``.
        kv_replication: See :class:`AttentionOptions`.
        seed: Of the random inputs, which are the same on every rank and for every world.
    """

    world: int
    comm_type: str = "p2p"
    hierarchical_sizes: tuple[int, ...] = ()
    seq_len: int = 256
    batch: int = 1
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
            InputError: A name is unknown, a size below 1, a shape does not fit the type, or the
                dense oracle would need more than 4 GiB.
        """
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int) and field.name not in ("seed", "causal") and value < 1:
                raise InputError(field.name, value, "below 1", "give 1 or more")
        if not 0 <= self.seed < 1 << 63:
            raise InputError("seed", self.seed, "not in [0, 2**63)", "choose another")
        check_name("comm_type", self.comm_type, COMM_TYPES)
        check_name("dtype", self.dtype, DTYPES)
        check_name("kernel", self.kernel, KERNEL_NAMES)
        check_divisible(self.seq_len, self.world, self.partition)
        self._check_levels()
        check_heads(self.heads, self.kv_heads, self.exchange_size, self.kv_replication)
        scores = self.batch * self.heads // self.kv_heads * self.seq_len**2 * 8
        if scores > DENSE_SCORES_LIMIT_BYTES:
            raise InputError(
                "seq_len", self.seq_len, f"the oracle's scores take {scores >> 30} GiB", "shorten"
            )

    @property
    def exchange_size(self) -> int:
        """Ranks that share the heads of one all-to-all."""
        if self.comm_type == "a2a+p2p":
            return self.hierarchical_sizes[0]
        return self.world if self.comm_type == "a2a" else 1

    def _check_levels(self) -> None:
        if self.comm_type != "a2a+p2p":
            if self.hierarchical_sizes:
                raise InputError(
                    "hierarchical_sizes",
                    self.hierarchical_sizes,
                    f"{self.comm_type} has no levels",
                    "drop it",
                )
            return
        check_sizes(self.hierarchical_sizes, self.world)
        if len(self.hierarchical_sizes) != 2:
            raise InputError(
                "hierarchical_sizes",
                self.hierarchical_sizes,
                "a2a+p2p has two levels",
                "give two sizes",
            )
