"""Fixtures of several folders."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ringproof.reference.topology.dynamic import ContextParallelGroup


@pytest.fixture
def alone() -> Iterator[ContextParallelGroup]:
    """A CP group of one rank: a real group, in this process."""
    from smoke.model_batches import group_of_one  # imports torch

    with group_of_one() as group:
        yield group
