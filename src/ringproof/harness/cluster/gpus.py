"""Which GPU a rank gets, and what NCCL has to be told where several ranks get the same one.

NCCL refuses two ranks of one host on one GPU ("Duplicate GPU detected"). It knows a host by a hash,
which ``NCCL_HOSTID`` replaces: ranks with an id each are on hosts of their own, and meet over the
network. There ``NCCL_NET=Socket`` takes the host's own sockets, whatever other network there is.
Peer-to-peer copies and shared memory are for ranks of one host, and so are out of the question.
NCCL reads these variables once in the life of a process.

This is a test instrument. Processes take turns on a GPU, and a kernel of NCCL spends its turns
waiting for those of its peers, so that a collective takes milliseconds (less under MPS, NVIDIA's
multi-process service). What is computed is the same; no time measured so says anything.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping

from ringproof.errors import InputError


def choose_backend(asked: str, ranks: int, gpus: int, *, share: bool) -> str:
    """``auto`` is NCCL where every rank can have a GPU, and gloo elsewhere.

    Args:
        asked: ``auto``, ``gloo`` or ``nccl``.
        ranks: On this host.
        gpus: Of this host.
        share: Whether a GPU may have several ranks.

    Raises:
        InputError: NCCL was asked for and some rank has no GPU.
    """
    enough = gpus >= (1 if share else ranks)
    if asked == "nccl" and not enough:
        remedy = "use gloo"
        if gpus:
            remedy = "use gloo or fewer ranks, or let ranks share GPUs (--share-gpus)"
        raise InputError("backend", asked, f"{ranks} ranks and {gpus} GPUs", remedy)
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
    """What a rank that may share its GPU sets before NCCL starts.

    Args:
        rank: On its host.
        host: Its name: ranks of two hosts must not get the same id.

    >>> sharing_variables(1, "node")["NCCL_HOSTID"]
    'node-rank1'
    """
    return {
        "NCCL_HOSTID": f"{host}-rank{rank}",
        "NCCL_NET": "Socket",
        # Hosts of one NVLink network would copy from GPU to GPU after all.
        "NCCL_MNNVL_ENABLE": "0",
    }


def prepare_sharing(rank: int, ranks: int, gpus: int) -> None:
    """Set these variables in this process if ranks outnumber GPUs; call it before NCCL starts.

    All ranks of a host decide alike: NCCL looks for shared memory among those of one host only.

    Args:
        rank: On this host.
        ranks: On this host, in all cases of this process together.
        gpus: Of this host.
    """
    if ranks > gpus:
        os.environ.update(sharing_variables(rank, platform.node()))
