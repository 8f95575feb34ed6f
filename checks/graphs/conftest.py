"""A CP group of one rank, for layers that are captured in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ringproof.reference.topology.dynamic import ContextParallelGroup
from smoke.model_batches import group_of_one


@pytest.fixture
def alone() -> Iterator[ContextParallelGroup]:
    with group_of_one() as group:
        yield group
