"""Megatron-core's own hierarchical groups, observed in a world of one gloo rank.

One rank is enough for everything that does not depend on who the members are: which sizes are
refused and how, how many levels are built and under which description, and what tearing the
model parallel state down leaves behind. Run by `fresh_process.measure`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import torch.distributed as dist
from megatron.core import parallel_state


def describe(sizes: Sequence[int] | None) -> list[str] | None:
    """Initialise with these level sizes; the descriptions of the groups that then exist."""
    parallel_state.initialize_model_parallel(
        context_parallel_size=1,
        hierarchical_context_parallel_sizes=None if sizes is None else list(sizes),
        create_gloo_process_groups=False,
    )
    return descriptions()


def descriptions() -> list[str] | None:
    """``group_desc`` of the groups that attention would be handed; ``None`` without groups."""
    groups = parallel_state.get_hierarchical_context_parallel_groups(check_initialized=False)
    return None if groups is None else [group.group_desc for group in groups]


def refusal(sizes: Sequence[int]) -> dict[str, str]:
    """What initialising with these sizes raises: the type and the message."""
    try:
        describe(sizes)
    except Exception as error:
        return {"type": type(error).__name__, "message": str(error)}
    finally:
        parallel_state.destroy_model_parallel()
    return {"type": "", "message": ""}


def guard_passes() -> bool:
    """Whether the getter that the skill recommends as a start-up guard lets the run continue."""
    try:
        parallel_state.get_hierarchical_context_parallel_groups()
    except AssertionError:
        return False
    return True


def observe() -> dict[str, object]:
    """Every observation, in an order in which the earlier ones cannot colour the later ones."""
    found: dict[str, object] = {"wrong_product": refusal([2])}
    found["flat"] = describe(None)
    found["guard_without_sizes"] = guard_passes()
    parallel_state.destroy_model_parallel()
    found["two_levels"] = describe([1, 1])
    found["guard_with_sizes"] = guard_passes()
    parallel_state.destroy_model_parallel()
    found["three_levels"] = describe([1, 1, 1])
    parallel_state.destroy_model_parallel()
    found["after_destroy"] = descriptions()
    found["flat_again"] = describe(None)
    return found


def main() -> None:
    """Print the observations as one JSON line."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    print(json.dumps(observe()))


if __name__ == "__main__":
    main()
