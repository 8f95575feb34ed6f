"""``ringproof logs watch``: follow a training log."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer

from ringproof.cli import logs_plots
from ringproof.cli.logs_watch_plot import finding_line, histogram_text, screen, step_line
from ringproof.cli.options import JsonOption, seconds
from ringproof.cli.output import write_json, write_text
from ringproof.cli.termination import Interrupted
from ringproof.errors import InputError, printable
from ringproof.logs.finding import RunFinding
from ringproof.logs.lines import STDIN
from ringproof.logs.training.series import Columns, parse_columns
from ringproof.logs.watching.following import Follower
from ringproof.logs.watching.watch import WATCHED, StepLine, StepReader, Watch

EXAMPLE = "Example: ringproof logs watch run.log --html run.html --until-step 1000"
POLL_SECONDS, SHOW_SECONDS, WRITE_SECONDS = 0.3, 1.0, 5
"""Pause between two looks at the files; least time between two displays; between two pages."""
_ROLE = "LOG"


ColumnsOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME=COLUMN,...",
        help="Names in the files, such as step=iter,loss=train/loss; | stands between "
        "alternatives.",
    ),
]
_Html = Annotated[
    str,
    typer.Option(
        metavar="PATH",
        help=f"Write the curves as an HTML page to this file, every {WRITE_SECONDS} seconds.",
    ),
]


def watch(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="LOG...",
            help="Logs of one run: JSON lines, Megatron's text log or CSV. - is stdin.",
        ),
    ],
    *,
    once: Annotated[
        bool, typer.Option("--once", help="Read what is there, show it and end.")
    ] = False,
    until_step: Annotated[
        int | None, typer.Option(metavar="N", help="End once step N was seen.")
    ] = None,
    stalled: Annotated[
        float, seconds("Say so when no new step came for this long.", "SECONDS")
    ] = 300.0,
    timeout: Annotated[
        float | None,
        seconds("End with exit code 1 when no new step came for this long.", "SECONDS"),
    ] = None,
    columns: ColumnsOption = None,
    json_path: JsonOption = "",
    html: _Html = "",
) -> None:
    """Follow loss, grad norm, iteration time and CP sizes of a run, and say what is conspicuous.

    Exit code 1: the loss is not a number or infinite, or --timeout has passed.
    """
    _refuse(files, once, until_step, timeout)
    wanted = parse_columns(",".join(WATCHED), columns)
    run = _Run(files, wanted, json_path, html)
    silent = STDIN in (json_path, html)
    with contextlib.closing(run), _display(files, silent) as run.display:
        try:
            in_time = run.follow(once, until_step, stalled, timeout)
        except Interrupted as signal:
            if json_path or html:
                signal.kept = "what it writes has the last step"
            run.write(last=True)
            raise
        run.display.show(run.watch)
    run.write(last=True)
    if run.watch.not_finite is not None or not in_time:
        raise typer.Exit(1)


def _refuse(
    files: Sequence[str], once: bool, until_step: int | None, timeout: float | None
) -> None:
    if until_step is not None and until_step < 1:
        raise InputError("--until-step", until_step, "not a step", "give a number from 1")
    twice = next((path for path in files if files.count(path) > 1), None)
    if twice is not None:
        raise InputError(_ROLE, twice, "is named twice", "name each log once")
    if once and (until_step is not None or timeout is not None):
        remedy = "leave out --until-step and --timeout"
        raise InputError("--once", None, "does not wait for anything", remedy)


class _Lines:
    """Shows steps and findings as lines, unless standard output is that of a file."""

    def __init__(self, silent: bool) -> None:
        self._silent = silent
        self._shown: int | None = None

    def say(self, text: str) -> None:
        if not self._silent:
            typer.echo(printable(text))

    def wait(self, text: str) -> None:
        typer.echo(printable(text), err=True)

    def show(self, watch: Watch) -> None:
        if watch.step != self._shown:
            self.say("  ".join(filter(None, (step_line(watch), histogram_text(watch)))))
        self._shown = watch.step


class _Screen:
    """Shows plots in place on a terminal; what is said stays above them."""

    def __init__(self, live: Any, names: Sequence[str]) -> None:
        self._live = live
        self._shown: Any = None
        self._names = [printable(name) for name in names]

    def say(self, text: str) -> None:
        if not text.startswith("finding"):  # the plots have those
            self.wait(text)

    def wait(self, text: str) -> None:
        from rich.text import Text

        self._live.console.print(Text(printable(text)))

    def show(self, watch: Watch) -> None:
        size = self._live.console.size
        new = watch.lines, tuple(watch.findings), watch.cp_counts, size
        if new != self._shown:
            self._live.update(screen(watch, self._names, size.width, size.height), refresh=True)
        self._shown = new


_Display = _Lines | _Screen


@contextlib.contextmanager
def _display(names: Sequence[str], silent: bool) -> Iterator[_Display]:
    from rich.console import Console
    from rich.live import Live

    console = Console()
    if silent or not console.is_terminal:
        yield _Lines(silent)
        return
    with Live(console=console, auto_refresh=False) as live:
        yield _Screen(live, names)


class _Run:
    """The logs of a run, and what they showed so far."""

    def __init__(self, files: Sequence[str], columns: Columns, json_path: str, html: str) -> None:
        stdin = sys.stdin.buffer if sys.stdin else None
        self.watch = Watch()
        self._names = list(files)
        self._columns = columns
        self._followers = [Follower(path, _ROLE, stdin) for path in files]
        self._readers = [self._reader(follower) for follower in self._followers]
        self._json, self._html = json_path, html
        self.display: _Lines | _Screen = _Lines(silent=True)
        self._written = self._seen = time.monotonic()

    def _reader(self, follower: Follower) -> StepReader:
        return StepReader(follower, self._columns, self.watch.engine_sizes)

    def close(self) -> None:
        """Close the files."""
        for follower in self._followers:
            follower.close()

    def write(self, *, last: bool) -> None:
        """Write the state and the page; standard output only gets the last."""
        if self._json and (last or self._json != STDIN):
            write_json(self.watch.as_json(), self._json)
        if self._html and (last or self._html != STDIN):
            refresh = None if last else WRITE_SECONDS
            page = logs_plots.watch_page(self.watch, self._names, refresh)
            write_text(page, self._html, field="--html")
        self._written = time.monotonic()

    def follow(
        self, once: bool, until_step: int | None, stalled: float, timeout: float | None
    ) -> bool:
        """Read until one of the limits; return whether that was not the timeout.

        Raises:
            InputError: A file cannot be read; all have ended, and none has a step.
        """
        waited = False
        while True:
            if self._poll(until_step):
                return True
            if once or all(follower.ended for follower in self._followers):
                self._end(once)
                return True
            if not waited:
                self._say_what_is_missing()
            waited = True
            silent = time.monotonic() - self._seen
            if silent >= min(stalled, timeout or math.inf):
                self._tell(self.watch.silent(silent))
            if timeout is not None and silent >= timeout:
                return False
            time.sleep(POLL_SECONDS)

    def _say_what_is_missing(self) -> None:
        missing = [one.path for one in self._followers if one.waiting]
        if missing:
            self.display.wait(f"waiting for {', '.join(missing)}: no such file yet")
        elif self.watch.step is None:
            self.display.wait(f"waiting for a step: none in {', '.join(self._names)} yet")

    def _poll(self, until_step: int | None) -> bool:
        """Take all that is there now; return whether the last step to wait for was among it."""
        shown = time.monotonic()
        for path, step in self._steps():
            self._tell(self.watch.take(path, step))
            self._seen = now = time.monotonic()
            if until_step is not None and step.number >= until_step:
                return True
            if now - shown >= SHOW_SECONDS:  # much is there
                shown = now
                self._show()
        self._show()
        return False

    def _steps(self) -> Iterator[tuple[str, StepLine]]:
        for place, follower in enumerate(self._followers):
            for line in follower.lines():
                if line is None:
                    self.display.say(f"{follower.path}: the file was replaced or emptied")
                    self._readers[place] = self._reader(follower)
                    continue
                for step in self._readers[place].take(line):
                    yield follower.path, step

    def _show(self) -> None:
        self.display.show(self.watch)
        if time.monotonic() - self._written >= WRITE_SECONDS:
            self.write(last=False)

    def _tell(self, findings: Sequence[RunFinding]) -> None:
        for finding in findings:
            self.display.say(finding_line(finding))

    def _end(self, once: bool) -> None:
        """Take unfinished last lines, and refuse logs without any step."""
        for follower, reader in zip(self._followers, self._readers, strict=True):
            if once and follower.waiting:
                raise InputError(_ROLE, follower.path, "no such file", "name a training log")
            for step in [] if reader.is_table else reader.take(follower.unfinished()):
                self._tell(self.watch.take(follower.path, step))
        if self.watch.step is None:
            problem = (
                "no training steps found: no iteration line of Megatron-LM, no JSON lines with a "
                "step, no CSV header with one"
            )
            remedy = "name the log of the rank that prints steps, mostly the last"
            raise InputError(_ROLE, ", ".join(self._names), problem, remedy)
