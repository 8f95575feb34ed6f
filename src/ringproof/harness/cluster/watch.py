"""Watches one case: forwards logs, collects reports, and finds out who failed first."""

from __future__ import annotations

import os
import re
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from ringproof.errors import InputError
from ringproof.harness.cluster.case import CaseOutcome, RankFailure, RankReport

LogSink = Callable[[int, str], None]

# After the first failure the others get this long to tell how they ended: a rank that raised
# because its neighbour went away must not be taken for the first.
SETTLE_SECONDS = 1.0
TAIL_LINES = 30
# How faulthandler heads a dump, and a frame of it; the innermost comes first.
DUMP_HEADING = "most recent call first"
FRAME = re.compile(r'File "(?P<path>.+)", line (?P<line>\d+) in (?P<function>\S+)')


@dataclass(frozen=True)
class Worker:
    """One rank as its parent holds it.

    Args:
        rank: Which.
        process: Its process.
        control: Assignments out, reports in.
        output: Its stdout and stderr.
    """

    rank: int
    process: BaseProcess
    control: Connection
    output: Connection


class Watch:
    """One case on some workers.

    Args:
        workers: The ranks of the case.
        log_sink: Called with each line.
        limit_seconds: Until the case counts as hung.
    """

    def __init__(self, workers: Sequence[Worker], log_sink: LogSink, limit_seconds: float) -> None:
        self._workers = {worker.rank: worker for worker in workers}
        self._log_sink = log_sink
        self._limit_seconds = limit_seconds
        self._logs: list[tuple[int, str]] = []
        self._partial = dict.fromkeys(self._workers, b"")
        self._open_outputs = set(self._workers)
        self._reports: dict[int, RankReport] = {}
        self._deaths: dict[int, str] = {}

    def outcome(self) -> CaseOutcome:
        """Wait for all ranks.

        Raises:
            InputError: Every rank refused the same input.
            RankFailure: A rank raised, died or hung.
        """
        self._wait_for_ranks()
        hung = self._unfinished() if not self._failed() else []
        if hung:
            self._ask_where_they_stand(hung)
        self._drain()
        if hung:
            raise self._hang(hung)
        if self._failed():
            raise self._failure()
        values = tuple(self._reports[rank].value for rank in sorted(self._workers))
        return CaseOutcome(values, tuple(self._logs))

    def _unfinished(self) -> list[int]:
        return [
            r for r in sorted(self._workers) if r not in self._reports and r not in self._deaths
        ]

    def _failed(self) -> bool:
        return bool(self._deaths) or any(report.error for report in self._reports.values())

    def _wait_for_ranks(self) -> None:
        deadline = time.monotonic() + self._limit_seconds
        while self._unfinished() and not self._failed() and time.monotonic() < deadline:
            self._poll(deadline - time.monotonic())
        settled = time.monotonic() + SETTLE_SECONDS
        while self._failed() and self._unfinished() and time.monotonic() < settled:
            self._poll(settled - time.monotonic())

    def _ask_where_they_stand(self, hung: Sequence[int]) -> None:
        """Let the ranks dump their stacks into their logs (see ``faulthandler`` in the worker)."""
        for rank in hung:
            os.kill(self._workers[rank].process.pid or 0, signal.SIGUSR1)
        settled = time.monotonic() + SETTLE_SECONDS
        while (left := settled - time.monotonic()) > 0:
            self._poll(left, until_finished=False)

    def _poll(self, seconds: float, *, until_finished: bool = True) -> None:
        """Wait for something to happen and take it in."""
        unfinished = self._unfinished() if until_finished else []
        controls = [self._workers[rank].control for rank in unfinished]
        outputs = [self._workers[rank].output for rank in self._open_outputs]
        ready = wait([*controls, *outputs], timeout=max(seconds, 0.0))
        for rank, worker in self._workers.items():
            if worker.output in ready:
                self._take_output(rank)
            if worker.control in ready:
                self._take_report(rank)

    def _take_report(self, rank: int) -> None:
        worker = self._workers[rank]
        try:
            self._reports[rank] = worker.control.recv()
        except (EOFError, OSError):
            worker.process.join(SETTLE_SECONDS)
            self._deaths[rank] = _exit_reason(worker.process.exitcode)

    def _take_output(self, rank: int) -> None:
        chunk = os.read(self._workers[rank].output.fileno(), 1 << 16)
        if not chunk:
            self._open_outputs.discard(rank)
        *lines, self._partial[rank] = (self._partial[rank] + chunk).split(b"\n")
        for line in lines:
            self._log(rank, line)

    def _log(self, rank: int, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip("\r")
        self._logs.append((rank, text))
        self._log_sink(rank, text)

    def _drain(self) -> None:
        """What was written before a report was sent is in the pipe by now."""
        while ready := wait([self._workers[rank].output for rank in self._open_outputs], timeout=0):
            for rank in [r for r in self._open_outputs if self._workers[r].output in ready]:
                self._take_output(rank)
        for rank, rest in self._partial.items():
            if rest:
                self._log(rank, rest)

    def _failure(self) -> Exception:
        if self._deaths:
            rank = min(self._deaths)
            return RankFailure(rank, self._deaths[rank], self._tail(rank), self._others(rank))
        raised = [report for report in self._reports.values() if report.error]
        if len(raised) == len(self._workers) and (refused := _same_refusal(raised)):
            return InputError(*refused)
        first = min(raised, key=lambda report: report.failed_at or 0.0)
        return RankFailure(first.rank, first.error, first.traceback, self._others(first.rank))

    def _hang(self, hung: Sequence[int]) -> RankFailure:
        """Name the rank that others wait for: the one that stands outside torch.distributed."""
        frames = {rank: self._innermost_frame(rank) for rank in hung}
        waiting = [rank for rank in hung if "torch/distributed" in frames[rank]]
        rank = next((r for r in hung if r not in waiting), hung[0])
        others = "; ".join(f"rank {r} at {frames[r]}" for r in hung if r != rank)
        reason = f"not finished after {self._limit_seconds:g} s, at {frames[rank]}"
        return RankFailure(rank, reason, self._tail(rank), others)

    def _innermost_frame(self, rank: int) -> str:
        innermost = "an unknown place"
        after_heading = False
        for line in self._lines(rank):
            found = FRAME.search(line)
            if found and after_heading:
                innermost = f"{found['path']}:{found['line']} in {found['function']}"
            after_heading = DUMP_HEADING in line
        return innermost

    def _lines(self, rank: int) -> list[str]:
        return [line for owner, line in self._logs if owner == rank]

    def _tail(self, rank: int) -> str:
        return "\n".join(deque(self._lines(rank), maxlen=TAIL_LINES))

    def _others(self, first: int) -> str:
        """What became of the ranks that did not fail first."""
        states = []
        for rank in sorted(set(self._workers) - {first}):
            report = self._reports.get(rank)
            if rank in self._deaths:
                states.append(f"rank {rank} died too")
            elif report is None:
                states.append(f"rank {rank} was stopped")
            elif report.error:
                states.append(f"rank {rank} failed after it")
        return ", ".join(states)


def _same_refusal(reports: Sequence[RankReport]) -> tuple[str, str, str, str] | None:
    """What all ranks refused, if it is the same field for the same reason everywhere."""
    first = reports[0].refused
    reasons = {r.refused and (r.refused[0], r.refused[2]) for r in reports}
    return first if len(reasons) == 1 else None


def _exit_reason(code: int | None) -> str:
    if code is not None and code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exited with code {code}"
