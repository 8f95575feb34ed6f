"""Assigns GPUs to ranks, and sets up NCCL for ranks that share one.

NCCL refuses two ranks of one host on one GPU ("Duplicate GPU detected"). It identifies a host by a
hash, which ``NCCL_HOSTID`` replaces: ranks with different ids count as different hosts and
communicate over the network. ``NCCL_NET=Socket`` selects sockets for this. Peer-to-peer copies and
shared memory are only used by ranks of one host. NCCL reads these variables once per process.

This is for tests only. Processes take turns on a GPU, and a kernel of NCCL waits for its peers
during its turn, so that a collective takes milliseconds (less under MPS, NVIDIA's multi-process
service). The results are the same, but measured times are meaningless.
"""

from __future__ import annotations

from collections.abc import Mapping

from ringproof.errors import InputError


def choose_backend(asked: str, ranks: int, gpus: int, *, share: bool) -> str:
    """Resolve ``auto``: NCCL if every rank can have a GPU, otherwise gloo.

    Args:
        asked: ``auto``, ``gloo`` or ``nccl``.
        ranks: Ranks on this host; ``gpus`` likewise.
        share: Whether a GPU may have several ranks.

    Raises:
        InputError: The backend is ``nccl`` and some rank has no GPU.
    """
    enough = gpus >= (1 if share else ranks)
    if asked == "nccl" and not enough:
        remedy = "use gloo"
        if gpus:
            remedy = "use gloo or fewer ranks, or let ranks share GPUs (--share-gpus)"
        raise InputError(
            "backend",
            f"{asked} needs a GPU for each of {ranks} ranks, and there are {gpus}; {remedy}",
        )
    if asked != "auto":
        return asked
    return "nccl" if enough else "gloo"


def gpu_of(rank: int, gpus: int) -> int:
    """Return the GPU of a rank: ranks take GPUs in turn, as torch guesses it for a barrier.

    >>> tuple(gpu_of(rank, 2) for rank in range(5))
    (0, 1, 0, 1, 0)
    """
    return rank % gpus


def sharing_variables(rank: int, host: str) -> Mapping[str, str]:
    """Return the variables of a rank that may share its GPU, to be set before NCCL starts.

    Args:
        rank: Rank on its host.
        host: Name of the host, since ranks of two hosts must not get the same id.

    >>> sharing_variables(1, "node")["NCCL_HOSTID"]
    'node-rank1'
    """
    return {
        "NCCL_HOSTID": f"{host}-rank{rank}",
        "NCCL_NET": "Socket",
        # Otherwise hosts of one NVLink network would copy from GPU to GPU.
        "NCCL_MNNVL_ENABLE": "0",
    }
