"""Checks and exceptions that end a run on all ranks together. Everything here is a collective."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch.distributed as dist

from ringproof.errors import InputError

Result = TypeVar("Result")


class OtherRankFailed(RuntimeError):
    """Another rank raised an exception that is not an ``InputError``."""


def check_agreement(digest: str, *, what: str) -> None:
    """Check that all ranks of the world have the same digest.

    The whole world is asked, since the pipeline stages and tensor parallel ranks of one microbatch
    are in different domains.

    Args:
        digest: A digest of the value.
        what: Name of the digested value for the message, such as ``plan of step 7``.

    Raises:
        InputError: Some ranks differ from the majority. The message names them. Of two equally
            large groups, the one with the lowest rank counts as the majority.
    """
    digests = gathered(digest)
    different = outliers(digests)
    if different:
        ranks = ", ".join(map(str, different))
        problem = f"rank {ranks} made another than the other {len(digests) - len(different)} ranks"
        raise InputError(what, f"{problem}; give every rank the same seed, data and options")


def refuse_together(function: Callable[[], Result]) -> Result:
    """Call a function on every rank of the world, and raise on all ranks if it raises on one.

    Without it, the other ranks would wait for a rank that has already ended. The function may
    communicate only with ranks that fail in the same way, as a capture does: its TP and CP peers
    run the same code on the same shapes.

    Raises:
        InputError: The function raised it on some rank. If several ranks raised, the error of the
            lowest one.
        OtherRankFailed: The function raised another exception on another rank. The rank on which it
            did raises that exception itself.
    """
    results: list[Result] = []
    own: Exception | None = None
    try:
        results.append(function())
    except Exception as error:  # the other ranks must not wait for this one after any exception
        own = error
    refused = (own.field, own.sentence) if isinstance(own, InputError) else None
    found = gathered(own and (refused, f"{type(own).__name__}: {own}"))
    raised = [(one[0] is not None, rank, *one) for rank, one in enumerate(found) if one is not None]
    if not raised:
        return results[0]
    if own is not None and not isinstance(own, InputError):
        raise own
    _, rank, refusal, text = min(raised)
    if refusal is None:
        raise OtherRankFailed(f"rank {rank} raised {text}") from own
    raise InputError(*refusal)


def on_first_rank(function: Callable[[], Result]) -> Result:
    """Call a function on rank 0, and return its result or raise its exception on every rank."""
    value = refuse_together(lambda: function() if dist.get_rank() == 0 else None)
    first: Result = gathered(value)[0]
    return first


def gathered(value: Any) -> list[Any]:
    """Return the values of all ranks, in the order of the ranks."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def outliers(digests: Sequence[str]) -> tuple[int, ...]:
    """Return the indices of the values that differ from the most frequent value.

    If two values are equally frequent, the one that occurs first counts as the most frequent.

    >>> outliers(["a", "a", "b", "a"])
    (2,)
    >>> outliers(["b", "a"])
    (1,)
    """
    common = max(digests, key=digests.count)
    return tuple(place for place, digest in enumerate(digests) if digest != common)
