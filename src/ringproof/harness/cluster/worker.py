"""One rank: waits for cases, runs each in a process group of its own, reports.

The only module of the harness that imports torch when it is loaded; the parent never loads it.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import pickle
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

from ringproof.errors import InputError
from ringproof.harness.cluster.case import Assignment, CaseFunction, RankContext, RankReport


def serve(
    rank: int, threads: int, control: connection.Connection, output: connection.Connection
) -> None:
    """Run cases until the parent closes the control channel or dies.

    Args:
        rank: This worker's rank.
        threads: Compute threads.
        control: Assignments in, :class:`RankReport` out.
        output: Takes over stdout and stderr.
    """
    for descriptor in (1, 2):  # by number: the parent may have closed its own
        os.dup2(output.fileno(), descriptor)
    sys.stdout, sys.stderr = (
        open(descriptor, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
        for descriptor in (1, 2)
    )
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    faulthandler.register(signal.SIGUSR1, all_threads=False)  # where does a hung rank stand?
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    while True:
        try:
            assignment: Assignment = control.recv()
        except EOFError:
            return
        _run(rank, assignment, control)


def _exit_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
    os._exit(1)


def _run(rank: int, assignment: Assignment, control: connection.Connection) -> None:
    """Run one case and report.

    A failure is reported before anything else is done: hanging up would wake the other ranks,
    and on NCCL it can wait for them for ever. The parent ends this process after a failure.
    """
    try:
        sys.path[:] = assignment.module_path
        function, arguments = pickle.loads(assignment.payload)
        context = _join(rank, assignment)
        report = pickle.dumps(RankReport(rank, value=function(context, **arguments)))
        dist.barrier()  # nobody hangs up while another is still reading
        dist.destroy_process_group()
    except Exception as error:
        report = pickle.dumps(_failure(rank, error))
    sys.stdout.flush()
    sys.stderr.flush()
    control.send_bytes(report)


def _failure(rank: int, error: Exception) -> RankReport:
    failed_at = time.monotonic()
    text = " ".join(str(error).split())
    refused = None
    if isinstance(error, InputError):
        refused = (error.field, str(error.value), error.problem, error.remedy)
    return RankReport(
        rank,
        error=f"{type(error).__name__}: {text}" if text else type(error).__name__,
        traceback="".join(traceback.format_exception(error)),
        failed_at=failed_at,
        refused=refused,
    )


def _join(rank: int, assignment: Assignment) -> RankContext:
    """A fresh default group: what one case leaves behind cannot touch the next."""
    backend = resolve_backend(assignment.backend, assignment.world_size)
    context = RankContext(rank, assignment.world_size, backend, _device(backend, rank))
    dist.init_process_group(
        backend,
        store=dist.FileStore(assignment.store_path, assignment.world_size),
        rank=rank,
        world_size=assignment.world_size,
        timeout=timedelta(seconds=assignment.timeout_seconds),
    )
    return context


def _device(backend: str, local_rank: int) -> torch.device:
    if backend != "nccl":
        return torch.device("cpu")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def resolve_backend(asked: str, local_ranks: int) -> str:
    """``auto`` is NCCL where each rank can have a GPU of its own, and gloo elsewhere.

    Raises:
        InputError: NCCL was asked for and there are fewer GPUs than ranks.
    """
    gpus = torch.cuda.device_count()
    if asked == "nccl" and gpus < local_ranks:
        raise InputError(
            "backend", asked, f"{local_ranks} ranks and {gpus} GPUs", "use gloo or fewer ranks"
        )
    if asked != "auto":
        return asked
    return "nccl" if gpus >= local_ranks else "gloo"


def run_in_launched_world(
    function: CaseFunction, arguments: dict[str, Any], backend: str, timeout_seconds: float
) -> list[Any]:
    """Run a case on the ranks that a launcher such as torchrun made; every rank gets all values.

    After a failure the process group is left as it is: the launcher ends the ranks, and waiting
    for each other could take for ever.
    """
    local_rank, local_world = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    backend = resolve_backend(backend, local_world)
    device = _device(backend, local_rank)
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout_seconds))
    world_size = dist.get_world_size()
    context = RankContext(dist.get_rank(), world_size, backend, device)
    values: list[Any] = [None] * world_size
    dist.all_gather_object(values, function(context, **arguments))
    gc.collect()  # groups in cycles, whose threads would otherwise end with the interpreter: abort
    dist.barrier()  # nobody hangs up while another is still reading
    dist.destroy_process_group()
    return values
