"""Programs run on forked ranks, watched from outside: who failed first, who waits for whom."""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil
from pydantic import TypeAdapter

from ringproof.errors import InputError
from ringproof.prove.executed import Touch, note
from ringproof.rehearsal.program import Failure, Program, RankReport, SendRace, Upstream
from ringproof.rehearsal.rank import board
from ringproof.stack.products import BRIDGE, ENGINE, MEGATRON

POLL_SECONDS = 0.1
SETTLE_SECONDS = 3.0  # what other ranks get to report after the first has failed
STILL_SECONDS = 15.0  # without progress and processor time, ranks count as hung
STILL_SHARE = 0.05  # of a processor for each rank; one that waits in gloo was seen to use 0.017
LOG_TAIL = 4000
PORTS = range(10_000, 30_000)  # below the ports of outgoing connections
# Variables that decide what upstream does come from the launch, not from the caller's shell.
DECIDING = ("CUDA_DEVICE_MAX_CONNECTIONS", "CUBLAS_", "NCCL_", "NVTE_", "MEGATRON_", "MCORE_")
# What Megatron asks of a launch with TP or CP on the GPU whose properties it sees.
ENVIRONMENT = MappingProxyType({"CUDA_DEVICE_MAX_CONNECTIONS": "1"})
REPORT = TypeAdapter(RankReport)

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """What became of a run.

    Attributes:
        ranks: Reports of the ranks that wrote one, by rank.
        failure: ``None`` when every rank ran through.
        seconds: Wall-clock time from the forks to the last report.
        memory_bytes: Highest sum of the ranks' own (not shared) memory that was seen.
    """

    ranks: tuple[RankReport, ...]
    failure: Failure | None
    seconds: float
    memory_bytes: int
    folder: Path

    @property
    def losses(self) -> dict[int, dict[str, float]]:
        """Losses by training step, from a rank that holds them."""
        found: dict[int, dict[str, float]] = {}
        for report in self.ranks:
            for step in report.iterations:
                if step.losses:
                    found.setdefault(step.number, dict(step.losses))
        return found

    @property
    def grad_norms(self) -> dict[int, float]:
        """Gradient norms by training step."""
        return {
            step.number: step.grad_norm
            for report in self.ranks
            for step in report.iterations
            if step.grad_norm is not None
        }

    @property
    def evaluations(self) -> tuple[Mapping[str, float], ...]:
        """Losses of each evaluation, from a rank that holds them."""
        return next((r.evaluations for r in self.ranks if any(r.evaluations)), ())

    @property
    def races(self) -> tuple[SendRace, ...]:
        """Races of all ranks, each kind and place once."""
        counts: Counter[tuple[str, str, str]] = Counter()
        for report in self.ranks:
            for race in report.races:
                counts[race.change, race.sent, race.waited] += race.count
        return tuple(SendRace(*where, count) for where, count in sorted(counts.items()))


class Server(contextlib.ExitStack):
    """An interpreter that has imported an upstream and forks ranks; a context manager.

    Args:
        script: Script whose imports are made before the first fork; empty for none.
        environment: Variables that upstream may read while it is imported.

    Raises:
        UpstreamFails: Upstream cannot be imported.
    """

    def __init__(
        self,
        upstream: Upstream,
        script: str = "",
        *,
        environment: Mapping[str, str] | None = None,
        dtype: str = "float32",
        log: Path | None = None,
    ) -> None:
        super().__init__()
        self._upstream, self._script, self._dtype = upstream, script, dtype
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(DECIDING)},
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            **(environment or {}),
        }
        self._log = log

    def __enter__(self) -> Server:
        with contextlib.ExitStack() as failing:
            failing.callback(self.close)
            self._start()
            failure = self._ask("prepare", self._upstream, self._dtype, self._script)
            if failure is not None:
                raise UpstreamFails(failure)
            failing.pop_all()
        return self

    def _start(self) -> None:
        self._connection, theirs = Pipe()
        self.callback(self._connection.close)
        with theirs, Path(self._log or os.devnull).open("w") as sink:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "ringproof.rehearsal.rank.server", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env=self._environment,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self.callback(self._process.wait)
        self.callback(self._process.kill)

    def _ask(self, name: str, *given: object) -> Any:
        """Let the server answer a question; see `ringproof.rehearsal.rank.server`."""
        try:
            self._connection.send((name, *given))
            return self._connection.recv()
        except (EOFError, OSError):
            message = f"ServerDied: the importing process ended with {self._process.wait()}"
            tail = self._log.read_text(errors="replace")[-LOG_TAIL:] if self._log else ""
            raise UpstreamFails(Failure("import", -1, message, traceback=tail)) from None

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

        Raises:
            InputError: The program belongs to another upstream.
        """
        if program.upstream != self._upstream:
            raise InputError(
                "program", program.upstream.megatron_name, "is of another upstream",
                "start a server for it",
            )  # fmt: skip
        folder.mkdir(parents=True, exist_ok=True)
        for stale in folder.glob("rank-*"):  # a report of an earlier run is not one of this run
            stale.unlink()
        pids = self._ask("start", program, _free_port(), folder)
        watch = _Watch(pids, folder, lambda left: self._ask("reap", left), program.upstream)
        try:
            outcome = watch.outcome(limit_seconds, progress)
        finally:
            watch.end_all()
        for touch in _touches(program.upstream, outcome):
            note(touch)
        return outcome


def _touches(upstream: Upstream, outcome: Outcome) -> Iterator[Touch]:
    """What of upstream the ranks imported, and so executed."""
    imported = {name for report in outcome.ranks for name in report.imported}
    bridge = next((str(folder) for folder in upstream.extra), "")
    for package, repo, name, root in (
        ("megatron.core", MEGATRON, upstream.megatron_name, str(upstream.megatron)),
        ("megatron.bridge", BRIDGE, bridge, bridge),
        ("transformer_engine.pytorch", ENGINE, upstream.engine_version, str(upstream.engine)),
    ):
        if package in imported:
            yield Touch(True, repo, name, root)


class Servers(contextlib.ExitStack):
    """Servers that start when they are needed; a context manager that ends all of them."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._started: dict[tuple[Upstream, str, str], Server] = {}

    def run(
        self, program: Program, preload: str, folder: Path, *, limit_seconds: float = 600.0
    ) -> Outcome:
        """Run a program on the server of its upstream, the script ``preload`` and its dtype."""
        key = (program.upstream, preload, program.dtype)
        if key not in self._started:
            log = self._folder / f"server-{len(self._started)}.log"
            server = Server(
                program.upstream, preload, environment=ENVIRONMENT, dtype=program.dtype, log=log
            )
            self._started[key] = self.enter_context(server)
        return self._started[key].run(program, folder, limit_seconds=limit_seconds)


class UpstreamFails(RuntimeError):
    """Upstream cannot be imported."""

    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        where = f" at {failure.place}" if failure.place else ""
        super().__init__(f"upstream cannot be imported: {failure.message}{where}")


def _free_port() -> int:
    """A port that nobody listens on, and that the kernel gives to no outgoing connection."""
    generator = random.SystemRandom()
    while True:
        port = generator.choice(PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class _Watch:
    """One run, from outside."""

    def __init__(
        self,
        pids: list[int],
        folder: Path,
        reap: Callable[[list[int]], Mapping[int, int]],
        upstream: Upstream,
    ) -> None:
        self._pids, self._folder = dict(enumerate(pids)), folder
        self._reap, self._upstream = reap, upstream
        self._codes: dict[int, int] = {}
        self._started = self._since = time.monotonic()
        self._counts: dict[int, int] = {}
        self._processor, self._memory = 0.0, 0

    @property
    def _open(self) -> list[int]:
        """Ranks that have not ended."""
        return [rank for rank in self._pids if rank not in self._codes]

    def outcome(self, limit_seconds: float, progress: Progress | None) -> Outcome:
        """Wait for the ranks; end them all when one fails or all stand still."""
        failure, settled = None, math.inf
        while self._open and time.monotonic() < settled:
            time.sleep(POLL_SECONDS)
            self._collect()
            if failure is None:
                failure = self._failed() or self._stuck(limit_seconds)
                if failure is not None:
                    ended = failure.kind in ("hung", "timeout")
                    settled = time.monotonic() + (0.0 if ended else SETTLE_SECONDS)
            if progress is not None:
                line = _last_line(self._folder / f"rank-{len(self._pids) - 1}.log")[:100]
                seconds = time.monotonic() - self._started
                progress(f"{seconds:3.0f} s, {len(self._open)} ranks running: {line}")
        seconds = time.monotonic() - self._started
        failure = self._first(failure or self._failed())
        self.end_all()
        reports = [report for report in map(self._report, self._pids) if report is not None]
        return Outcome(tuple(reports), failure, seconds, self._memory, self._folder)

    def _collect(self) -> None:
        """Note which ranks have ended, and what the others use."""
        left = self._open
        counts = {rank: board.read(self._folder / f"rank-{rank}.board")[0] for rank in left}
        usages = [_usage(self._pids[rank]) for rank in left]
        used = sum(seconds for seconds, _, _ in usages)
        self._memory = max(self._memory, sum(memory for _, _, memory in usages))
        now = time.monotonic()
        least = STILL_SHARE * len(left) * max(now - self._since, POLL_SECONDS)
        # A rank that could run and gets no processor, as on a machine with too much to do, is not
        # still.
        runnable = any(wants for _, wants, _ in usages)
        if counts != self._counts or used - self._processor > least or runnable:
            self._counts, self._processor, self._since = counts, used, now
        ended = self._reap([self._pids[rank] for rank in left])
        self._codes |= {rank: ended[self._pids[rank]] for rank in left if self._pids[rank] in ended}

    def _failed(self) -> Failure | None:
        return next((self._failure_of(rank) for rank, code in self._codes.items() if code), None)

    def _failure_of(self, rank: int) -> Failure:
        report, code = self._report(rank), self._codes[rank]
        if report is not None and report.error is not None:
            return replace(report.error, waiting=self._waiting())
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        tail = _last_line(self._folder / f"rank-{rank}.log")
        return Failure("died", rank, f"ended by {how}: {tail}", waiting=self._waiting())

    def _first(self, failure: Failure | None) -> Failure | None:
        """The failure that caused the others: the one that is not about a lost neighbour."""
        if failure is None or failure.kind != "raised" or not _follows(failure.message):
            return failure
        others = (self._failure_of(rank) for rank, code in sorted(self._codes.items()) if code)
        return next((other for other in others if not _follows(other.message)), failure)

    def _stuck(self, limit_seconds: float) -> Failure | None:
        now, left = time.monotonic(), self._open
        if left and now - self._since > STILL_SECONDS:
            waiting = self._waiting()
            rank = next((rank for rank in left if rank not in waiting), min(left))
            message = waiting.get(rank, "waits outside of any collective")
            return Failure("hung", rank, message, waiting=waiting)
        if left and now - self._started > limit_seconds:
            message = f"not finished after {limit_seconds:g} s"
            return Failure("timeout", min(left), message, waiting=self._waiting())
        return None

    def _waiting(self) -> dict[int, str]:
        texts = {rank: board.read(self._folder / f"rank-{rank}.board")[1] for rank in self._open}
        return {rank: self._upstream.relative(text) for rank, text in texts.items() if text}

    def _report(self, rank: int) -> RankReport | None:
        path = self._folder / f"rank-{rank}.json"
        return REPORT.validate_python(json.loads(path.read_text())) if path.is_file() else None

    def end_all(self) -> None:
        """Kill what still runs; a rank leads a process group, so that its children end, too."""
        for pid in self._pids.values():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        deadline = time.monotonic() + SETTLE_SECONDS
        while self._open and time.monotonic() < deadline:
            with contextlib.suppress(UpstreamFails):
                self._collect()
            time.sleep(POLL_SECONDS / 4)


def _usage(pid: int) -> tuple[float, bool, int]:
    """Processor seconds of a process, whether it runs or waits for that or a disk, and its bytes.

    Bytes are the memory that it shares with no other.
    """
    try:
        process = psutil.Process(pid)
        times, status, memory = process.cpu_times(), process.status(), process.memory_info()
    except psutil.Error:
        return 0.0, False, 0
    wants = status in (psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP)
    return float(times.user + times.system), wants, int(memory.rss - memory.shared)


def _last_line(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - LOG_TAIL))
            lines = stream.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1].strip() if lines else ""


def _follows(message: str) -> bool:
    """Whether an error says that a neighbour went away."""
    signs = ("Connection closed by peer", "Connection reset", "Socket closed", "gloo", "TCPStore")
    return any(sign in message for sign in signs)
