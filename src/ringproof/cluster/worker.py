"""One rank: waits for cases, runs each in a new process group, and reports the result.

This is the only module of the cluster that imports torch. The parent process never loads it.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import pickle
import platform
import resource
import signal
import sys
import threading
import time
import traceback
from datetime import timedelta
from multiprocessing import connection, parent_process
from typing import Any

import torch
import torch.distributed as dist

from ringproof.cluster.case import (
    Assignment,
    CaseFunction,
    ClusterOptions,
    RankContext,
    RankResult,
)
from ringproof.cluster.gpus import choose_backend, gpu_of, sharing_variables
from ringproof.errors import InputError
from ringproof.programs import leave_server_of_forks
from ringproof.supervisor import end_with_parent

LATER_SECONDS = 60.0
"""By which a collective gives up later than its case, whose limit names where each rank hangs."""


def serve(
    rank: int,
    control: connection.Connection,
    output: connection.Connection,
    *,
    threads: int,
    memory: int,
) -> None:
    """Run cases until the parent closes the control channel or dies.

    Args:
        output: Replaces stdout and stderr.
        threads: Compute threads.
        memory: Bytes that the rank may use for its data; 0 for no limit.
    """
    end_with_parent()  # even where it is stopped, and with it the thread below
    leave_server_of_forks()
    for descriptor in (1, 2):  # by number, since the parent may have closed its own
        os.dup2(output.fileno(), descriptor)
    sys.stdout, sys.stderr = (
        open(descriptor, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115 # kept
        for descriptor in (1, 2)
    )
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    faulthandler.register(signal.SIGUSR1, all_threads=False)  # to see where a hung rank is
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    if memory and not torch.cuda.is_available():  # CUDA maps more than it uses
        limit_data(memory)
    while True:
        try:
            assignment: Assignment = control.recv()
        except EOFError:
            return
        _run(rank, assignment, control)


def limit_data(memory: int) -> None:
    """Limit the bytes of data of this process, by no more than the hard limit that it was given."""
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    limit = memory if most == resource.RLIM_INFINITY else min(memory, most)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, most))


def _exit_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
    os._exit(1)


def _run(rank: int, assignment: Assignment, control: connection.Connection) -> None:
    """Run one case and report.

    A failure is reported first. Destroying the process group would wake the other ranks, and on
    NCCL it can wait for them forever. The parent ends this process after a failure.
    """
    try:
        sys.path[:] = assignment.module_path
        function, arguments = pickle.loads(assignment.payload)
        context = _join(rank, assignment)
        report = pickle.dumps(RankResult(rank, value=function(context, **arguments)))
        _leave(context)
    except Exception as error:
        report = pickle.dumps(_failure(rank, error))
    sys.stdout.flush()
    sys.stderr.flush()
    control.send_bytes(report)


def _failure(rank: int, error: Exception) -> RankResult:
    failed_at = time.monotonic()
    text = " ".join(str(error).split())
    refused = (error.field, error.sentence) if isinstance(error, InputError) else None
    limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    short = isinstance(error, MemoryError) or "can't allocate memory" in text
    if short and limit != resource.RLIM_INFINITY:
        text = f"{text}; rank {rank} reached its memory limit of {limit / 1e9:.1f} GB".lstrip("; ")
    return RankResult(
        rank,
        error=f"{type(error).__name__}: {text}" if text else type(error).__name__,
        traceback="".join(traceback.format_exception(error)),
        failed_at=failed_at,
        refused=refused,
    )


def _join(rank: int, assignment: Assignment) -> RankContext:
    """Create a new default group for each case, so that cases do not affect each other."""
    world_size = assignment.world_size
    backend, device = _place(assignment.backend, rank, world_size, sharing=assignment.sharing)
    dist.init_process_group(
        backend,
        store=dist.FileStore(assignment.store_path, world_size),
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=assignment.timeout_seconds + LATER_SECONDS),
    )
    return RankContext(rank, world_size, backend, device)


def _place(
    asked: str, local_rank: int, local_ranks: int, *, sharing: int
) -> tuple[str, torch.device]:
    """Choose backend and device of a rank, by the ranks of the case on this host.

    ``sharing`` is the number of ranks on this host that may share GPUs in any case; 0 if none may.
    All ranks of a host decide alike by it, since NCCL uses shared memory among ranks of one host.
    """
    gpus = torch.cuda.device_count()
    backend = choose_backend(asked, local_ranks, gpus, share=sharing > 0)
    if backend != "nccl":
        return backend, torch.device("cpu")
    if sharing > gpus:
        os.environ.update(sharing_variables(local_rank, platform.node()))
    device = torch.device("cuda", gpu_of(local_rank, gpus))
    torch.cuda.set_device(device)
    return backend, device


def _leave(context: RankContext) -> None:
    """Wait for all ranks, then destroy the process group."""
    nccl = context.backend == "nccl"
    if nccl:
        gc.collect()  # NCCL does not end a communicator that a captured graph uses
    # No rank leaves while another is still reading. Without device_ids, NCCL would guess the
    # device.
    dist.barrier(device_ids=[context.device.index] if nccl else None)
    dist.destroy_process_group()


def run_in_launched_world(
    function: CaseFunction, arguments: dict[str, Any], options: ClusterOptions
) -> list[Any]:
    """Run a case on the ranks of a launcher such as torchrun; every rank gets all values.

    After a failure the process group is not destroyed, since the launcher ends the ranks, and
    waiting for each other could take forever.
    """
    local_rank, local_world = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    sharing = local_world if options.share_gpus else 0
    backend, device = _place(options.backend, local_rank, local_world, sharing=sharing)
    dist.init_process_group(backend, timeout=timedelta(seconds=options.timeout_seconds))
    world_size = dist.get_world_size()
    context = RankContext(dist.get_rank(), world_size, backend, device)
    values: list[Any] = [None] * world_size
    dist.all_gather_object(values, function(context, **arguments))
    gc.collect()  # groups in cycles, whose threads would otherwise end with the interpreter: abort
    _leave(context)
    return values
