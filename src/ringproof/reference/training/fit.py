"""Does every CP group size fit the model? Asked before any rank starts. No torch.

Without this a size that the heads cannot serve would be found in the step whose lengths first
call for it, which may be hours into a run.
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
    """Refuse sizes whose all-to-all cannot share heads evenly.

    Args:
        config: The model.
        sizes: Of the CP groups that may be used.
        tp: Tensor parallel size, which cuts heads first.
        comm_type: Of attention. Mamba always exchanges over the whole group.
        ranks_per_node: Of the domain, for ``a2a+p2p``.
        field: What the sizes were given as, for the message.

    Raises:
        InputError: Names the first size that does not fit.
    """
    for size in sizes:
        if comm_type in EXCHANGING:
            inner = size if comm_type == "a2a" else level_sizes(size, ranks_per_node)[0]
            for shape in (config.attention, config.latent):
                _check("attention", shape.heads if shape else 0, tp, (size, inner), field)
        _check("mamba", config.mamba.heads if config.mamba else 0, tp, (size, size), field)


def _check(part: str, heads: int, tp: int, sizes: tuple[int, int], field: str) -> None:
    """For the sizes of a group and of its all-to-all."""
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
