"""Checks, before any rank starts, that every CP size fits the model. It does not need torch.

Without this check, a CP size that does not divide the heads would fail in the first step that uses
it, possibly after hours.
"""

from __future__ import annotations

from collections.abc import Sequence

from ringproof.errors import InputError
from ringproof.reference.model.config import ModelConfig
from ringproof.reference.topology.dynamic_catalogue import level_sizes

EXCHANGING = ("a2a", "a2a+p2p")


def check_sizes(
    config: ModelConfig,
    sizes: Sequence[int],
    *,
    tp: int,
    comm_type: str,
    ranks_per_node: int,
    field: str = "cp_sizes",
) -> None:
    """Refuse CP sizes that do not divide the heads of an all-to-all.

    Args:
        config: The model.
        sizes: CP sizes that may be used.
        tp: Tensor parallel size. It divides the heads first.
        comm_type: Communication type of attention. Mamba always exchanges over the whole group.
        ranks_per_node: Ranks of the domain in one node, for ``a2a+p2p``.
        field: Name of the option that gave the sizes, for the message.

    Raises:
        InputError: A size does not fit. The message names the first one.
    """
    for size in sizes:
        if comm_type in EXCHANGING:
            inner = size if comm_type == "a2a" else level_sizes(size, ranks_per_node)[0]
            for shape in (config.attention, config.latent):
                _check("attention", shape.heads if shape else 0, tp, (size, inner), field)
        _check("mamba", config.mamba.heads if config.mamba else 0, tp, (size, size), field)


def _check(part: str, heads: int, tp: int, sizes: tuple[int, int], field: str) -> None:
    """Check one group size with the size of its all-to-all."""
    size, exchanging = sizes
    if heads % tp:
        raise InputError("tp", tp, f"does not divide the {heads} {part} heads", "use a divisor")
    if heads // tp % exchanging:
        problem = (
            f"the {heads // tp} {part} heads of a TP rank cannot be shared by "
            f"{exchanging} ranks of its all-to-all"
        )
        fitting = [number for number in range(1, heads // tp + 1) if heads // tp % number == 0]
        raise InputError(field, size, problem, f"allow only sizes such as {fitting}")
