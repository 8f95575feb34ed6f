"""Errors in the lines of a log: exceptions with their tracebacks, timeouts, ended processes, NaN.

Lines of several ranks may stand mixed in one file. What launchers and torch put in front of each
line (``[rank3]:``, ``[default3]:``, ``3:`` of srun, ``(Actor pid=7)`` of Ray) tells them apart.
An exception counts if it ends a traceback; one without its traceback is weak evidence, since it may
be quoted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePath

from ringproof.errors import printable
from ringproof.harness.logs.diagnosis.scan import Scan, ScannedLine
from ringproof.harness.logs.parsing import parse_nccl

TIMEOUT = "collective timeout"
CUT = "traceback without its end"
MOST_LINES = 600  # of a traceback with what stands between
LINGER = 4  # lines after a traceback, which may say that another one follows from it
MOST_OPEN = 4096
MOST_WEAK = 20_000  # lines of a file that may be an exception without a traceback
MOST_MORE = 8  # further lines of a message
MOST_SHOWN = 300
_STAMP = r"(?:\d{4}[-/])?(\d\d)[-/](\d\d)[ T](\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)"
_TOKEN = re.compile(
    r"\[default(?P<local>\d{1,6})\]:"
    r"|\[rank(?P<rank>\d{1,6})\]: ?"
    r"|\((?P<actor>\w+) pid=(?P<pid>\d+)[^)]{0,200}\) ?"
    r"|(?:std(?:err|out) [FP] )"
    rf"|\[?{_STAMP}(?:Z|[+-]\d\d:?\d\d)?(?:,\d+)?\]?[ :]+"
    r"|(?: ?(?P<task>\d{1,6}): )"
)
_STAMPED = re.compile(_STAMP)
_GLOG = re.compile(r"[IWEF](\d\d)(\d\d) (\d\d:\d\d:\d\d\.\d+)")
_FRAME = re.compile(r'\s*File "([^"]*)", line (\d+)(?:, in (.+))?')
_NAMES = "Error|Exception|Exit|Interrupt|Iteration|Warning|Timeout|Failed|Failure|Refused|Expired"
_EXCEPTION = re.compile(rf" ?((?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*)?(?:{_NAMES})\w*)(?:: ?(.*))?$")
_USAGE = re.compile(r"^[\w./-]*\.py: error: (.+)$")
_DEVICE = re.compile(r"(?:what\(\): *|terminated with exception: )(.*CUDA error: .*)")
_WATCHDOG = re.compile(
    r"(?:\[Rank (\d+)\] )?Watchdog caught collective operation timeout: "
    r"WorkNCCL\(SeqNum=(\d+), OpType=(\w+)"
)
_ENDED = re.compile(r"failed \(exitcode: (-\d+)\) local_rank: (\d+)")
_ROOT = re.compile(r"^\s*(rank|exitcode)\s*: (-?\d+)")
_NAN = re.compile(
    r"(?i)nan iterations: +[1-9]|(?:loss|grad[ _]?norm)\w*[\"']?: *(?:nan)\b", re.ASCII
)
_RANK_IN_NAME = re.compile(r"(?i)rank[-_.]?(\d{1,6})")
_TORCHRUN = re.compile(r"(\d{1,6})[/\\]std(?:err|out)\.log$")


_MARKS = (
    "Traceback (most recent", "Watchdog caught", "Root Cause (first", "(exitcode: -", "CUDA error",
    ".py: error: ",
)  # fmt: skip


@dataclass(frozen=True)
class Event:
    """An error of one rank.

    Attributes:
        who: ``rank 3`` where the log says so, else what tells its lines apart.
        error: Name of the exception; see `Index.find` for other errors.
        functions: Functions of the traceback; ``code`` and ``place`` are the last frame's source
            line and file.
        time: Month, day and time of day in the line, for comparison; empty for none.
        iteration: Iteration that was complete before.
        weak: Whether there was no traceback.
        root: Whether the launcher says that this rank failed first.
        after: Whether it was raised while the exception before it was handled.
    """

    who: str
    error: str
    message: str
    file: str
    line: int
    text: str
    functions: tuple[str, ...] = ()
    code: str = ""
    place: str = ""
    time: str = ""
    iteration: int | None = None
    weak: bool = False
    root: bool = False
    after: bool = False


@dataclass
class _Open:
    """A traceback, or the rest of a message, whose end has not been read."""

    event: Event
    seen: int = 0
    frames: list[str] = field(default_factory=list)
    place: str = ""
    code: str = ""
    expects_code: bool = False
    more: list[str] = field(default_factory=list)


@dataclass
class LogReader:
    """Reads the errors of one file.

    Attributes:
        name: The file, as the user named it.
    """

    name: str
    open: dict[str, _Open] = field(default_factory=dict)
    after: set[str] = field(default_factory=set)
    root: dict[str, int] = field(default_factory=dict)
    root_lines: int = 0
    linger: int = 0
    weak: int = 0
    names: dict[str, str] = field(default_factory=dict)

    def read(self, scan: Scan) -> Iterator[tuple[ScannedLine, Event | None]]:
        """Return each line of interest, and the errors that end there."""
        for line in scan:
            yield line, None
            busy = self.open or self.linger > 0 or self.root_lines > 0
            if not busy and not self._matters(line.text):
                continue
            for event in self._line(line):
                yield line, event
            self.linger = LINGER if self.open else max(0, self.linger - 1)
            scan.follow = int(self.linger > 0 or self.root_lines > 0)
        last = ScannedLine(scan.lines, "", scan.iteration)
        for key in list(self.open):
            for event in self._close(key):
                yield last, event

    def _matters(self, text: str) -> bool:
        """Whether a line outside of tracebacks can be an error; weak evidence is limited."""
        if any(mark in text for mark in _MARKS) or _NAN.search(text):
            return True
        self.weak += 1
        return self.weak <= MOST_WEAK

    def _line(self, line: ScannedLine) -> Iterator[Event]:
        tokens, body, time = _split(line.text)
        key = " ".join(f"{name}={value}" for name, value in tokens.items())
        who = self.names.get(key) or self._who(tokens)
        if len(self.names) < MOST_OPEN:
            self.names[key] = who
        base = Event(who, "", "", self.name, line.number, line.text, time=time,
                     iteration=line.iteration)  # fmt: skip
        if "Traceback (most recent" in body:
            yield from self._close(key)
            if len(self.open) < MOST_OPEN and _begins(body):
                self.open[key] = _Open(replace(base, after=key in self.after))
            self.after.discard(key)
            return
        if key in self.open:
            yield from self._continue(key, body, base)
            if key in self.open or body.startswith(" "):
                return
        if body.startswith(("During handling of", "The above exception was")):
            self.after.add(key)
        if self.root_lines > 0 or "Root Cause (first" in body:
            yield from self._root_cause(body, base)
        yield from _single(body, base, line.text)

    def _continue(self, key: str, body: str, base: Event) -> Iterator[Event]:
        """Take a line of an open traceback."""
        one = self.open[key]
        one.seen += 1
        if one.event.error:
            if len(one.more) < MOST_MORE and _goes_on(body, base.time):
                one.more.append(body.strip())
            else:
                yield from self._close(key)
            return
        frame = _FRAME.match(body)
        end = None if frame else _EXCEPTION.match(body)
        if frame:
            one.frames.append(frame[3] or "")
            one.expects_code = True
            one.place, one.code = f"{frame[1]}:{frame[2]}", ""
        elif end and (one.frames or one.seen > 1):
            one.event = replace(
                one.event,
                error=end[1],
                message=end[2] or "",
                line=base.line,
                text=base.text,
                time=base.time or one.event.time,
                iteration=base.iteration,
            )
        elif one.expects_code and body[:1].isspace():
            one.code = body.strip()[:MOST_SHOWN]
            one.expects_code = False
        elif one.seen > MOST_LINES:
            yield from self._close(key)

    def _close(self, key: str) -> Iterator[Event]:
        one = self.open.pop(key, None)
        if one is None or not (one.frames or one.event.error):
            return
        event = one.event
        message = "\n".join((event.message, *one.more))
        yield replace(
            event,
            error=event.error or CUT,
            message=message.lstrip("\n") if event.text.rstrip().endswith(":") else message,
            functions=tuple(dict.fromkeys(one.frames)),
            place=one.place,
            code=one.code,
        )

    def _root_cause(self, body: str, base: Event) -> Iterator[Event]:
        """Take a line of torchrun's summary, which names the rank that failed first."""
        if "Root Cause (first" in body:
            self.root, self.root_lines = {}, 10
            return
        self.root_lines -= 1
        match = _ROOT.match(body)
        if match:
            self.root[match[1]] = int(match[2])
        if len(self.root) == 2:
            self.root_lines = 0
            yield replace(base, who=f"rank {self.root['rank']}", root=True,
                          error=f"exit code {self.root['exitcode']}")  # fmt: skip

    def _who(self, tokens: Mapping[str, str]) -> str:
        if "rank" in tokens:
            return f"rank {tokens['rank']}"
        if "task" in tokens:
            return f"rank {tokens['task']}"
        path = PurePath(self.name)
        named = _RANK_IN_NAME.findall(path.name)
        if named:
            return f"rank {int(named[-1])}"
        if "local" in tokens:
            return f"local rank {tokens['local']} of {path.name}"
        if "pid" in tokens:
            return f"{tokens['actor']} {tokens['pid']}"
        of_torchrun = _TORCHRUN.search(self.name)
        return f"local rank {of_torchrun[1]} of {path.parent}" if of_torchrun else self.name


def shown(text: str) -> str:
    """Return a line that can be printed in a terminal."""
    text = printable(text.strip())
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]} ..."


def _split(text: str) -> tuple[dict[str, str], str, str]:
    """Return what a launcher put in front of a line, the rest of the line, and its time."""
    tokens: dict[str, str] = {}
    time, position = "", 0
    while match := _TOKEN.match(text, position):
        position = match.end()
        if match["task"] and (tokens or match.start()):
            position = match.start()
            break
        tokens.update({name: value for name, value in match.groupdict().items() if value})
        time = time or _time(_STAMPED.search(match[0]))
    rest = text[position:]
    return tokens, rest, time or _time(_STAMPED.search(rest[:80])) or _time(_GLOG.search(rest[:80]))


def _time(match: re.Match[str] | None) -> str:
    return "" if match is None else f"{match[1]}-{match[2]} {match[3].replace(',', '.')}"


def _begins(body: str) -> bool:
    """Whether a line begins a traceback and does not only mention one."""
    return body.rstrip().endswith("Traceback (most recent call last):")


def _goes_on(body: str, time: str) -> bool:
    """Whether a line after an exception belongs to its message."""
    ends = ("During handling", "The above exception", "Traceback ", "[", "File ")
    return bool(body.strip()) and not time and not body.startswith(ends)


def _single(body: str, base: Event, text: str) -> Iterator[Event]:
    """Return the error that a line alone shows."""
    watchdog, ended, device = _WATCHDOG.search(text), _ENDED.search(body), _DEVICE.search(body)
    usage, exception = _USAGE.match(body), _EXCEPTION.match(body)
    if watchdog:
        yield _timeout(watchdog, base, text)
    elif device:
        yield replace(base, error="CUDA error", message=device[1])
    elif ended:
        yield replace(base, who=f"local rank {ended[2]} of {base.file}",
                      error=f"exit code {ended[1]}")  # fmt: skip
    elif usage:
        yield replace(base, error="usage", message=usage[1])
    elif exception and exception[2]:
        yield replace(base, error=exception[1], message=exception[2], weak=True)
    elif _NAN.search(body) and not body.lstrip().startswith(("#", "-", ">")):
        yield replace(base, error="not a number", message=body.strip()[:MOST_SHOWN])


def _timeout(match: re.Match[str], base: Event, text: str) -> Event:
    """Return a timeout, whose message is group, sequence number and operation."""
    group, who = "", base.who
    for line in parse_nccl(text):
        group = line.description or f"GUID {line.guid}"
        if line.global_rank is not None:
            who = f"rank {line.global_rank}"
        elif group == "default_pg":
            who = f"rank {line.group_rank}"
    if match[1] and not group:
        who = f"rank {int(match[1])}"
    message = f"{group or 'unnamed group'} {match[3]} {match[2]}"
    return replace(base, who=who, error=TIMEOUT, message=message)
