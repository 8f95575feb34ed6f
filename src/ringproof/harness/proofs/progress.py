"""Live progress on stderr: a bar on a terminal, otherwise lines."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

_SECONDS_BETWEEN_LINES = 15.0
_TESTS_BETWEEN_LINES = 20


def make_progress(console: Console) -> BarProgress | LineProgress:
    """Return the form of progress that suits the console."""
    return BarProgress(console) if console.is_terminal else LineProgress(console)


class BarProgress:
    """A rich progress bar with the test that is running."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description:<8}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[state]}", markup=False),
            console=console,
        )
        self._task: Any = None

    def begin(self, phase: str, total: int | None) -> None:
        """See `runner.Progress.begin`."""
        self._progress.start()
        self._task = self._progress.add_task(phase, total=total, state="")

    def update(self, done: int, total: int | None, failed: int, current: str) -> None:
        """See `runner.Progress.update`."""
        state = f"{failed} failed  {current}" if failed else current
        self._progress.update(self._task, completed=done, total=total, state=state[-70:])

    def end(self) -> None:
        """See `runner.Progress.end`."""
        self._progress.update(self._task, state="")
        self._progress.stop()


class LineProgress:
    """Prints a line from time to time, for logs."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._phase = ""
        self._started = self._last_time = time.monotonic()
        self._last_done = 0
        self._state = ""

    def begin(self, phase: str, total: int | None) -> None:
        """See `runner.Progress.begin`."""
        self._phase = phase
        self._started = self._last_time = time.monotonic()
        self._last_done = 0
        self._state = ""
        self._print("starting" if total is None else f"{total} to do")

    def update(self, done: int, total: int | None, failed: int, current: str) -> None:
        """See `runner.Progress.update`."""
        now = time.monotonic()
        self._state = f"{done}/{'?' if total is None else total} done, {failed} failed"
        late = now - self._last_time >= _SECONDS_BETWEEN_LINES
        if late or done - self._last_done >= _TESTS_BETWEEN_LINES:
            self._last_time, self._last_done = now, done
            self._print(f"{self._state}, {now - self._started:.0f} s, now {current}")

    def end(self) -> None:
        """See `runner.Progress.end`."""
        self._print(f"{self._state}, {time.monotonic() - self._started:.1f} s")

    def _print(self, text: str) -> None:
        self._console.print(f"{self._phase}: {text}", markup=False, highlight=False, soft_wrap=True)
