"""A real launch made small: everything that decides the path is kept, the rest costs less."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ringproof.rehearsal.launch import Launch


@dataclass(frozen=True)
class Change:
    """One difference between a launch and its rehearsal.

    Attributes:
        what: What was changed, for example ``--num-layers``.
        before: Value in the launch; empty where it had none.
        after: Value in the rehearsal; empty where it was left out.
        hides: A sentence about what this change can hide.
    """

    what: str
    before: str
    after: str
    hides: str


@dataclass(frozen=True)
class Small:
    """A program that is small enough for a laptop.

    Attributes:
        script: Path of the training script in the Megatron folder.
        arguments: Its command line.
        environment: Variables that decide the path.
        ranks: World size.
        changes: What differs from the launch.
        feature: ``dynamic-cp``, ``a2a+p2p``, ``p2p``, ``a2a``, ``all_gather`` or ``none``.
        dtype: ``float32`` or ``bfloat16``.
    """

    script: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    ranks: int
    changes: tuple[Change, ...]
    feature: str
    dtype: str


def shrink(
    launch: Launch,
    *,
    options: Collection[str],
    max_ranks: int = 32,
    iterations: int = 5,
    dtype: str = "float32",
) -> Small:
    """Make a launch small.

    Args:
        launch: As read.
        options: Names of the options that this upstream knows.
        max_ranks: Largest world size.
        iterations: Training steps.
        dtype: ``float32`` or ``bfloat16``.

    Raises:
        InputError: The launch cannot be made that small.
    """
    raise NotImplementedError
