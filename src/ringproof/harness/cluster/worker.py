"""One rank: waits for cases, runs each in a process group of its own, reports.

The only module of the harness that imports torch when it is loaded; the parent never loads it.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
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
    for stream in (sys.stdout, sys.stderr):
        os.dup2(output.fileno(), stream.fileno())
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    faulthandler.register(signal.SIGUSR1, all_threads=False)  # where does a hung rank stand?
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    while True:
        try:
            assignment: Assignment = control.recv()
        except EOFError:
            return
        control.send(_run(rank, assignment))


def _exit_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
    os._exit(1)


def _run(rank: int, assignment: Assignment) -> RankReport:
    try:
        sys.path[:] = assignment.module_path
        function, arguments = pickle.loads(assignment.payload)
        with _process_group(rank, assignment) as context:
            return _call(rank, context, function, arguments)
    except Exception as error:
        return _failure(rank, error)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _call(
    rank: int, context: RankContext, function: CaseFunction, arguments: dict[str, Any]
) -> RankReport:
    """Run the function. A failure's time is taken before hanging up wakes the other ranks."""
    try:
        value = function(context, **arguments)
        pickle.dumps(value)  # refuse here, by rank, what could not be sent
        dist.barrier()  # nobody hangs up while another is still reading
    except Exception as error:
        return _failure(rank, error)
    return RankReport(rank, value=value)


def _failure(rank: int, error: Exception) -> RankReport:
    text = " ".join(str(error).split())
    refused = None
    if isinstance(error, InputError):
        refused = (error.field, str(error.value), error.problem, error.remedy)
    return RankReport(
        rank,
        error=f"{type(error).__name__}: {text}" if text else type(error).__name__,
        traceback="".join(traceback.format_exception(error)),
        failed_at=time.monotonic(),
        refused=refused,
    )


@contextmanager
def _process_group(rank: int, assignment: Assignment) -> Iterator[RankContext]:
    """A fresh default group: what one case leaves behind cannot touch the next."""
    backend = resolve_backend(assignment.backend, assignment.world_size)
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend,
        store=dist.FileStore(assignment.store_path, assignment.world_size),
        rank=rank,
        world_size=assignment.world_size,
        timeout=timedelta(seconds=assignment.timeout_seconds),
    )
    try:
        yield RankContext(rank, assignment.world_size, backend, device)
    finally:
        dist.destroy_process_group()


def resolve_backend(asked: str, world_size: int) -> str:
    """``auto`` is NCCL where each rank can have a GPU of its own, and gloo elsewhere."""
    if asked != "auto":
        return asked
    return "nccl" if torch.cuda.device_count() >= world_size else "gloo"


def run_in_launched_world(
    function: CaseFunction, arguments: dict[str, Any], backend: str
) -> list[Any]:
    """Run a case on the ranks that a launcher such as torchrun made; every rank gets all values.

    Args:
        function: See :data:`ringproof.harness.cluster.case.CaseFunction`.
        arguments: Passed to it.
        backend: ``auto``, ``gloo`` or ``nccl``.
    """
    local_rank, local_world = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    backend = resolve_backend(backend, local_world)
    device = torch.device("cuda", local_rank) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    dist.init_process_group(backend)
    try:
        world_size = dist.get_world_size()
        context = RankContext(dist.get_rank(), world_size, backend, device)
        values: list[Any] = [None] * world_size
        dist.all_gather_object(values, function(context, **arguments))
        return values
    finally:
        dist.destroy_process_group()
