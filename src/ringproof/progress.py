"""Live progress on stderr: a bar on a terminal, otherwise lines from time to time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from rich import progress as bars
from rich.console import Console

_SECONDS_BETWEEN_LINES = 15.0
_TESTS_BETWEEN_LINES = 20

Update = Callable[[int, int | None, int, str], None]
"""Shows how many steps are done, of how many, how many failed, and which is going on."""


def progress(
    console: Console, phase: str, total: int | None = None
) -> AbstractContextManager[Update]:
    """Show the progress of a phase; ``total`` is ``None`` while the number of steps is unknown."""
    return (_bar if console.file.isatty() else _lines)(console, phase, total)


@contextmanager
def _bar(console: Console, phase: str, total: int | None) -> Iterator[Update]:
    columns = (
        bars.TextColumn("{task.description:<8}"),
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TimeElapsedColumn(),
        bars.TextColumn("{task.fields[state]}", markup=False),
    )
    with bars.Progress(*columns, console=console) as shown:
        task = shown.add_task(phase, total=total, state="")

        def update(done: int, total: int | None, failed: int, current: str) -> None:
            state = f"{failed} failed  {current}" if failed else current
            shown.update(task, completed=done, total=total, state=state[-70:])

        yield update
        shown.update(task, state="")


@contextmanager
def _lines(console: Console, phase: str, total: int | None) -> Iterator[Update]:
    started = last_time = time.monotonic()
    last_done, state = 0, ""

    def say(text: str) -> None:
        console.print(f"{phase}: {text}", markup=False, highlight=False, soft_wrap=True)

    def update(done: int, total: int | None, failed: int, current: str) -> None:
        nonlocal last_time, last_done, state
        now = time.monotonic()
        state = f"{done}/{'?' if total is None else total} done, {failed} failed"
        if now - last_time >= _SECONDS_BETWEEN_LINES or done - last_done >= _TESTS_BETWEEN_LINES:
            last_time, last_done = now, done
            say(f"{state}, {now - started:.0f} s, now {current}")

    say("starting" if total is None else f"{total} to do")
    try:
        yield update
    finally:
        say(f"{state}, {time.monotonic() - started:.1f} s")
