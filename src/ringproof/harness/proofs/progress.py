"""Live progress on stderr: a bar on a terminal, otherwise lines."""

from __future__ import annotations

import time
from typing import Any

from rich import progress as bars
from rich.console import Console

_SECONDS_BETWEEN_LINES = 15.0
_TESTS_BETWEEN_LINES = 20


def make_progress(console: Console) -> Progress:
    """Return the form of progress that suits the console."""
    return BarProgress(console) if console.is_terminal else LineProgress(console)


class BarProgress:
    """A rich progress bar with the test that is running."""

    def __init__(self, console: Console) -> None:
        self._progress = bars.Progress(
            bars.TextColumn("{task.description:<8}"),
            bars.BarColumn(),
            bars.MofNCompleteColumn(),
            bars.TimeElapsedColumn(),
            bars.TextColumn("{task.fields[state]}", markup=False),
            console=console,
        )
        self._task: Any = None

    def begin(self, phase: str, total: int | None) -> None:
        """Start a phase; ``total`` is ``None`` while the number of steps is unknown."""
        self._progress.start()
        self._task = self._progress.add_task(phase, total=total, state="")

    def update(self, done: int, total: int | None, failed: int, current: str) -> None:
        """Update the state of the phase."""
        state = f"{failed} failed  {current}" if failed else current
        self._progress.update(self._task, completed=done, total=total, state=state[-70:])

    def end(self) -> None:
        """End the phase."""
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
        """Start a phase; ``total`` is ``None`` while the number of steps is unknown."""
        self._phase = phase
        self._started = self._last_time = time.monotonic()
        self._last_done = 0
        self._state = ""
        self._print("starting" if total is None else f"{total} to do")

    def update(self, done: int, total: int | None, failed: int, current: str) -> None:
        """Update the state of the phase."""
        now = time.monotonic()
        self._state = f"{done}/{'?' if total is None else total} done, {failed} failed"
        late = now - self._last_time >= _SECONDS_BETWEEN_LINES
        if late or done - self._last_done >= _TESTS_BETWEEN_LINES:
            self._last_time, self._last_done = now, done
            self._print(f"{self._state}, {now - self._started:.0f} s, now {current}")

    def end(self) -> None:
        """End the phase."""
        self._print(f"{self._state}, {time.monotonic() - self._started:.1f} s")

    def _print(self, text: str) -> None:
        self._console.print(f"{self._phase}: {text}", markup=False, highlight=False, soft_wrap=True)


Progress = BarProgress | LineProgress
