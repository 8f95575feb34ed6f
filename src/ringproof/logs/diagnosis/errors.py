"""Errors in the lines of a log: exceptions with their tracebacks, timeouts, ended processes, NaN.

One pass over a log of any size returns the few lines that can explain a failure: those that hold
one of a few fixed strings, and those that follow one, as a traceback needs. Lines of several ranks
may stand mixed in one file; the prefix of each line tells them apart. An exception counts if it
ends a traceback; one without its traceback is weak evidence, since it may be quoted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from ringproof.logs.diagnosis.pieces import LinePiece, pieces
from ringproof.logs.diagnosis.prefix import OF_RUN, Prefix, PrefixReader
from ringproof.logs.diagnosis.single import shown_alone
from ringproof.logs.diagnosis.waits import Wait, read_wait
from ringproof.logs.lines import Line, Scan
from ringproof.logs.parsing import EngineLine, RunSetup, parse_setup
from ringproof.logs.training.formats import COLOUR
from ringproof.logs.training.read import CurveReader

WEAK = b"rror:"
"""What a line holds that is an exception without its traceback, a fault of a device, or a refused
argument."""
STRONG = (
    b"CUDA error",
    b".py: error: ",
    b"srun: error",
    b"slurmstepd: error",
    b"Fatal Python error",
)
"""What takes its place after many exceptions without a traceback: errors that one line shows."""
NEEDLES = (
    b"Traceback (most recent",
    b"above exception",  # between two tracebacks, of which the second follows from the first
    b"Exception ignored ",
    b"Error in sys.excepthook",
    b"exception was never retrieved",
    WEAK,
    b"Watchdog caught",
    b"detected by watchdog at work",
    b"due to a collective timeout",
    b"what(): ",
    b'", line ',
    b" (most recent call first):",
    b"egmentation fault",
    b"Bus error",
    b"NVRM: Xid",
    b"fallen off the bus",
    b"GPU is lost",
    b"DeepEP ",
    b"Cannot load symbol",
    b"A worker died or was killed",
    b"*** SIG",
    b"xit Code: ",
    b"exit code 1",
    b"with code 1",
    b"NCCL WARN",
    b"OOMKilled",
    b"Could not override",
    b"watchdog hang",
    b"watchdog got stuck",
    b"memory pressure",
    b"memory usage threshold",
    b"Check failed: ",
    b"Killed process",
    b"low on resource",
    b"exited on signal",
    b"exits with return code = -",
    b'"MainThread"',
    b"Root Cause (first",
    b"(exitcode: ",
    b"] Assertion `",  # of a kernel
    b": nan",
    b": NaN",  # of JSON
    b": NAN",  # of Python's format .6E, in which Megatron prints a loss
    b"Running with config=",
    b"using world size: ",
    b"cp_comm_type ",
    b"context_parallel",
)
"""Strings that lines of interest hold; all of a log is searched for them."""
_ITERATION_MARK = b"elapsed time per iteration"
_ITERATION = re.compile(rb"iteration +([0-9]{1,12})/")
_LOSS = b"loss"
_STEP = re.compile(
    rb"(?<![\w./-])(?:global_)?(?:step|iteration)[\"']?[:= ]+[\"']?([0-9]{1,12})(?![0-9.]*[\w])"
)
_SKIPPED = re.compile(rb"nan iterations: +[1-9]")

TIMEOUT = "collective timeout"
CUT = "traceback without its end"
UNREAD = "frames without an exception"
LOOSE = "a line that names an exception"
DUMPED = "a frame of a dump of stacks"
NOTICED = "a timeout without its collective"
MOST_LINES = 600  # of a traceback with what stands between
MOST_WEAK = 20_000  # lines of a file with an error and no traceback, each of which takes time
MOST_ROOT = 10  # lines below the title of torchrun's summary, which name who failed first
MOST_MORE = 8  # further lines of a message
MOST_SHOWN = 300
MOST_KNOWN = 4096  # lines whose meaning is remembered: a failing run repeats the same few
LONG = 4000  # bytes; to remember longer lines would take more memory than it saves time
_FRAME = re.compile(r'\s*File "([^"]*)", line (\d+)(?:, in (.+))?')
_NAMES = "Error|Exception|Exit|Interrupt|Iteration|Warning|Timeout|Failed|Failure|Refused|Expired"
_EXCEPTION = re.compile(rf" ?((?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*)?(?:{_NAMES})\w*)(?:: ?(.*))?$")
_ROOT = re.compile(r"^\s*(rank|exitcode)\s*: (-?\d+)")
_NAN = re.compile(r"(?i)nan iterations: +[1-9]|(?:loss|grad[ _]?norm)\w*[\"']?: *nan\b")
_RICH_FRAME = re.compile(r"[\u2502|] (\S+\.py):(\d+) in (\S+)")
_QUALIFIED = re.compile(r"((?:[A-Za-z_]\w*\.)+[A-Z]\w*)(?:: ?(.*))?$")
_STACK = re.compile(r'Thread (?:0x)?[0-9A-Fa-f]+ \((?:active|idle)[^)]*\): "MainThread"')
_STACK_FRAME = re.compile(r"\s+(\S+) \((\S+:\d+)\)")
_RAY_TASK = re.compile(r"ray::(\w+)\S* \(pid=(\d+)")
_REPEATED = re.compile(r" ?\[repeated \d+x across cluster\].*$")
_BEFORE_FRAMES = "Traceback (most recent"
_WRAPPED = b"collective operation timeout:"  # at the end of a line that a terminal has broken
_MENTION = re.compile(
    r"(?<![\w.])([A-Za-z_][\w.]{0,200}(?:Error|Exception)): (?![-+]?[\d.]+(?:[ ,|}]|$))(.+)"
)
_NOTICED = re.compile(r"dump signal due to a collective timeout from this local rank.{0,300}")
_OPENS = re.compile(r" call last\):(?: \(RANK \d+\))?")
# In front of the traceback of an exception that ends nothing.
_IGNORED = re.compile(
    r"Exception ignored |Error in sys\.excepthook|\b\w+ exception was never retrieved"
)
_DUMP = " (most recent call first):"
_BETWEEN = (" ", "future: ", "source_traceback: ")  # what asyncio prints before the exception
_SEVERE = re.compile(r"\b(?:ERROR|CRITICAL|FATAL)\b")
_OWN_RANK = re.compile(r"Rank (\d{1,6})[:,] ")
_NOT_UNPICKLED = re.compile(r"\b(\w+)\.__init__\(\) (?:missing|takes|got an unexpected)")
_SIGNALLED = re.compile(r"died with <Signals\.SIG\w+: (\d+)>")
_LEFT_OPEN = (":", ",", "(", "[", "{")
# How further lines begin that CUDA, NCCL, torch and Ray add to a message without an indentation.
_FURTHER = re.compile(
    r"nccl[A-Z]\w+|NET/|Last error|CUDA kernel errors|For debugging|Compile with|Device-side"
    r"|Exception raised|The actor (?:is|never)|Memory on the node|Mismatched elements|Expected "
    r"|Greatest |\d+\. |[-^~=*]"
)
_LISTS = re.compile(r"ValidationError|ChildFailedError|Ray\w+Error|ActorDiedError")


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
        wait: The collective that a rank waited in.
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
    wait: Wait | None = None


@dataclass
class _Open:
    """An error whose traceback or message has not been read to its end.

    Attributes:
        seen: Lines of it, and between them; ``more`` are those of the message after the first.
        expects_code: Whether the next line can be the source line of a frame.
        indent: Blanks in front of the traceback, as in the summary of torchrun.
        implied: Whether the first line of the traceback is missing.
        ignored: Whether Python says that it goes on after this exception.
        timed: Whether its lines have times, as all lines of some launchers do.
        open: Whether the last line of the message announces another one.
    """

    event: RankError
    seen: int = 0
    more: int = 0
    expects_code: bool = False
    indent: int = 0
    implied: bool = False
    ignored: bool = False
    timed: bool = False
    open: bool = False


@dataclass
class _Said:
    """What one line says by itself; equal lines share it, since a failing run repeats them.

    Attributes:
        prefix: What a launcher put in front of it; ``key`` tells the lines of its ranks apart.
        body: The line without that; ``who`` and ``time`` are as in `RankError`.
    """

    file: str
    text: str
    prefix: Prefix

    def __post_init__(self) -> None:
        self.key, self.time = self.prefix.key, self.prefix.time
        self.who = self.prefix.writer(self.file)
        self.body = _REPEATED.sub("", self.prefix.body)

    @cached_property
    def setup(self) -> EngineLine | dict[str, Any]:
        """What it says of attention or of the configuration."""
        return parse_setup(self.text)

    @cached_property
    def frame(self) -> re.Match[str] | None:
        """A frame of a traceback: file, line and function."""
        return _FRAME.match(self.body) or _RICH_FRAME.match(self.body)

    @cached_property
    def raised(self) -> re.Match[str] | None:
        """An exception: its name and message."""
        return _EXCEPTION.match(self.body)

    @cached_property
    def opens(self) -> bool:
        """Whether a traceback begins; a line that only mentions one goes on."""
        after = self.body.partition(_BEFORE_FRAMES)[2].rstrip()
        return _OPENS.fullmatch(after) is not None or (
            "\u256d" in self.body and after.endswith("\u256e")
        )

    @cached_property
    def alone(self) -> dict[str, Any]:
        """The fields of the event that the line shows without others; empty if it shows none."""
        body = self.body
        if wait := read_wait(self.text):
            who = self.who if wait.rank is None else f"rank {wait.rank}"
            if self.prefix.tokens.keys() & OF_RUN:
                who = self.who
            return {"who": who, "error": TIMEOUT, "message": wait.message, "wait": wait}
        if noticed := _NOTICED.search(body):
            return {"error": NOTICED, "message": noticed[0]}
        if fields := shown_alone(body, self.file, self.prefix.tokens.get("name", "")):
            return fields
        if self.raised and self.raised[2]:
            return {"error": self.raised[1], "message": self.raised[2], "weak": True}
        if _NAN.search(body) and not body.lstrip().startswith(("#", "-", ">")):
            return {"error": "not a number", "message": body.strip()[:MOST_SHOWN]}
        if mention := _MENTION.search(body):
            severe = _SEVERE.search(body, 0, mention.start())
            return {"error": mention[1] if severe else LOOSE, "message": mention[2], "weak": True}
        if self.frame and f'", line {self.frame[2]} in ' in body:  # of faulthandler
            return {"error": LOOSE, "message": body.strip()[:MOST_SHOWN]}
        return {}


class LogReader(Scan):
    """Reads the errors of one log; iterate over `errors` once.

    Args:
        name: The log's path.

    Attributes:
        setup: What it says of the configuration and of attention; ``engine_lines`` are the first
            line of each variant of attention, as ``FILE:LINE``.
        curves: The curves of loss and gradient norm that the log shows.
    """

    def __init__(self, name: str, blocks: Iterable[bytes], setup: RunSetup) -> None:
        super().__init__(blocks, NEEDLES)
        self.setup = setup
        self.engine_lines: dict[EngineLine, str] = {}
        self.curves = CurveReader()
        self._name = name
        self._iteration: int | None = None
        self._searched = self._weak = self._root_lines = 0
        self._root: dict[str, int] = {}
        self._open: dict[str, _Open] = {}
        self._after: set[str] = set()
        self._above: dict[str, int] = {}  # writers whose last line, by its number, is `_IGNORED`
        self._dumps: set[str] = set()  # writers whose last line is of a dump by faulthandler
        self._passed_over: set[str] = set()  # writers whose last traceback was ignored
        self._prefixes = PrefixReader()
        self._stack = False  # whether the next line is the innermost frame of a stack
        self._alias: dict[str, str] = {}  # global ranks of local ranks and of actors
        self._known = lru_cache(MOST_KNOWN)(self._said)

    @property
    def iteration(self) -> int | None:
        """Iteration of the last line of training progress up to the line returned last."""
        begin = self._searched
        mark = self.block.rfind(_ITERATION_MARK, begin, self.stop)
        pattern = _ITERATION
        if mark < 0:  # the line of another framework
            mark, pattern = self.block.rfind(_LOSS, begin, self.stop), _STEP
        self._searched = max(begin, self.stop - len(_ITERATION_MARK))
        if mark >= 0:
            start = self.block.rfind(b"\n", max(0, mark - LONG), mark) + 1
            match = pattern.search(COLOUR.sub(b"", self.block[start:mark]))
            self._iteration = int(match[1]) if match else self._iteration
        return self._iteration

    def search(self) -> Iterator[Line]:
        """Yield the lines of interest in the block, and read its curves."""
        self._searched = 0
        yield from super().search()
        self._iteration = self.iteration
        self.curves.take(self.block)

    def places(self) -> list[int]:
        """Return where in the block the needles and counts of NaN are, in order."""
        skipped = [match.start() for match in _SKIPPED.finditer(self.block)]
        return sorted(skipped + super().places())

    def errors(self) -> Iterator[RankError]:
        """Yield all errors, and take what other lines say of the configuration."""
        for line in self._unwrapped():
            for said in (self._known if len(line.data) < LONG else self._said)(line.data):
                self._take_setup(said.setup, line)
                yield from self._errors(said, line)
            if self._above and line.number > min(self._above.values()) + MOST_LINES:
                self._above.clear()
            waiting = self._open or self._above or self._stack
            self.follow = bool(waiting) or self._root_lines > 0
        for key in list(self._open):
            yield from self._close(key)

    def _unwrapped(self) -> Iterator[Line]:
        """Yield the lines, a timeout that is broken in front of the collective in one piece."""
        broken = b""
        for line in self:
            data = broken + line.data
            broken = data.rstrip() + b" " if data.rstrip().endswith(_WRAPPED) else b""
            if broken and len(broken) < LONG:
                self.follow = True
                continue
            broken = b""
            yield Line(line.number, data)

    def _take_setup(self, setup: EngineLine | dict[str, Any], line: Line) -> None:
        if setup:
            self.setup.add(setup)
        if isinstance(setup, EngineLine):
            self.engine_lines.setdefault(setup, f"{self._name}:{line.number}")

    def _said(self, data: bytes) -> tuple[_Said, ...]:
        said = tuple(self._of_piece(one) for one in pieces(Line(0, data).text))
        if self._prefixes.changed:
            self._prefixes.changed = False
            self._known.cache_clear()
        return said

    def _of_piece(self, one: LinePiece) -> _Said:
        prefix = self._prefixes.split(one.text, one.tokens, one.time)
        said = _Said(self._name, one.text, prefix)
        if "rank" in prefix.tokens and prefix.tokens.keys() & {"local", "pid"}:
            rest = {name: value for name, value in prefix.tokens.items() if name != "rank"}
            self._alias[Prefix(rest, "", "").writer(self._name)] = said.who
        return said

    def _event(self, said: _Said, line: Line, **fields: Any) -> RankError:
        """Return an error that a line shows."""
        known = {"who": said.who, "file": self._name, "line": line.number, "text": said.text}
        event = RankError(**{**known, "time": said.time, "iteration": self.iteration, **fields})
        event.who = self._alias.get(event.who, event.who)
        return event

    def _errors(self, said: _Said, line: Line) -> Sequence[RankError]:
        key, body = said.key, said.body
        found: Sequence[RankError] = ()
        ignored = self._is_ignored(said, line)
        if body.endswith(_DUMP):
            self._dumps.add(key)
        elif body.strip() and not said.frame:
            self._dumps.discard(key)
        if _BEFORE_FRAMES in body:
            if key in self._open and self._open[key].open:
                self._after.add(key)  # the message announces the traceback that it is about
            found = self._close(key)
            if said.opens:
                self._open[key] = self._opened(said, line, ignored)
            self._after.discard(key)
            return found
        if said.frame and said.frame[3] and key not in self._open:
            self._adopt(said, line, ignored)
        if key in self._open:
            found = self._continue(said, line)
            if key in self._open or body.startswith(" "):
                return found
        if body.startswith("During handling of"):
            self._after.add(key)
        fields = said.alone
        if ignored and said.raised and fields:
            fields = {**fields, "error": LOOSE}
        if said.frame and key in self._dumps and fields:
            fields = {**fields, "error": DUMPED}
        if self._stack and (frame := _STACK_FRAME.match(body)):
            fields = {"error": "stack of a running process", "message": f"in {frame[1]}"}
            fields |= {"functions": (frame[1],), "place": frame[2]}
        self._stack = _STACK.match(body) is not None
        if self._root_lines > 0 or "Root Cause (first" in body:
            fields = self._root_cause(body) or fields
        if fields.get("weak") or (not fields and WEAK in line.data):
            self._weak += 1
            if self._weak == MOST_WEAK:
                self.needles = (*(one for one in NEEDLES if one != WEAK), *STRONG)
        return (*found, self._event(said, line, **fields)) if fields else found

    def _is_ignored(self, said: _Said, line: Line) -> bool:
        """Whether the writer's line before says that Python ignores what this one begins."""
        key, body = said.key, said.body
        ignored = key in self._above
        if body.strip() and not body.startswith(_BETWEEN):
            self._above.pop(key, None)
        chained = "above exception" in body and key in self._passed_over
        if _IGNORED.search(body) or chained:
            self._above[key] = line.number
        return ignored

    def _opened(self, said: _Said, line: Line, ignored: bool) -> _Open:
        """Return the traceback that a line begins."""
        one = _Open(self._event(said, line, after=said.key in self._after))
        one.ignored = ignored
        if "traceback :" in said.body and "rank" in self._root:  # in the summary of torchrun
            one.event.who = f"rank {self._root['rank']}"
        return one

    def _adopt(self, said: _Said, line: Line, ignored: bool) -> None:
        """Open the traceback of a frame whose first line has another prefix, or is missing."""
        fresh = [key for key, one in self._open.items() if not one.seen and not one.event.place]
        if fresh:
            self._open[said.key] = self._open.pop(fresh[-1])
        else:
            self._open[said.key] = _Open(self._event(said, line), implied=True, ignored=ignored)

    def _root_cause(self, body: str) -> dict[str, Any]:
        """Take a line of torchrun's summary; return the fields of its error once it is whole."""
        if "Root Cause (first" in body:
            self._root, self._root_lines = {}, MOST_ROOT
            return {}
        self._root_lines -= 1
        if match := _ROOT.match(body):
            self._root[match[1]] = int(match[2])
        if len(self._root) < 2:
            return {}
        self._root_lines = 0
        error = f"exit code {self._root['exitcode']}"
        return {"who": f"rank {self._root['rank']}", "error": error, "root": True}

    def _continue(self, said: _Said, line: Line) -> Sequence[RankError]:
        """Take a line of an open traceback."""
        one = self._open[said.key]
        event = one.event
        one.seen += 1
        if event.error and said.frame and said.frame[3] and "ray." in event.error:
            # The exception of Ray carries the traceback of a worker.
            if task := _RAY_TASK.search(event.message):
                event.who = f"{task[1]} {task[2]}"
            event.error = event.message = ""
        if event.error:
            if one.more >= MOST_MORE or not _goes_on(said, one):
                return self._close(said.key)
            one.more += 1
            event.message += f"\n{said.body.strip()}"
            one.open = said.body.rstrip().endswith(_LEFT_OPEN)
        elif frame := said.frame:
            event.place, event.code = f"{frame[1]}:{frame[2]}", ""
            event.functions = tuple(dict.fromkeys((*event.functions, frame[3] or "")))
            one.expects_code, one.timed = True, bool(said.time)
            one.indent = max(0, len(said.body) - len(said.body.lstrip()) - 2)
        elif raised := self._raised(said, one):
            event.error, event.message = raised[1], raised[2] or ""
            event.line, event.text = line.number, said.text
            event.time, event.iteration = said.time or event.time, self.iteration
            said_more = event.message.rstrip()
            one.open = raised[2] is not None and (not said_more or said_more.endswith(_LEFT_OPEN))
        elif one.expects_code and said.body[:1].isspace():
            event.code = said.body.strip()[:MOST_SHOWN]
            one.expects_code = False
        elif "RayTaskError" in said.body and (task := _RAY_TASK.search(said.body)):
            event.who = f"{task[1]} {task[2]}"
        elif one.seen > MOST_LINES:
            return self._close(said.key)
        return ()

    def _raised(self, said: _Said, one: _Open) -> re.Match[str] | None:
        """Return the exception that ends a traceback, which is indented like the traceback."""
        if not (one.event.place or one.seen > 1):
            return None
        if one.indent and said.body[: one.indent].isspace():
            return _EXCEPTION.match(said.body[one.indent :])
        return said.raised or _QUALIFIED.match(said.body)

    def _close(self, key: str) -> Sequence[RankError]:
        one = self._open.pop(key, None)
        if one is None or not (one.event.place or one.event.error):
            return ()
        event = one.event
        event.error = event.error or (UNREAD if one.implied else CUT)
        event.weak = event.error == UNREAD
        self._passed_over.discard(key)
        if one.ignored:
            self._passed_over.add(key)
            event.error = LOOSE
            return (event,)
        lost = _NOT_UNPICKLED.search(event.message)
        if lost and "from_ray_exception" in event.functions:
            event.error = lost[1]  # raised by a worker, and Ray could not carry it
        if signalled := _SIGNALLED.search(event.message):
            event.error = f"exit code -{signalled[1]}"
        own = _OWN_RANK.match(event.message)
        if own and not event.who.startswith("rank "):
            event.who = f"rank {int(own[1])}"
        if event.text.rstrip().endswith(":"):
            event.message = event.message.lstrip("\n")
        return (event,)


def _goes_on(said: _Said, one: _Open) -> bool:
    """Whether a line after an exception belongs to its message, and not to what is printed next.

    A logger's line has a time. Without an indentation only lines count that the one before
    announces, that a library is known to add, or that belong to an exception with a list.
    """
    ends = ("During handling", "The above exception", "Traceback ", "[", "File ")
    own = bool(said.time) and not one.timed
    if not said.body.strip() or own or said.body.startswith(ends) or _IGNORED.match(said.body):
        return False
    told = said.body[0].isspace() or one.open or _FURTHER.match(said.body)
    return bool(told) or _LISTS.search(one.event.error) is not None
