"""Makes parameters with the same numbers under any parallelism.

The full tensor is drawn on the CPU in float64 from a generator seeded by the run's seed and the
parameter's full name, and then divided. So no layout of TP, PP, CP and DP changes a weight, and no
rank has to receive any.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from ringproof.errors import InputError
from ringproof.reference.model.tensor_parallel import TensorParallel


@dataclass(frozen=True)
class ParameterKind:
    """Properties of a parameter that a training loop needs.

    Args:
        split: Dimension that is divided over TP ranks; ``None`` if each holds all of it.
        partial_over_tensor_parallel: Whether it is replicated, but each TP rank computes only a
            part of its gradient (own rows, or own heads), which has to be summed over TP.
        shared: Whether it also exists on another pipeline stage, over which its gradient has to be
            summed.
        blocks: Full sizes along ``split`` of the blocks of a fused matrix.
    """

    split: int | None = None
    partial_over_tensor_parallel: bool = False
    shared: bool = False
    blocks: tuple[int, ...] | None = None

    def cut(self, full: torch.Tensor, size: int, rank: int) -> torch.Tensor:
        """Return one TP rank's part of the full tensor.

        Raises:
            InputError: The ranks cannot share a block evenly.
        """
        if self.split is None or size == 1:
            return full
        blocks = full.split(self.blocks or full.shape[self.split], dim=self.split)
        for block in blocks:
            if block.shape[self.split] % size:
                problem = f"{size} does not divide {block.shape[self.split]} columns or rows of"
                remedy = "use a size that divides heads, key/value heads and widths"
                raise InputError("tensor parallel size", f"{problem} a weight; {remedy}")
        return torch.cat([block.chunk(size, self.split)[rank] for block in blocks], self.split)


@dataclass(frozen=True)
class Builder:
    """Makes the parameters of a model, and adds the kind of each to a registry.

    Args:
        tensor_parallel: Ranks over which they are divided.
        registry: Kind of each parameter by its full name.
        prefix: Prefix of the names, empty or with a dot at the end.
    """

    seed: int
    dtype: torch.dtype
    device: torch.device
    tensor_parallel: TensorParallel
    registry: dict[str, ParameterKind]
    prefix: str = ""

    def scope(self, name: str) -> Builder:
        """Return the builder of a submodule of that name."""
        return replace(self, prefix=f"{self.prefix}{name}.")

    def parameter(
        self,
        name: str,
        shape: Sequence[int],
        *,
        split: int | None = None,
        std: float = 0.02,
        fill: float | None = None,
        partial: bool = False,
        shared: bool = False,
        blocks: Sequence[int] | None = None,
    ) -> nn.Parameter:
        """Make this TP rank's part of a parameter.

        Args:
            name: Last part of its name.
            shape: Shape of the full tensor, over all TP ranks.
            split, partial, shared, blocks: See :class:`ParameterKind`.
            std: Standard deviation of the normal draw.
            fill: A constant instead of a draw.

        Raises:
            InputError: TP cannot divide it evenly, or the name was made before.
        """
        full_name = f"{self.prefix}{name}"
        if full_name in self.registry:
            problem = f"{full_name} is made twice"
            raise InputError("parameter", f"{problem}; give each scope a name of its own")
        kind = ParameterKind(
            split=split,
            partial_over_tensor_parallel=partial and self.tensor_parallel.size > 1,
            shared=shared,
            blocks=None if blocks is None else tuple(blocks),
        )
        full = self._draw(full_name, shape, std)
        if fill is not None:
            full = torch.full_like(full, fill)
        part = kind.cut(full, self.tensor_parallel.size, self.tensor_parallel.rank)
        self.registry[full_name] = kind
        return nn.Parameter(part.to(self.device, self.dtype, copy=True))

    def _draw(self, full_name: str, shape: Sequence[int], std: float) -> torch.Tensor:
        digest = hashlib.sha256(f"{self.seed}:{full_name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
        return torch.randn(tuple(shape), generator=generator, dtype=torch.float64) * std
