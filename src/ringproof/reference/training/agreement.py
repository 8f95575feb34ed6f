"""Checks and exceptions that end a run on all ranks together."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch
import torch.distributed as dist

from ringproof.errors import InputError

Result = TypeVar("Result")
Refusal = tuple[str, str | None, str, str]
"""The arguments of an ``InputError``, its value as text: what can be sent to other ranks."""


class Raised(NamedTuple):
    """Exception of one rank, in the form in which other ranks receive it.

    ``refusal`` has the fields of an ``InputError`` and is ``None`` for another exception; ``text``
    has class and message.
    """

    rank: int
    refusal: Refusal | None
    text: str


class OtherRankFailed(RuntimeError):
    """Another rank raised an exception that is not an ``InputError``."""


_HALF = 8  # hexadecimal digits that fit in an int64 without its sign


def check_agreement(
    digest: str, group: dist.ProcessGroup, *, what: str, device: torch.device | None = None
) -> None:
    """Check that all ranks of a group have the same digest. A collective; all ranks raise together.

    Args:
        digest: 16 hexadecimal digits.
        group: Ranks that have to agree. Use the world, since the pipeline stages and tensor
            parallel ranks of one microbatch are in different domains.
        what: Name of the digested value for the message, such as ``plan of step 7``.
        device: Device of the backend's tensors; the CPU when ``None``.

    Raises:
        InputError: Some ranks differ from the majority. The message names them. Of two equally
            large groups, the one with the lowest rank counts as the majority.
    """
    own = torch.tensor([int(digest[:_HALF], 16), int(digest[_HALF:], 16)], device=device)
    found = torch.empty(dist.get_world_size(group), 2, dtype=own.dtype, device=device)
    # torch 2.13 renamed the collective and warns about the old name.
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    gather(found.flatten(), own, group=group)
    digests = [f"{first:08x}{second:08x}" for first, second in found.tolist()]
    different = outliers(digests)
    if different:
        ranks = ", ".join(str(dist.get_global_rank(group, place)) for place in different)
        problem = f"rank {ranks} made another than the other {len(digests) - len(different)} ranks"
        remedy = "give every rank the same seed, data and options"
        raise InputError(what, None, problem, remedy)


def refuse_together(
    function: Callable[[], Result], group: dist.ProcessGroup, *, device: torch.device | None = None
) -> Result:
    """Call a function on every rank, and raise on all ranks if it raises on one.

    A collective. Without it, the other ranks would wait for a rank that has already ended.

    The function may communicate only with ranks that fail in the same way, as a capture does: its
    TP and CP peers run the same code on the same shapes.

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
    raised = torch.tensor([own is not None], dtype=torch.int32, device=device)
    dist.all_reduce(raised, group=group)
    if not raised.item():
        return results[0]
    found: list[Raised | None] = [None] * dist.get_world_size(group)
    dist.all_gather_object(found, own and _raised(own), group=group)
    if own is not None and not isinstance(own, InputError):
        raise own
    first = min((one for one in found if one), key=lambda one: (one.refusal is not None, one.rank))
    if first.refusal is None:
        raise OtherRankFailed(f"rank {first.rank} raised {first.text}") from own
    raise InputError(*first.refusal)


def world() -> dist.ProcessGroup:
    """Return the default process group, which has to be initialized."""
    group = dist.group.WORLD
    assert group is not None, "the default process group is not initialised"
    return group


def _raised(error: Exception) -> Raised:
    refusal = refusal_of(error) if isinstance(error, InputError) else None
    return Raised(dist.get_rank(), refusal, f"{type(error).__name__}: {error}")


def refusal_of(error: InputError) -> Refusal:
    """Return the fields of an error, with which another rank can raise the same error."""
    value = None if error.value is None else str(error.value)
    return error.field, value, error.problem, error.remedy


def outliers(digests: list[str]) -> tuple[int, ...]:
    """Return the indices of the values that differ from the most frequent value.

    If two values are equally frequent, the one that occurs first counts as the most frequent.

    >>> outliers(["a", "a", "b", "a"])
    (2,)
    >>> outliers(["b", "a"])
    (1,)
    """
    common = max(digests, key=digests.count)
    return tuple(place for place, digest in enumerate(digests) if digest != common)
