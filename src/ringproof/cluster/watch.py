"""Watches one case: forwards logs, collects reports, and finds the rank that failed first."""

from __future__ import annotations

import os
import pickle
import re
import signal
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from ringproof.cluster.case import (
    CaseOutcome,
    LogSink,
    RankFailure,
    RankRefusal,
    RankResult,
)
from ringproof.errors import InputError
from ringproof.programs import ended_by

# Time after the first failure in which other ranks report how they ended, so that a rank that
# raised because its neighbour ended is not taken for the first.
SETTLE_SECONDS = 2.0
MAX_SETTLE_SECONDS = 6.0
QUIET_SECONDS = 0.5  # after which a stack dump is taken to be whole
NOTICE_SECONDS = 0.2
DRAIN_SECONDS = 0.5
TAIL_LINES = 30
KEPT_LINES = 200_000  # for all ranks together, so that endless output does not fill the memory
# Functions in which a rank waits for others.
COMMUNICATION = ("torch/distributed/", "reference/attention/communicator.py", "torch/autograd/")
GUARD_HINT = "a script that starts a Cluster needs `if __name__ == '__main__':` and a file"
# Head and frames of a dump of faulthandler; the innermost frame comes first.
DUMP_HEADING = "most recent call first"
FRAME = re.compile(r'File "(?P<path>.+)", line (?P<line>\d+) in (?P<function>\S+)')


@dataclass(frozen=True)
class Worker:
    """A rank as seen by its parent: assignments and reports pass through ``control``."""

    rank: int
    process: BaseProcess
    control: Connection
    output: Connection


@dataclass(frozen=True)
class _Death:
    """A process that ended without a report: when its channel closed, and its exit code."""

    noticed: float
    code: int | None

    @property
    def reason(self) -> str:
        if self.code is not None and self.code < 0:
            return f"killed by {ended_by(self.code).replace('signal SIG', 'SIG')}"
        return f"exited with code {self.code}"


class CaseWatch:
    """Watches one case on some workers.

    Args:
        limit_seconds: Time after which the case counts as hung.
        renewed_by_output: Whether each line that a rank writes restarts the limit.
    """

    def __init__(
        self,
        workers: Sequence[Worker],
        log_sink: LogSink,
        limit_seconds: float,
        *,
        renewed_by_output: bool = False,
    ) -> None:
        self._workers = {worker.rank: worker for worker in workers}
        self._log_sink = log_sink
        self._limit_seconds = limit_seconds
        self._renewed_by_output = renewed_by_output
        self._deadline = time.monotonic() + limit_seconds
        self._logs: deque[tuple[int, str]] = deque(maxlen=KEPT_LINES)
        self._partial = dict.fromkeys(self._workers, b"")
        self._open_outputs = set(self._workers)
        self._stacks: dict[int, list[str]] = {}
        self._dumping: set[int] = set()
        self._reports: dict[int, RankResult] = {}
        self._deaths: dict[int, _Death] = {}

    def outcome(self) -> CaseOutcome:
        """Wait for all ranks.

        Raises:
            InputError: Every rank refused the same input.
            RankRefusal: A rank refused its input, before anything else failed.
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
        while self._unfinished() and not self._failed() and time.monotonic() < self._deadline:
            self._poll(self._deadline - time.monotonic())
        # Each further report extends the time of the rest, within bounds.
        last, known = time.monotonic() + MAX_SETTLE_SECONDS, -1
        settled = 0.0
        while self._failed() and self._unfinished():
            if len(self._unfinished()) != known:
                known = len(self._unfinished())
                settled = min(time.monotonic() + SETTLE_SECONDS, last)
            if time.monotonic() >= settled:
                break
            self._poll(settled - time.monotonic())

    def _ask_where_they_stand(self, hung: Sequence[int]) -> None:
        """Make the ranks dump their stacks into their logs (see ``faulthandler`` in the worker)."""
        for rank in hung:
            process_id = self._workers[rank].process.pid
            if process_id is not None:
                with suppress(ProcessLookupError):
                    os.kill(process_id, signal.SIGUSR1)
        settled = time.monotonic() + SETTLE_SECONDS
        while (left := settled - time.monotonic()) > 0:
            news = self._poll(min(left, QUIET_SECONDS), until_finished=False)
            if not news and all(self._stacks.get(rank) for rank in hung):
                break

    def _poll(self, seconds: float, *, until_finished: bool = True) -> bool:
        """Wait for the next event and handle it; return whether there was one."""
        unfinished = self._unfinished() if until_finished else []
        controls = [self._workers[rank].control for rank in unfinished]
        outputs = [self._workers[rank].output for rank in self._open_outputs]
        ready = wait([*controls, *outputs], timeout=max(seconds, 0.0))
        for rank, worker in self._workers.items():
            if worker.output in ready:
                self._take_output(rank)
            if worker.control in ready:
                self._take_report(rank)
        return bool(ready)

    def _take_report(self, rank: int) -> None:
        worker = self._workers[rank]
        try:
            data = worker.control.recv_bytes()
        except (EOFError, OSError):
            noticed = time.monotonic()
            worker.process.join(SETTLE_SECONDS)
            self._deaths[rank] = _Death(noticed, worker.process.exitcode)
            return
        try:
            self._reports[rank] = pickle.loads(data)
        except Exception as error:  # unpickling a value may raise anything
            text = f"the value cannot be read: {type(error).__name__}: {error}"
            self._reports[rank] = RankResult(rank, error=text, failed_at=time.monotonic())

    def _take_output(self, rank: int) -> None:
        chunk = os.read(self._workers[rank].output.fileno(), 1 << 16)
        if not chunk:
            self._open_outputs.discard(rank)
        *lines, self._partial[rank] = (self._partial[rank] + chunk).split(b"\n")
        for line in lines:
            self._log(rank, line)

    def _log(self, rank: int, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip("\r")
        self._follow_dump(rank, text)
        self._logs.append((rank, text))
        if self._renewed_by_output:
            self._deadline = time.monotonic() + self._limit_seconds
        self._log_sink(rank, text)

    def _follow_dump(self, rank: int, text: str) -> None:
        """Store the rank's last stack dump as ``path:line in function``, innermost first."""
        if DUMP_HEADING in text:
            self._stacks[rank] = []
            self._dumping.add(rank)
        elif rank in self._dumping and (found := FRAME.search(text)):
            self._stacks[rank].append(f"{found['path']}:{found['line']} in {found['function']}")
        else:
            self._dumping.discard(rank)

    def _drain(self) -> None:
        """Read the output that was written before the report, without waiting for more."""
        deadline = time.monotonic() + DRAIN_SECONDS
        while time.monotonic() < deadline:
            ready = wait([self._workers[rank].output for rank in self._open_outputs], timeout=0)
            if not ready:
                break
            for rank in [r for r in self._open_outputs if self._workers[r].output in ready]:
                self._take_output(rank)
        for rank, rest in self._partial.items():
            if rest:
                self._log(rank, rest)

    def _failure(self) -> Exception:
        raised = [report for report in self._reports.values() if report.error]
        fields = {r.refused and r.refused[0] for r in raised}  # their values may differ
        if len(raised) == len(self._workers) and len(fields) == 1 and raised[0].refused:
            return InputError(*raised[0].refused)
        # The report of a rank that raised because another died may arrive before that death is
        # noticed.
        deaths = {rank: death.noticed - NOTICE_SECONDS for rank, death in self._deaths.items()}
        times = {**{r.rank: r.failed_at or 0.0 for r in raised}, **deaths}
        first = min(times, key=lambda rank: times[rank])
        if first in self._deaths:
            reason, code = self._deaths[first].reason, self._deaths[first].code
            if code is not None and code >= 0 and not self._lines(first):
                reason += f" before it wrote anything; {GUARD_HINT}"
            return RankFailure(first, reason, self._tail(first), self._others(first))
        report = self._reports[first]
        if report.refused:
            return RankRefusal(report, self._others(first))
        return RankFailure(first, report.error, report.traceback, self._others(first))

    def _hang(self, hung: Sequence[int]) -> RankFailure:
        """Name the rank for which the others wait, which is the one that is not communicating."""
        stacks = {rank: self._stacks.get(rank, []) for rank in hung}
        idle = [rank for rank in hung if not any(map(_communicates, stacks[rank]))]
        rank = idle[0] if idle else hung[0]
        places = {r: stacks[r][0] if stacks[r] else "an unknown place" for r in hung}
        others = "; ".join(f"rank {r} at {places[r]}" for r in hung if r != rank)
        state = "silent for" if self._renewed_by_output else "not finished after"
        reason = f"{state} {self._limit_seconds:g} s, at {places[rank]}"
        if not idle:
            reason += "; every unfinished rank waits for another"
        return RankFailure(rank, reason, self._tail(rank), others)

    def _lines(self, rank: int) -> list[str]:
        return [line for owner, line in self._logs if owner == rank]

    def _tail(self, rank: int) -> str:
        return "\n".join(deque(self._lines(rank), maxlen=TAIL_LINES))

    def _others(self, first: int) -> str:
        """Describe the ranks that did not fail first."""
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


def _communicates(frame: str) -> bool:
    return any(place in frame for place in COMMUNICATION)
