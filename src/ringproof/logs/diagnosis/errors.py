"""Errors in the lines of a log: exceptions with their tracebacks, timeouts, ended processes, NaN.

One pass over a log of any size returns the few lines that can explain a failure: those that hold
one of a few fixed strings, and those that follow one, as a traceback needs. Lines of several ranks
may stand mixed in one file. What launchers and torch put in front of each line (``[rank3]:``,
``[default3]:``, ``3:`` of srun, ``(Actor pid=7)`` of Ray) tells them apart. An exception counts if
it ends a traceback; one without its traceback is weak evidence, since it may be quoted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import PurePath
from typing import Any

from ringproof.logs.lines import Line, OpenLog, Scan
from ringproof.logs.parsing import parse_nccl
from ringproof.logs.training.read import CurveReader

_ENGINE = b"Running with config="
CERTAIN = (b"Traceback (most recent", b"Watchdog caught", b"Root Cause (first", b"(exitcode: -")
ALWAYS = (*CERTAIN, b": nan", b": NaN", b": NAN", _ENGINE)
"""Strings that lines of interest hold; all of a log is searched for them."""
WEAK = (b"rror:",)
"""What lines hold that can be an exception without its traceback, which is weak evidence."""
STRONG = (b"CUDA error", b".py: error: ")
"""What takes their place once there were enough of them: errors that a line alone shows."""
EARLY = (b"using world size: ", b"cp_comm_type ", b"context_parallel_", b"_context_parallel .")
EARLY_BYTES = 32 << 20  # arguments are printed at the start
_ITERATION_MARK = b"elapsed time per iteration"
_ITERATION = re.compile(rb"iteration +([0-9]{1,12})/")
_SKIPPED = re.compile(rb"nan iterations: +[1-9]")

TIMEOUT = "collective timeout"
CUT = "traceback without its end"
MOST_LINES = 600  # of a traceback with what stands between
LINGER = 4  # lines after a traceback, which may say that another one follows from it
MOST_OPEN = 4096  # tracebacks at once, as of ranks that write into one file
MOST_WEAK = 20_000  # lines of a file that may be an exception without a traceback
MOST_MORE = 8  # further lines of a message
MOST_SHOWN = 300
MOST_KNOWN = 4096  # lines whose meaning is remembered: a failing run repeats the same few
LONG = 1000  # bytes; to remember longer lines would take more memory than it saves time
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
_NAN = re.compile(rb"(?i)nan iterations: +[1-9]|(?:loss|grad[ _]?norm)\w*[\"']?: *nan\b")
_RANK_IN_NAME = re.compile(r"(?i)rank[-_.]?(\d{1,6})")
_TORCHRUN = re.compile(r"(\d{1,6})[/\\]std(?:err|out)\.log$")


_CONFIGURES = (_ENGINE, b" ..", b"using world size")


@dataclass
class RankError:
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
    file: str
    line: int
    text: str
    error: str = ""
    message: str = ""
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
    """An error whose traceback or message has not been read to its end.

    Attributes:
        seen: Lines of it, and between them; ``more`` are those of the message after the first.
        expects_code: Whether the next line can be the source line of a frame.
    """

    event: RankError
    seen: int = 0
    more: int = 0
    expects_code: bool = False


@dataclass
class _Said:
    """What one line says by itself; equal lines share it, since a failing run repeats them.

    Attributes:
        key: What a launcher put in front of it, which tells the lines of its ranks apart.
        body: The line without that; ``who`` and ``time`` are as in `RankError`.
    """

    file: str
    data: bytes
    text: str
    key: str
    who: str
    body: str
    time: str

    @cached_property
    def configures(self) -> bool:
        """Whether it may be a line of the configuration or of Transformer Engine."""
        return any(mark in self.data for mark in _CONFIGURES)

    @cached_property
    def matters(self) -> bool:
        """Whether, outside of tracebacks, it is more than weak evidence."""
        return _matters(self.data)

    @cached_property
    def frame(self) -> re.Match[str] | None:
        """A frame of a traceback: file, line and function."""
        return _FRAME.match(self.body)

    @cached_property
    def raised(self) -> re.Match[str] | None:
        """An exception: its name and message."""
        return _EXCEPTION.match(self.body)

    @cached_property
    def alone(self) -> dict[str, Any]:
        """The fields of the event that the line shows without others; empty if it shows none."""
        body = self.body
        if watchdog := _WATCHDOG.search(self.text):
            return _timeout(watchdog, self)
        if device := _DEVICE.search(body):
            return {"error": "CUDA error", "message": device[1]}
        if ended := _ENDED.search(body):
            who = f"local rank {ended[2]} of {self.file}"
            return {"who": who, "error": f"exit code {ended[1]}"}
        if usage := _USAGE.match(body):
            return {"error": "usage", "message": usage[1]}
        if self.raised and self.raised[2]:
            return {"error": self.raised[1], "message": self.raised[2], "weak": True}
        if _NAN.search(self.data) and not body.lstrip().startswith(("#", "-", ">")):
            return {"error": "not a number", "message": body.strip()[:MOST_SHOWN]}
        return {}


class LogReader(Scan):
    """Reads the errors of one log; iterate over `errors` once.

    Args:
        head: Bytes of the log that were read already.

    Attributes:
        curves: The curves of loss and gradient norm that the log shows.
        repeated: Number of each line of Transformer Engine, of which only the first is read.
    """

    def __init__(self, log: OpenLog, head: bytes = b"") -> None:
        super().__init__(log, ALWAYS + WEAK + EARLY, head)
        self.curves = CurveReader()
        self.repeated: Counter[bytes] = Counter()
        self._name = log.path
        self._iteration: int | None = None
        self._searched = 0
        self._open: dict[str, _Open] = {}
        self._after: set[str] = set()
        self._root: dict[str, int] = {}
        self._root_lines = self._linger = self._weak = 0
        self._known = lru_cache(MOST_KNOWN)(self._said)

    @property
    def iteration(self) -> int | None:
        """Iteration of the last line of training progress up to the line returned last."""
        mark = self.data.rfind(_ITERATION_MARK, self._searched, self.stop)
        self._searched = max(self._searched, self.stop - len(_ITERATION_MARK))
        if mark >= 0:
            start = self.data.rfind(b"\n", 0, mark) + 1
            match = _ITERATION.search(self.data, start, mark)
            self._iteration = int(match[1]) if match else self._iteration
        return self._iteration

    def search(self, data: bytes, end: int) -> Iterator[Line]:
        """Yield the lines of interest in ``data[:end]``, which begins and ends with a line."""
        errors = WEAK if self._weak < MOST_WEAK else STRONG
        early = EARLY if self._log.bytes_read <= EARLY_BYTES else ()
        self.needles = ALWAYS + errors + early
        self._searched = 0
        yield from super().search(data, end)
        self._iteration = self.iteration
        self.curves.take(data, end)

    def places(self, data: bytes, end: int) -> list[int]:
        """Return where in ``data[:end]`` the needles and counts of NaN are, in order."""
        skipped = [match.start() for match in _SKIPPED.finditer(data, 0, end)]
        return sorted(skipped + super().places(data, end))

    def is_new(self, needle: bytes, start: int, stop: int, data: bytes) -> bool:
        """Count a line of Transformer Engine, and say whether it is the first of its kind."""
        if needle is not _ENGINE:
            return True
        tail = data[start:stop]
        new = tail not in self.repeated
        if not new or len(self.repeated) < MOST_KNOWN:
            self.repeated[tail] += 1
        return new

    def errors(self) -> Iterator[Line | RankError]:
        """Yield the lines that may tell the configuration, and all errors."""
        for line in self:
            busy = self._open or self._linger > 0 or self._root_lines > 0
            weak = self._weak < MOST_WEAK
            if not (busy or weak or _matters(line.data, _CONFIGURES)):
                continue
            said = (self._known if len(line.data) < LONG else self._said)(line.data)
            if said.configures:
                yield line
            if not (busy or said.matters):
                self._weak += 1
                if not weak:
                    continue
            yield from self._errors(said, line)
            self._linger = LINGER if self._open else max(0, self._linger - 1)
            self.follow = self._linger > 0 or self._root_lines > 0
        for key in list(self._open):
            yield from self._close(key)

    def _said(self, data: bytes) -> _Said:
        text = Line(0, data).text
        tokens, body, time = _split(text)
        key = " ".join(f"{name}={value}" for name, value in tokens.items())
        return _Said(self._name, data, text, key, self._who(tokens), body, time)

    def _event(self, said: _Said, line: Line, **fields: Any) -> RankError:
        """Return an error that a line shows."""
        known = {"who": said.who, "file": self._name, "line": line.number, "text": said.text}
        return RankError(**{**known, "time": said.time, "iteration": self.iteration, **fields})

    def _errors(self, said: _Said, line: Line) -> Sequence[RankError]:
        key, body = said.key, said.body
        found: Sequence[RankError] = ()
        if "Traceback (most recent" in body:
            found = self._close(key)
            if len(self._open) < MOST_OPEN and _begins(body):
                self._open[key] = _Open(self._event(said, line, after=key in self._after))
            self._after.discard(key)
            return found
        if key in self._open:
            found = self._continue(said, line)
            if key in self._open or body.startswith(" "):
                return found
        if body.startswith(("During handling of", "The above exception was")):
            self._after.add(key)
        if self._root_lines > 0 or "Root Cause (first" in body:
            found = (*found, *self._root_cause(said, line))
        if said.alone:
            found = (*found, self._event(said, line, **said.alone))
        return found

    def _continue(self, said: _Said, line: Line) -> Sequence[RankError]:
        """Take a line of an open traceback."""
        one = self._open[said.key]
        event = one.event
        one.seen += 1
        if event.error:
            if one.more >= MOST_MORE or not _goes_on(said):
                return self._close(said.key)
            one.more += 1
            event.message += f"\n{said.body.strip()}"
        elif frame := said.frame:
            event.place, event.code = f"{frame[1]}:{frame[2]}", ""
            event.functions = tuple(dict.fromkeys((*event.functions, frame[3] or "")))
            one.expects_code = True
        elif said.raised and (event.place or one.seen > 1):
            event.error, event.message = said.raised[1], said.raised[2] or ""
            event.line, event.text = line.number, said.text
            event.time, event.iteration = said.time or event.time, self.iteration
        elif one.expects_code and said.body[:1].isspace():
            event.code = said.body.strip()[:MOST_SHOWN]
            one.expects_code = False
        elif one.seen > MOST_LINES:
            return self._close(said.key)
        return ()

    def _close(self, key: str) -> Sequence[RankError]:
        one = self._open.pop(key, None)
        if one is None or not (one.event.place or one.event.error):
            return ()
        event = one.event
        event.error = event.error or CUT
        if event.text.rstrip().endswith(":"):
            event.message = event.message.lstrip("\n")
        return (event,)

    def _root_cause(self, said: _Said, line: Line) -> Sequence[RankError]:
        """Take a line of torchrun's summary, which names the rank that failed first."""
        if "Root Cause (first" in said.body:
            self._root, self._root_lines = {}, 10
            return ()
        self._root_lines -= 1
        match = _ROOT.match(said.body)
        if match:
            self._root[match[1]] = int(match[2])
        if len(self._root) < 2:
            return ()
        self._root_lines = 0
        who, error = f"rank {self._root['rank']}", f"exit code {self._root['exitcode']}"
        return (self._event(said, line, who=who, root=True, error=error),)

    def _who(self, tokens: Mapping[str, str]) -> str:
        if "rank" in tokens:
            return f"rank {tokens['rank']}"
        if "task" in tokens:
            return f"rank {tokens['task']}"
        path = PurePath(self._name)
        named = _RANK_IN_NAME.findall(path.name)
        if named:
            return f"rank {int(named[-1])}"
        if "local" in tokens:
            return f"local rank {tokens['local']} of {path.name}"
        if "pid" in tokens:
            return f"{tokens['actor']} {tokens['pid']}"
        of_torchrun = _TORCHRUN.search(self._name)
        return f"local rank {of_torchrun[1]} of {path.parent}" if of_torchrun else self._name


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


def _matters(data: bytes, also: tuple[bytes, ...] = ()) -> bool:
    """Whether a line outside of tracebacks is more than weak evidence, or holds other words."""
    marks = CERTAIN + STRONG + also
    return any(mark in data for mark in marks) or _NAN.search(data) is not None


def _goes_on(said: _Said) -> bool:
    """Whether a line after an exception belongs to its message."""
    ends = ("During handling", "The above exception", "Traceback ", "[", "File ")
    return bool(said.body.strip()) and not said.time and not said.body.startswith(ends)


def _timeout(match: re.Match[str], said: _Said) -> dict[str, Any]:
    """Return the fields of a timeout, whose message is group, operation and sequence number."""
    group, who = "", said.who
    for line in parse_nccl(said.text):
        group = line.description or f"GUID {line.guid}"
        if line.global_rank is not None:
            who = f"rank {line.global_rank}"
        elif group == "default_pg":
            who = f"rank {line.group_rank}"
    if match[1] and not group:
        who = f"rank {int(match[1])}"
    message = f"{group or 'unnamed group'} {match[3]} {match[2]}"
    return {"who": who, "error": TIMEOUT, "message": message}
