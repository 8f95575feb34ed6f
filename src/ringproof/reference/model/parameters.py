"""How parameters are made: the same numbers whatever the parallelism.

The full tensor is drawn on the CPU in float64 from a generator seeded by the run's seed and the
parameter's full name, and only then cut. So no layout of TP, PP, CP and DP changes a weight, and
no rank has to be sent any.
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
    """What a training loop has to know of a parameter.

    Args:
        split: Dimension that is cut over TP ranks; ``None`` where each holds all of it.
        partial_over_tensor_parallel: It is replicated, but each TP rank computes only a part of
            its gradient (own rows, or own heads): sum the gradient over TP before it is used.
        shared: It also lives on another pipeline stage: sum the gradient over both.
        blocks: Where a fused matrix is cut block by block, the full size of each along ``split``.
    """

    split: int | None = None
    partial_over_tensor_parallel: bool = False
    shared: bool = False
    blocks: tuple[int, ...] | None = None

    def cut(self, full: torch.Tensor, size: int, rank: int) -> torch.Tensor:
        """One TP rank's part of the full tensor.

        Raises:
            InputError: A block that ``size`` ranks cannot share evenly.
        """
        if self.split is None or size == 1:
            return full
        blocks = full.split(self.blocks or full.shape[self.split], dim=self.split)
        for block in blocks:
            if block.shape[self.split] % size:
                raise InputError(
                    "tensor parallel size",
                    size,
                    f"does not divide {block.shape[self.split]} columns or rows of a weight",
                    "use a size that divides heads, key/value heads and widths",
                )
        return torch.cat([block.chunk(size, self.split)[rank] for block in blocks], self.split)

    def assemble(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """The full tensor from the parts of all TP ranks, in their order; undoes :meth:`cut`."""
        if self.split is None or len(parts) == 1:
            return parts[0]
        if self.blocks is None:
            return torch.cat(tuple(parts), self.split)
        shares = [size // len(parts) for size in self.blocks]
        by_rank = [part.split(shares, dim=self.split) for part in parts]
        return torch.cat(
            [part for block in zip(*by_rank, strict=True) for part in block], self.split
        )


@dataclass(frozen=True)
class Builder:
    """Makes the parameters of a model, and enters what each is into a registry.

    Args:
        seed: Of the run.
        dtype: Of the parameters.
        device: Where they live.
        tensor_parallel: The ranks they are cut over.
        registry: Full name to kind; each parameter made is added.
        prefix: Of the names made here, empty or with a dot at the end.
    """

    seed: int
    dtype: torch.dtype
    device: torch.device
    tensor_parallel: TensorParallel
    registry: dict[str, ParameterKind]
    prefix: str = ""

    def scope(self, name: str) -> Builder:
        """The same for a submodule of that name."""
        return replace(self, prefix=f"{self.prefix}{name}.")

    def parameter(
        self,
        name: str,
        shape: Sequence[int],
        *,
        split: int | None = None,
        std: float = 0.02,
        fill: float | None = None,
        values: torch.Tensor | None = None,
        partial: bool = False,
        shared: bool = False,
        blocks: Sequence[int] | None = None,
    ) -> nn.Parameter:
        """One parameter: this TP rank's part of it.

        Args:
            name: Its last name; the full one is the prefix and this.
            shape: Of the full tensor, over all TP ranks.
            split: See :class:`ParameterKind`, as for ``partial``, ``shared`` and ``blocks``.
            std: Standard deviation of the normal draw.
            fill: A constant instead of a draw.
            values: The full tensor instead of a draw, float64 on the CPU.
            partial: Gradient is partial over TP. Without effect on a single TP rank.
            shared: Also lives on another stage.
            blocks: Full sizes along ``split`` of the parts of a fused matrix.

        Raises:
            InputError: TP cannot cut it evenly, or the name was made before.
        """
        full_name = f"{self.prefix}{name}"
        if full_name in self.registry:
            raise InputError("parameter", full_name, "made twice", "give each scope its own name")
        kind = ParameterKind(
            split=split,
            partial_over_tensor_parallel=partial and self.tensor_parallel.size > 1,
            shared=shared,
            blocks=None if blocks is None else tuple(blocks),
        )
        full = values
        if full is None:
            full = self._draw(full_name, shape, std) if fill is None else _filled(shape, fill)
        part = kind.cut(full, self.tensor_parallel.size, self.tensor_parallel.rank)
        self.registry[full_name] = kind
        return nn.Parameter(part.to(self.device, self.dtype, copy=True))

    def _draw(self, full_name: str, shape: Sequence[int], std: float) -> torch.Tensor:
        digest = hashlib.sha256(f"{self.seed}:{full_name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
        return torch.randn(tuple(shape), generator=generator, dtype=torch.float64) * std


def _filled(shape: Sequence[int], value: float) -> torch.Tensor:
    return torch.full(tuple(shape), value, dtype=torch.float64)
