"""All ranks go on with the same plan, or none does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist

from ringproof.errors import InputError

Result = TypeVar("Result")
Refusal = tuple[str, str | None, str, str]
"""The arguments of an ``InputError``, its value as text: what can be sent to other ranks."""


@dataclass(frozen=True)
class Raised:
    """An exception of one rank, as other ranks need it.

    Args:
        rank: Of the world.
        refusal: Of an ``InputError``; ``None`` of another exception.
        text: Class and text of the exception.
    """

    rank: int
    refusal: Refusal | None
    text: str


class OtherRankFailed(RuntimeError):
    """Another rank raised what is not an ``InputError``, so this one cannot go on."""


_HALF = 8  # hexadecimal digits that fit in an int64 without its sign


def check_agreement(
    digest: str, group: dist.ProcessGroup, *, what: str, device: torch.device | None = None
) -> None:
    """Compare a digest over a group. A collective; every rank raises the same.

    Args:
        digest: Hexadecimal, 16 digits.
        group: The ranks that have to agree: the world, since stages and tensor parallel ranks of
            one microbatch lie in different domains.
        what: What it stands for, such as ``plan of step 7``.
        device: Where the backend wants tensors; the CPU when ``None``.

    Raises:
        InputError: Some ranks differ from the majority (where two are as large, from the one that
            holds the lowest rank); they are named.
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
    """Return what a function returns; where it raises on any rank, all ranks raise.

    A collective. Without it the other ranks would wait for one that has left.

    Args:
        function: Called on every rank. It communicates at most with ranks that would refuse with
            this one, as a capture does: TP and CP peers run the same code on the same shapes.
        group: The ranks that go on together.
        device: Where the backend wants tensors; the CPU when ``None``.

    Raises:
        InputError: The function raised it on some rank; of several, the lowest one's.
        OtherRankFailed: It raised another exception on other ranks. A rank on which it did raises
            that one.
    """
    results: list[Result] = []
    own: Exception | None = None
    try:
        results.append(function())
    except Exception as error:  # whatever it is, the other ranks must not wait for this one
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
    """Return the default process group, which whoever starts the ranks has initialised."""
    group = dist.group.WORLD
    assert group is not None, "the default process group is not initialised"
    return group


def _raised(error: Exception) -> Raised:
    refusal = refusal_of(error) if isinstance(error, InputError) else None
    return Raised(dist.get_rank(), refusal, f"{type(error).__name__}: {error}")


def refusal_of(error: InputError) -> Refusal:
    """What another rank needs to refuse the same."""
    value = None if error.value is None else str(error.value)
    return error.field, value, error.problem, error.remedy


def outliers(digests: list[str]) -> tuple[int, ...]:
    """The places that differ from the most frequent value, the earliest of equally frequent ones.

    >>> outliers(["a", "a", "b", "a"])
    (2,)
    >>> outliers(["b", "a"])
    (1,)
    """
    common = max(digests, key=digests.count)
    return tuple(place for place, digest in enumerate(digests) if digest != common)
