"""Watch a run from outside: find the rank that failed first, and what the other ranks wait for."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import psutil
from pydantic import TypeAdapter

from ringproof.files import read_bounded
from ringproof.programs import ended_by
from ringproof.rehearsal.protocol import board
from ringproof.rehearsal.protocol.program import Upstream
from ringproof.rehearsal.protocol.reports import Failure, RankReport
from ringproof.rehearsal.runs.outcome import Outcome, UpstreamFails

POLL_SECONDS = 0.1
SETTLE_SECONDS = 3.0  # what other ranks get to report after the first has failed
STILL_SECONDS = 15.0  # without progress and processor time, ranks count as hung
STILL_SHARE = 0.05  # of a processor for each rank; one that waits in gloo was seen to use 0.017
TAIL_BYTES = 20_000
MOST_REPORT_BYTES = 200_000_000
GIB = 1 << 30
MEMORY_EVENTS = Path("/sys/fs/cgroup/memory.events")
NOT_FINITE = re.compile(
    r"Unexpected result -?(?:nan|inf) on rank \d+ at iteration #(?P<step>\d+)[^\n]*"
    r"message='(?P<message>[^'\n]{1,200})'"
)
"""What Megatron's rerun state machine logs before it saves a checkpoint and ends."""
REPORT = TypeAdapter(RankReport)

Progress = Callable[[str], None]


class RunWatch:
    """One run, from outside."""

    def __init__(
        self,
        pids: Mapping[int, int],
        folder: Path,
        reap: Callable[[list[int]], Mapping[int, int]],
        upstream: Upstream,
    ) -> None:
        self._pids, self._folder = dict(pids), folder
        self._reap, self._upstream = reap, upstream
        self._codes: dict[int, int] = {}
        self._started = self._since = time.monotonic()
        self._counts: dict[int, int] = {}
        self._processor, self._memory = 0.0, 0
        self._free, self._kills = psutil.virtual_memory().available, _killed_for_memory()

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
                line = _last_line(self._folder / f"rank-{max(self._pids)}.log")[:100]
                seconds = time.monotonic() - self._started
                progress(f"{seconds:3.0f} s, {len(self._open)} ranks running: {line}")
        seconds = time.monotonic() - self._started
        failure = self._first(failure or self._failed())
        self.end_all()
        reports = [report for report in map(self._report, self._pids) if report is not None]
        if failure is None:
            failure = self._without_report(self._pids)
        return Outcome(tuple(reports), failure, seconds, self._memory, self._folder)

    def _collect(self) -> None:
        """Note which ranks have ended, and what the others use."""
        left = self._open
        counts = {rank: board.read(self._folder / f"rank-{rank}.board")[0] for rank in left}
        usages = [_usage(self._pids[rank]) for rank in left]
        used = sum(seconds for seconds, _, _ in usages)
        self._memory = max(self._memory, sum(memory for _, _, memory in usages))
        self._free = min(self._free, psutil.virtual_memory().available)
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
        log = self._folder / f"rank-{rank}.log"
        if report is not None and report.error is not None:
            return replace(report.error, waiting=self._waiting(), cause=_not_finite(log))
        how = ended_by(code)
        killed = code == -signal.SIGKILL
        kind = "memory" if killed and _killed_for_memory() > self._kills else "died"
        if killed:
            held, left = self._memory / GIB, self._free / GIB
            how += (
                f", as when memory runs out (the ranks held {held:.1f} GiB, {left:.1f} were left)"
            )
        message = f"ended by {how}: {_last_line(log) or 'its log is empty'}"
        return Failure(kind, rank, message, waiting=self._waiting())

    def _without_report(self, ranks: Iterable[int]) -> Failure | None:
        """The first of some ranks that ended as if all were well and wrote no report."""
        rank = next((rank for rank in ranks if self._report(rank) is None), None)
        if rank is None:
            return None
        message = "ended with exit code 0 and without a report that can be read"
        return Failure("died", rank, message)

    def _first(self, failure: Failure | None) -> Failure | None:
        """The failure that caused the others: the one that is not about a lost neighbour.

        A rank that ended with 0 and without a report is lost as well.
        """
        if failure is None or failure.kind != "raised" or not _follows(failure.message):
            return failure
        others = (self._failure_of(rank) for rank, code in sorted(self._codes.items()) if code)
        first = next((other for other in others if not _follows(other.message)), None)
        quiet = [rank for rank, code in sorted(self._codes.items()) if code == 0]
        return first or self._without_report(quiet) or failure

    def _stuck(self, limit_seconds: float) -> Failure | None:
        now, left = time.monotonic(), self._open
        if left and now - self._since > STILL_SECONDS:
            waiting = self._waiting()
            stopped = next((rank for rank in left if _is_stopped(self._pids[rank])), None)
            if stopped is not None:
                return Failure("hung", stopped, "stopped by a signal", waiting=waiting)
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
        """Read the report of a rank, which upstream's code may have written or changed."""
        path = self._folder / f"rank-{rank}.json"
        try:
            text = read_bounded(path, MOST_REPORT_BYTES) if path.is_file() else b""
            report = REPORT.validate_python(json.loads(text))
        except (OSError, ValueError, RecursionError):
            return None
        return report if report.rank == rank else None

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


def _is_stopped(pid: int) -> bool:
    with contextlib.suppress(psutil.Error):
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    return False


def tail(path: Path) -> str:
    """Return the last bytes of a log as text; empty where it cannot be read."""
    try:
        if not path.is_file():
            return ""
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - TAIL_BYTES))
            return stream.read().decode(errors="replace")
    except OSError:
        return ""


def _killed_for_memory() -> int:
    """Number of processes that the kernel has killed for memory in this control group."""
    with contextlib.suppress(OSError, ValueError):
        fields = dict(line.split() for line in MEMORY_EVENTS.read_text().splitlines())
        return int(fields.get("oom_kill", 0))
    return 0


def _not_finite(log: Path) -> str:
    """Say what Megatron found that is not finite, by its own words in a rank's log; or nothing."""
    found = NOT_FINITE.search(tail(log))
    return "" if found is None else f"{found['message']} in iteration {found['step']}"


def _last_line(path: Path) -> str:
    return (tail(path).strip().splitlines() or [""])[-1].strip()


def _follows(message: str) -> bool:
    """Whether an error says that a neighbour went away."""
    signs = ("Connection closed by peer", "Connection reset", "Socket closed", "gloo", "TCPStore")
    return any(sign in message for sign in signs)
