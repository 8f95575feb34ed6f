"""Workers for the smoke tests: started once for the session, whatever the number of cases."""

from __future__ import annotations

import os
from collections.abc import Iterator
from unittest import mock

import pytest
import torch

from ringproof.cluster import Cluster, ClusterOptions, drop

LARGEST_WORLD = 8
GPU_SECONDS = 900.0
"""Of a case whose ranks share a GPU: each collective waits for its turns."""

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


GPUS_FOR_ALL = torch.cuda.device_count() >= LARGEST_WORLD


@pytest.fixture(scope="session", autouse=True)
def imported_once(request: pytest.FixtureRequest) -> None:
    """Start the server that forks ranks with what all of them import, which takes seconds."""
    preload = ["ringproof.reference.training.trainer", "numpy.ma"]  # which numpy loads when used
    if any(item.path.name == "test_megatron_groups.py" for item in request.session.items):
        preload.append("megatron.core.parallel_state")
    with Cluster(1, ClusterOptions(preload=tuple(preload))):
        pass


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Eight ranks: NCCL where each can have a GPU of its own, otherwise gloo, in every case."""
    backend = "nccl" if GPUS_FOR_ALL else "gloo"
    # Without a limit of memory: what ranks keep grows over the hundreds of cases of a session.
    options = ClusterOptions(backend=backend, timeout_seconds=150, log_sink=drop, limited=False)
    with Cluster(LARGEST_WORLD, options) as workers:
        yield workers


@pytest.fixture(scope="session")
def cpu_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Eight ranks on the CPU, wherever there are GPUs."""
    if not GPUS_FOR_ALL:
        yield request.getfixturevalue("cluster")
        return
    options = ClusterOptions(backend="gloo", timeout_seconds=150, log_sink=drop, limited=False)
    with Cluster(LARGEST_WORLD, options) as workers:
        yield workers


@pytest.fixture(scope="session")
def gpu_cluster() -> Iterator[Cluster]:
    """Eight NCCL ranks on the GPUs at hand, which they share where there are fewer."""
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    options = ClusterOptions(
        backend="nccl", timeout_seconds=GPU_SECONDS, log_sink=drop, share_gpus=True
    )
    # cuBLAS promises the same bits on every stream only with a fixed workspace.
    with (
        mock.patch.dict(os.environ, CUBLAS_WORKSPACE_CONFIG=":4096:8"),
        Cluster(LARGEST_WORLD, options) as workers,
    ):
        yield workers


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=needs_gpu)])
def either_cluster(request: pytest.FixtureRequest) -> Cluster:
    """The ranks on the CPU, and, where there is a GPU, those that share it."""
    name = "gpu_cluster" if request.param == "cuda" else "cpu_cluster"
    found: Cluster = request.getfixturevalue(name)
    return found
