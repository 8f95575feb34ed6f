"""Programs run on forked ranks, watched from outside: who failed first, who waits for whom."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

import psutil
from pydantic import TypeAdapter

from ringproof.errors import InputError
from ringproof.harness.proofs.executed import Touch, note
from ringproof.harness.stack.products import BRIDGE, ENGINE, MEGATRON
from ringproof.rehearsal.program import Program, RankError, RankReport, SendRace, Upstream
from ringproof.rehearsal.rank import board

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

UPSTREAM, PROGRAM, REPORT = TypeAdapter(Upstream), TypeAdapter(Program), TypeAdapter(RankReport)

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Failure:
    """Why a run did not end well.

    Attributes:
        kind: ``raised``, ``died``, ``hung`` or ``timeout``.
        place: ``FILE:LINE`` in upstream, where known.
        symbol: The symbol that no stand-in implements, if that was the reason.
        waiting: Collective and group that each unfinished rank waits in, by rank.
    """

    kind: str
    rank: int
    message: str
    place: str = ""
    symbol: str = ""
    waiting: Mapping[int, str] = field(default_factory=dict)
    traceback: str = ""


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


class Server:
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
        self._upstream = upstream
        self._setup = {
            "upstream": UPSTREAM.dump_python(upstream, mode="json"),
            "preload": script,
            "dtype": dtype,
        }
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(DECIDING)},
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            **(environment or {}),
        }
        self._log = log
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Server:
        sink = subprocess.DEVNULL if self._log is None else self._log.open("w")
        with contextlib.ExitStack() as stack:
            if not isinstance(sink, int):
                stack.enter_context(sink)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "ringproof.rehearsal.rank.server"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=sink,
                text=True,
                env=self._environment,
                start_new_session=True,
            )
        try:
            answer = self._ask(self._setup)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        if answer["error"] is not None:
            self.__exit__(None, None, None)
            raise UpstreamFails(RankError(**answer["error"]))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        self._process = None

    def _ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(question) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            code = process.wait()
            tail = self._log.read_text(errors="replace")[-LOG_TAIL:] if self._log else ""
            raise UpstreamFails(
                RankError("ServerDied", f"the importing process ended with {code}", "", "", tail)
            )
        return dict(json.loads(line))

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
        request = {
            "folder": str(folder),
            "port": _free_port(),
            "program": PROGRAM.dump_python(program, mode="json"),
        }
        pids = self._ask(request)["pids"]
        roots = program.upstream.roots
        watch = _Watch(
            pids, folder, lambda open_pids: self._ask({"reap": open_pids})["ended"], roots
        )
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

    def __init__(self, error: RankError) -> None:
        self.error = error
        where = f" at {error.place}" if error.place else ""
        super().__init__(f"upstream cannot be imported: {error.type}: {error.message}{where}")


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
        reap: Callable[[list[int]], Mapping[str, int]],
        roots: Sequence[Path],
    ) -> None:
        self._pids = dict(enumerate(pids))
        self._folder = folder
        self._reap = reap
        self._roots = roots
        self._codes: dict[int, int] = {}
        self._stillness = _Stillness(self._pids, folder)
        self._started = time.monotonic()
        self._memory = 0

    def outcome(self, limit_seconds: float, progress: Progress | None) -> Outcome:
        """Wait for the ranks; end them all when one fails or all stand still."""
        failure, settled = None, None
        while len(self._codes) < len(self._pids):
            time.sleep(POLL_SECONDS)
            self._collect()
            now = time.monotonic()
            if failure is None:
                failure = self._failed() or self._stuck(now, limit_seconds)
                settled = now + SETTLE_SECONDS
            elif settled is not None and now > settled:
                break
            if failure is not None and failure.kind in ("hung", "timeout"):
                break
            if progress is not None:
                self._tell(progress)
        seconds = time.monotonic() - self._started
        failure = failure or self._failed()
        failure = self._first(failure)
        self.end_all()
        return Outcome(tuple(self._reports()), failure, seconds, self._memory, self._folder)

    def _collect(self) -> None:
        open_ranks = {pid: rank for rank, pid in self._pids.items() if rank not in self._codes}
        self._memory = max(self._memory, sum(map(_own_memory, open_ranks)))
        for pid, code in self._reap(list(open_ranks)).items():
            self._codes[open_ranks[int(pid)]] = code

    def _failed(self) -> Failure | None:
        for rank, code in self._codes.items():
            if code:
                return self._failure_of(rank, code)
        return None

    def _failure_of(self, rank: int, code: int) -> Failure:
        report = self._report(rank)
        if report is not None and report.error is not None:
            error = report.error
            text = f"{error.type}: {error.message}"
            return Failure(
                "raised", rank, text, error.place, error.symbol, self._waiting(), error.traceback
            )
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        tail = _last_line(self._folder / f"rank-{rank}.log")
        return Failure("died", rank, f"ended by {how}: {tail}", waiting=self._waiting())

    def _first(self, failure: Failure | None) -> Failure | None:
        """The failure that caused the others: the one that is not about a lost neighbour."""
        if failure is None or failure.kind != "raised" or not _follows(failure.message):
            return failure
        for rank, code in sorted(self._codes.items()):
            other = self._failure_of(rank, code) if code else None
            if other is not None and not _follows(other.message):
                return other
        return failure

    def _stuck(self, now: float, limit_seconds: float) -> Failure | None:
        waiting = self._waiting()
        if self._stillness.seconds(now, set(self._pids) - set(self._codes)) > STILL_SECONDS:
            idle = [rank for rank in self._open() if rank not in waiting]
            rank = idle[0] if idle else min(self._open())
            message = waiting.get(rank, "waits outside of any collective")
            return Failure("hung", rank, message, waiting=waiting)
        if now - self._started > limit_seconds:
            message = f"not finished after {limit_seconds:g} s"
            return Failure("timeout", min(self._open()), message, waiting=waiting)
        return None

    def _open(self) -> list[int]:
        return [rank for rank in self._pids if rank not in self._codes]

    def _waiting(self) -> dict[int, str]:
        states = {rank: board.read(self._folder / f"rank-{rank}.board")[1] for rank in self._open()}
        return {rank: self._relative(text) for rank, text in states.items() if text}

    def _relative(self, text: str) -> str:
        """A text with paths relative to the upstream folders."""
        for root in self._roots:
            text = text.replace(f"{root}/", "")
        return text

    def _report(self, rank: int) -> RankReport | None:
        path = self._folder / f"rank-{rank}.json"
        return REPORT.validate_python(json.loads(path.read_text())) if path.is_file() else None

    def _reports(self) -> Iterator[RankReport]:
        for rank in self._pids:
            report = self._report(rank)
            if report is not None:
                yield report

    def _tell(self, progress: Progress) -> None:
        seconds = time.monotonic() - self._started
        last = len(self._pids) - 1
        line = _last_line(self._folder / f"rank-{last}.log")
        progress(f"{seconds:3.0f} s, {len(self._open())} ranks running: {line[:100]}")

    def end_all(self) -> None:
        """Kill what still runs; a rank leads a process group, so that its children end, too."""
        for pid in self._pids.values():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        deadline = time.monotonic() + SETTLE_SECONDS
        while self._open() and time.monotonic() < deadline:
            with contextlib.suppress(UpstreamFails, AssertionError):
                self._collect()
            time.sleep(POLL_SECONDS / 4)


class _Stillness:
    """For how long no rank has made a step, used a processor, or asked for one."""

    def __init__(self, pids: Mapping[int, int], folder: Path) -> None:
        self._pids, self._folder = pids, folder
        self._since = time.monotonic()
        self._counts: dict[int, int] = {}
        self._processor = 0.0

    def seconds(self, now: float, open_ranks: set[int]) -> float:
        """Return it; any progress of an open rank starts it anew.

        A rank that could run and gets no processor, as on a machine with too much to do, is not
        still: its process is runnable.
        """
        counts = {r: board.read(self._folder / f"rank-{r}.board")[0] for r in open_ranks}
        used, runnable = 0.0, False
        for rank in open_ranks:
            seconds, wants = _processor(self._pids[rank])
            used, runnable = used + seconds, runnable or wants
        least = STILL_SHARE * len(open_ranks)
        busy = used - self._processor > least * max(now - self._since, POLL_SECONDS)
        if counts != self._counts or busy or runnable:
            self._counts, self._processor, self._since = counts, used, now
        return now - self._since


def _processor(pid: int) -> tuple[float, bool]:
    """Processor time of a process in seconds, and whether it runs, or waits for that or a disk."""
    try:
        process = psutil.Process(pid)
        times, status = process.cpu_times(), process.status()
    except psutil.Error:
        return 0.0, False
    wants = status in (psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP)
    return float(times.user + times.system), wants


def _own_memory(pid: int) -> int:
    try:
        memory = psutil.Process(pid).memory_info()
    except psutil.Error:
        return 0
    return int(memory.rss - memory.shared)


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
