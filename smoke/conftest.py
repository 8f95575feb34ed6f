"""Workers for the smoke tests: started once for the session, whatever the number of cases."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ringproof.harness.cluster import Cluster, ClusterOptions, drop

LARGEST_WORLD = 8


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Eight ranks: gloo, or NCCL for the cases that fit on the GPUs at hand."""
    with Cluster(LARGEST_WORLD, ClusterOptions(timeout_seconds=60, log_sink=drop)) as workers:
        yield workers
