"""Interpreters that have imported an upstream, and run programs on ranks that they fork."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import random
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from multiprocessing import Pipe
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ringproof.budget import free_memory
from ringproof.files import claimed
from ringproof.programs import TimeLimit, ended_by, python, started, variables
from ringproof.prove.touches import Touch, is_collecting, note
from ringproof.rehearsal.protocol.program import FullSize, Program, Upstream
from ringproof.rehearsal.protocol.reports import Failure
from ringproof.rehearsal.runs.outcome import Outcome, UpstreamFails
from ringproof.rehearsal.runs.upstreams import is_unpacked
from ringproof.rehearsal.runs.watch import Progress, RunWatch, tail
from ringproof.stack.products import BRIDGE, ENGINE, MEGATRON

PORT_TAKEN = "EADDRINUSE"
IMPORT_SECONDS = 600.0
ENDING_SECONDS = 12.0  # for a process that is about to end
LEAST_FREE_BYTES = 5 << 30
"""Free memory below which servers that nobody uses end: eight ranks of a rehearsal take 4 GB."""
PORTS = range(10_000, 30_000)  # below the ports of outgoing connections
# Variables that decide what upstream does come from the launch, not from the caller's shell.
DECIDING = ("CUDA_DEVICE_MAX_CONNECTIONS", "CUBLAS_", "NCCL_", "NVTE_", "MEGATRON_", "MCORE_")
NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
# What Megatron asks of a launch with TP or CP on the GPU whose properties it sees.
ENVIRONMENT = MappingProxyType({"CUDA_DEVICE_MAX_CONNECTIONS": "1"})


class Server(contextlib.ExitStack):
    """An interpreter that has imported an upstream and forks ranks; a context manager.

    It writes no bytecode where a folder of upstream is the user's own.

    Args:
        script: Script whose imports are made before the first fork; empty for none.
        environment: Variables that upstream may read while it is imported.
        full_size: Set if its programs are run at full size.
        import_seconds: Longest time of the import.

    Raises:
        UpstreamFails: Upstream cannot be imported, or not within that time.
    """

    def __init__(
        self,
        upstream: Upstream,
        script: str = "",
        *,
        environment: Mapping[str, str] | None = None,
        dtype: str = "float32",
        log: Path | None = None,
        full_size: FullSize | None = None,
        import_seconds: float = IMPORT_SECONDS,
    ) -> None:
        super().__init__()
        self._import_seconds = import_seconds
        self._upstream, self._script, self._dtype = upstream, script, dtype
        # What is compiled once need not be again (2.6 of 14 s); but never in a folder of the user.
        self._environment = {
            **variables(without=(*DECIDING, NO_BYTECODE)),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            **(environment or {}),
        }
        if not all(map(is_unpacked, upstream.roots)):
            self._environment[NO_BYTECODE] = "1"
        self._log, self._full_size = log, full_size

    def __enter__(self) -> Server:
        with contextlib.ExitStack() as failing:
            failing.callback(self.close)
            self._start()
            given = (self._upstream, self._dtype, self._script, self._full_size)
            failure = self._ask("prepare", *given, seconds=self._import_seconds)
            if failure is not None:
                raise UpstreamFails(failure)
            failing.pop_all()
        return self

    def _start(self) -> None:
        self._connection, theirs = Pipe()
        self.callback(self._connection.close)
        with theirs, Path(self._log or os.devnull).open("w") as sink:
            server = started(
                [*python(module="ringproof.rehearsal.rank.server"), str(theirs.fileno())],
                environment=self._environment,
                stdout=sink,
                supervised=True,
                pass_fds=[theirs.fileno()],
            )
            self._process = self.enter_context(server)

    def _ask(self, name: str, *given: object, seconds: float | None = None) -> Any:
        """Let the server answer a question; see `ringproof.rehearsal.rank.server`."""
        try:
            self._connection.send((name, *given))
            if not self._connection.poll(seconds):
                message = f"ended while upstream was imported, after {seconds:g} s"
                raise UpstreamFails(Failure("timeout", -1, message))
            return self._connection.recv()
        except (EOFError, OSError):
            message = self._ended()
            last = tail(self._log) if self._log else ""
            raise UpstreamFails(Failure("import", -1, message, traceback=last)) from None

    def _ended(self) -> str:
        try:
            how = ended_by(self._process.wait(ENDING_SECONDS))
        except TimeLimit:
            how = "upstream's code, which closed its connection"
        return f"the process that imports upstream and starts ranks was ended by {how}"

    def run(
        self,
        program: Program,
        folder: Path,
        *,
        limit_seconds: float = 600.0,
        progress: Progress | None = None,
    ) -> Outcome:
        """Run a program on its ranks and wait for all of them.

        Args:
            limit_seconds: After which the run is ended.

        Returns:
            What became of it. A failure with rank -1 means that this server has ended, too.
        """
        folder.mkdir(parents=True, exist_ok=True)
        for stale in folder.glob("rank-*"):  # a report of an earlier run is not one of this run
            stale.unlink()
        program = replace(program, listens=is_collecting())
        try:
            pids = self._ask("start", program, _free_port(), folder)
            watch = RunWatch(pids, folder, lambda left: self._ask("reap", left), program.upstream)
            try:
                outcome = watch.outcome(limit_seconds, progress)
            finally:
                watch.end_all()
                with contextlib.suppress(UpstreamFails):
                    self._ask("end")
        except UpstreamFails as lost:
            return Outcome((), replace(lost.failure, kind="died"), 0.0, 0, folder)
        for touch in _touches(program.upstream, outcome):
            note(touch)
        return outcome


def _touches(upstream: Upstream, outcome: Outcome) -> Iterator[Touch]:
    """Yield for each upstream which of its functions ran on the ranks."""
    for folder, repo, name in (
        (upstream.megatron, MEGATRON, upstream.megatron_name),
        *((folder, BRIDGE, str(folder)) for folder in upstream.extra[:1]),
        (upstream.engine, ENGINE, upstream.engine_version),
    ):
        root = str(folder)
        reports = [report.ran[root] for report in outcome.ranks if root in report.ran]
        if reports:
            yield Touch(False, repo, name, root).ran(dict.fromkeys(chain(*reports)))


class Servers(contextlib.ExitStack):
    """Servers that start when they are needed; a context manager that ends all of them.

    Each holds an imported upstream, 0.4 GB, for the next program that needs it. Before another one
    starts on a machine whose memory is short, those that were used longest ago end.

    Args:
        folder: Where their logs are.
        path: Folder whose modules programs may call.
        environment: Variables that upstream may read while it is imported.
        free: Function that returns the bytes of memory that are free.
        import_seconds: Longest time of each import.
    """

    def __init__(
        self,
        folder: Path,
        *,
        path: Path | None = None,
        environment: Mapping[str, str] = ENVIRONMENT,
        free: Callable[[], int] = free_memory,
        import_seconds: float = IMPORT_SECONDS,
    ) -> None:
        super().__init__()
        self._import_seconds = import_seconds
        known = variables().get("PYTHONPATH")
        paths = [str(one) for one in (path, known) if one]
        self._environment = {**environment, "PYTHONPATH": os.pathsep.join(paths)}
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._free = folder, free
        self._logs = itertools.count()
        self._started: dict[tuple[object, ...], Server] = {}  # the last used is the last

    def __enter__(self) -> Servers:
        """Claim the folder: another run would remove the reports of this one."""
        self.enter_context(claimed(self._folder, field="--out"))
        return self

    def run(
        self, program: Program, preload: str, folder: Path, *, limit_seconds: float = 600.0,
        progress: Progress | None = None,
    ) -> Outcome:  # fmt: skip
        """Run a program on the server of its upstream, the script ``preload`` and its dtype.

        Raises:
            UpstreamFails: Upstream cannot be imported, or not in time.
        """
        full = program.full_size
        key = (program.upstream, preload, program.dtype, full and full.computes)
        server = self._started.pop(key, None) or self._another(program, preload)
        run = functools.partial(
            server.run, program, folder, limit_seconds=limit_seconds, progress=progress
        )
        outcome = run()
        # Another program may have taken the port before the ranks did.
        taken = outcome.failure is not None and PORT_TAKEN in outcome.failure.message
        outcome = run() if taken else outcome
        if outcome.failure is None or outcome.failure.rank >= 0:  # not a server that has died
            self._started[key] = server
        return outcome

    def announced(
        self, name: str, program: Program, preload: str, folder: Path, limit_seconds: float,
        progress: Callable[[str, str], None],
    ) -> Outcome:  # fmt: skip
        """Run a program as `run` does, and say by ``progress`` in which phase it is."""
        phase = f"{name}, {program.ranks} ranks"
        progress(phase, "starts")
        told = functools.partial(progress, phase)
        return self.run(program, preload, folder, limit_seconds=limit_seconds, progress=told)

    def _another(self, program: Program, preload: str) -> Server:
        while self._started and self._free() < LEAST_FREE_BYTES:
            self._started.pop(next(iter(self._started))).close()
        server = Server(
            program.upstream,
            preload,
            environment=self._environment,
            dtype=program.dtype,
            log=self._folder / f"server-{next(self._logs)}.log",
            full_size=program.full_size,
            import_seconds=self._import_seconds,
        )
        return self.enter_context(server)


def _free_port() -> int:
    """A port that nobody listens on, and that the kernel gives to no outgoing connection."""
    generator = random.SystemRandom()
    while True:
        port = generator.choice(PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
