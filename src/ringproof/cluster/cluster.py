"""A cluster of ranks, which are started once and run one case after the other.

Workers are forked from a server process that has already imported torch (``forkserver`` of the
standard library), so that eight ranks start, or are replaced after a failure, in a fraction of a
second.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import resource
import sys
import tempfile
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ringproof.budget import LEAST_LIMIT_BYTES, Machine
from ringproof.cluster.case import (
    Assignment,
    CaseFunction,
    CaseOutcome,
    ClusterOptions,
    RankFailure,
    RankResult,
    check_timeout,
)
from ringproof.cluster.watch import CaseWatch, Worker
from ringproof.errors import InputError, shown
from ringproof.extras import how_to_install
from ringproof.programs import forking, limit_of_server

ENDING_MODULE = "ringproof.cluster.ending"
WORKER_MODULE = "ringproof.cluster.worker"
_SERVER_ENDED = "the process that starts ranks was ended, perhaps for want of memory"


class Cluster:
    """A set of SPMD workers, as a context manager that ends every rank on exit.

    The server that forks ranks stays until the interpreter ends, so that the next cluster starts
    fast. Its environment (``OMP_NUM_THREADS`` and all that torch reads when it is imported) is that
    of the first cluster, while the ranks get the current one.

    Args:
        world_size: Number of ranks to start. A case may use fewer.
        options: See :class:`ClusterOptions`.

    Raises:
        InputError: There is less than one rank, the backend is unknown, or torch is not installed.
        RankFailure: The server that forks ranks was ended before all of them had started.

    Example::

        with Cluster(4) as cluster:
            cluster.run(function, world_size=2, argument=1).values
    """

    def __init__(self, world_size: int, options: ClusterOptions | None = None) -> None:
        self.options = options or ClusterOptions()
        self.world_size = world_size
        if world_size < 1:
            raise InputError(
                "nproc", f"{shown(world_size)} is not a number of ranks; give 1 or more"
            )
        if importlib.util.find_spec("torch") is None:
            raise InputError("torch", f"torch is not installed; {how_to_install('reference')}")
        self._workers: list[Worker] = []
        self._folder = tempfile.TemporaryDirectory(prefix="ringproof-")
        self._cases = 0
        self._closed = False

    def __enter__(self) -> Cluster:
        try:
            self._start()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        self._closed = True
        self._stop()
        self._folder.cleanup()

    @property
    def process_ids(self) -> tuple[int, ...]:
        """Process ids of the workers by rank."""
        return tuple(worker.process.pid or 0 for worker in self._workers)

    def run(
        self,
        function: CaseFunction,
        *,
        world_size: int | None = None,
        timeout_seconds: float | None = None,
        renewed_by_output: bool = False,
        **arguments: Any,
    ) -> CaseOutcome:
        """Run one case on the first ``world_size`` ranks and wait for all of them.

        Args:
            function: Function, called as ``function(context, **arguments)`` on each rank.
            world_size: Number of ranks to use; all by default.
            timeout_seconds: Time limit of this case; its collectives give up later, so that a rank
                that hangs is reported where it hangs.
            renewed_by_output: Whether each line that a rank writes restarts the limit, for work of
                unknown length that shows progress.
            arguments: Picklable arguments of the function.

        Raises:
            InputError: The case needs more ranks than there are, or all ranks refused the same
                input.
            RankFailure: A rank raised, died, or did not finish in time. The workers are replaced
                before the next case.
        """
        size = self.world_size if world_size is None else world_size
        if not 1 <= size <= self.world_size:
            raise InputError(
                "world_size",
                f"{size} is not between 1 and the {self.world_size} ranks that there are",
            )
        limit = self.options.timeout_seconds if timeout_seconds is None else timeout_seconds
        check_timeout(limit)
        if self._closed:
            raise RuntimeError("this cluster's context has been left; open another")
        if not self._workers:
            self._start()
        watch = CaseWatch(
            self._workers[:size],
            self.options.log_sink,
            limit,
            renewed_by_output=renewed_by_output,
        )
        finished = False
        try:
            self._assign(size, pickle.dumps((function, arguments)), limit)
            outcome = watch.outcome()
            finished = True
            return outcome
        finally:
            if not finished:
                self._stop()

    def _assign(self, size: int, payload: bytes, limit: float) -> None:
        self._cases += 1
        assignment = Assignment(
            payload=payload,
            world_size=size,
            backend=self.options.backend,
            store_path=str(Path(self._folder.name) / f"store{self._cases}"),
            timeout_seconds=limit,
            module_path=tuple(sys.path),
            sharing=self.world_size if self.options.share_gpus else 0,
        )
        for worker in self._workers[:size]:
            with suppress(OSError):  # the watch reports a worker that has died since
                worker.control.send(assignment)

    def _start(self) -> None:
        threads = {"OMP_NUM_THREADS": str(self.options.threads)}
        _require_address_space()
        context = forking([ENDING_MODULE, WORKER_MODULE, *self.options.preload], threads)
        limit = Machine.here().share(self.world_size) if self.options.limited else 0
        for rank in range(self.world_size):
            control, remote_control = context.Pipe()
            output, remote_output = context.Pipe(duplex=False)
            process = context.Process(
                target=_serve,
                args=({**os.environ, **threads}, rank, remote_control, remote_output),
                kwargs={"threads": self.options.threads, "memory": limit},
                daemon=True,
            )
            try:
                process.start()
            except (EOFError, ConnectionError):  # its server has ended
                raise RankFailure(rank, _SERVER_ENDED) from limit_of_server()
            finally:
                remote_control.close()
                remote_output.close()
            self._workers.append(Worker(rank, process, control, output))

    def _stop(self) -> None:
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.join()
            worker.control.close()
            worker.output.close()
            worker.process.close()
        self._workers.clear()


def _require_address_space() -> None:
    """Refuse a limit below which torch, or a library that it loads, ends the process by itself."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < LEAST_LIMIT_BYTES:
        sentence = f"a rank may take {limit / 1e9:.2f} GB, which is too little for torch"
        raise InputError("memory", f"{sentence}; raise `ulimit -v`")


def _serve(
    variables: dict[str, str], rank: int, control: Connection, output: Connection, **resources: Any
) -> None:
    os.environ.update(variables)
    try:
        from ringproof.cluster.worker import serve  # in the worker only
    except Exception as error:  # whatever torch raises that cannot be loaded
        said = f"{type(error).__name__}: {' '.join(str(error).split())}"
        control.send_bytes(pickle.dumps(RankResult(rank, error=said, failed_at=time.monotonic())))
        return
    serve(rank, control, output, **resources)


def launched_world() -> tuple[int, int] | None:
    """Return ``(rank, world size)`` under a launcher such as torchrun, otherwise ``None``."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    if any(name not in os.environ for name in names):
        return None
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def run_launched(
    function: CaseFunction, options: ClusterOptions, arguments: dict[str, Any]
) -> list[Any]:
    """Run a case in the launched world, and return the values of all ranks on every rank.

    The options give the backend, the timeout of each collective, and whether ranks may share GPUs.
    """
    from ringproof.cluster.worker import run_in_launched_world  # imports torch

    return run_in_launched_world(function, arguments, options)
