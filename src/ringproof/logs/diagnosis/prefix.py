"""What launchers, containers and loggers put in front of a line: which rank wrote it, and when.

Prefixes that name a rank are known: ``[rank3]:`` of torch, ``[default3]:`` of torchrun, whose word
is the role, ``3:`` of srun, ``[1,3]<stderr>:`` of MPI, ``(Actor[rank=3] pid=7)`` of Ray. Any other
prefix is learned: whatever stands in front of a traceback's first line or of a frame is what the
launcher puts in front of each line, with other numbers and times.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath

OF_RUN = ("rank", "of_actor", "of_worker", "mpi", "task")
"""What a prefix may name that is a rank of the whole run."""
_STAMP = r"(?:\d{4}[-/])?(\d\d)[-/](\d\d)[ T](\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)"
_SYSLOG = r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d"
_TOKEN = re.compile(
    r"\[(?i:rank)[ =:_-]{0,2}(?P<rank>\d{1,6})\]:? ?(?:\| )?"
    r"|> ?"  # a quotation in a mail or in Markdown
    r"|E {2,12}(?=[\w.]{1,200}(?:Error|Exception)\b)"  # of pytest
    r"|\[[A-Za-z_][\w.-]{0,40}?(?P<local>\d{1,6})\]:"
    r"|\((?P<actor>\w+)(?:\[rank=(?P<of_actor>\d{1,6})\]|,? rank=(?P<of_worker>\d{1,6}))?"
    r",? pid=(?P<pid>\d+)[^)]{0,200}\) ?"
    r"|\[(?:[\w.-]{1,80}@)?\d+,(?:mpirank:)?(?P<mpi>\d{1,6})(?:,[\w.-]+)?\]<std(?:err|out)>: ?"
    r"|\[(?P<name>(?:pod|container|job)/[^\]\s]{1,200})\] ?"
    r"|(?:std(?:err|out) [FP] )"
    r"|(?:\^[CZ\\])+"  # what a terminal shows of a key such as Ctrl-C
    r"|[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}:? ?(?=[\[<])"  # of mpirun
    rf"|\[?{_STAMP}(?:Z|[+-]\d\d:?\d\d)?(?:,\d+)?\]?[ :]+"
    rf"|{_SYSLOG} (?P<host>[\w.-]+ [\w.-]+\[\d+\]): "
    r"|(?: {0,6}(?P<task>\d{1,6}): )"
)
_STAMPED = re.compile(_STAMP)
_BEFORE_RANK = re.compile(r"(?P<name>[\w.@/-]{1,80}):? +\[rank(?P<rank>\d{1,6})\]:? ?")
_GLOG = re.compile(r"[IWEF](\d\d)(\d\d) (\d\d:\d\d:\d\d\.\d+)")
_RANK_IN_NAME = re.compile(r"(?i)rank[-_.]?(\d{1,6})")
_TORCHRUN = re.compile(r"(\d{1,6})[/\\]std(?:err|out)\.log$")
_FRAME = r'  File "[^"]+", line \d+, in '
_ANCHOR = re.compile(rf"Traceback \(most recent call last\):\s*$|{_FRAME}")
_CLOCK = re.compile(
    rf"\[?(?:{_STAMP}(?:Z|[+-]\d\d:?\d\d)?|{_SYSLOG}|\d\d:\d\d:\d\d(?:[.,]\d+)?|\d{{10}}\.\d+)\]?"
)
_SAID_RANK = re.compile(r"(?i)(?<![a-z])(?<!local[ _-])rank[ =:_-]{0,2}(\d{1,6})\b")
_LEVEL = re.compile(r"\b(?:ERROR|CRITICAL|FATAL|WARNING|INFO|DEBUG|std(?:err|out))\b")
# Words in front of it in the summary of torchrun, of a data loader, of several exceptions and of a
# logger, a progress bar, and an exception whose message is the traceback of another one.
_NO_PREFIX = re.compile(
    r"(?:traceback *:|Original|Exception Group|(?:exception|error|failed) *:) *$|%\|"
    r"|\b[A-Z]\w*(?:Error|Exception|Exit|Interrupt): "
)
_LONGEST = 200
_MOST_SHAPES = 64


@dataclass(frozen=True)
class Prefix:
    """The parts of a line.

    Attributes:
        tokens: What the prefix names: ``rank``, ``task``, ``local`` rank, ``actor`` and ``pid``, or
            the ``name`` of a host, pod or process.
        body: The line without the prefix.
        time: Month, day and time of day, for comparison; empty for none.
        learned: Whether the prefix was recognised by the traceback behind it.
    """

    tokens: Mapping[str, str]
    body: str
    time: str
    learned: bool = False

    @property
    def key(self) -> str:
        """What tells the lines of the ranks in one file apart.

        A rank alone does: what stands beside it may change from line to line, such as a number.
        """
        if "rank" in self.tokens:
            return f"rank={self.tokens['rank']}"
        return " ".join(f"{name}={value}" for name, value in self.tokens.items())

    def writer(self, file: str) -> str:
        """Return who wrote the line: ``rank 3`` where the prefix or the file's name says so."""
        tokens, path = self.tokens, PurePath(file)
        named = _RANK_IN_NAME.findall(path.name)
        rank = next((tokens[one] for one in OF_RUN if one in tokens), "")
        if rank or named:
            return f"rank {int(rank or named[-1])}"
        name = tokens.get("name", "")
        if "local" in tokens:
            return f"local rank {tokens['local']} of {name or path.name}"
        if "pid" in tokens:
            return f"{tokens['actor']} {tokens['pid']}"
        of_torchrun = _TORCHRUN.search(file)
        return name or (f"local rank {of_torchrun[1]} of {path.parent}" if of_torchrun else file)


@dataclass
class PrefixReader:
    """Splits lines, and learns the prefixes in front of tracebacks.

    Attributes:
        shapes: Prefixes learned, as expressions in which numbers may differ.
        changed: Whether a line that was split before could now be split in another way.
    """

    shapes: dict[str, None] = field(default_factory=dict)
    changed: bool = False
    _learned: re.Pattern[str] | None = None

    def split(self, text: str, tokens: Mapping[str, str], time: str) -> Prefix:
        """Split a line into its prefix and the rest.

        Args:
            tokens, time: What is known of the line already, such as from the record around it.
        """
        said = read_prefix(text, tokens, time)
        anchor = _ANCHOR.search(said.body)
        before = said.body[: anchor.start()] if anchor else ""
        if len(before) <= _LONGEST and before.strip(" :") and not _NO_PREFIX.search(before):
            self._learn(before)
        match = self._learned.match(said.body) if self._learned else None
        if match is None:
            return said
        words = _CLOCK.sub(" ", match[0])
        rank = _SAID_RANK.search(words)
        found = {**said.tokens, **({"rank": rank[1]} if rank else {})}
        if name := " ".join(_LEVEL.sub(" ", words).split()).strip("[](){}<>|:,-'\" "):
            found.setdefault("name", name)
        clock = said.time or _time(_STAMPED.search(match[0]))
        rest = read_prefix(said.body[match.end() :], found, clock)
        return Prefix(rest.tokens, rest.body, rest.time, learned=True)

    def _learn(self, prefix: str) -> None:
        shape = re.sub(r"\d+", r"\\d+", re.escape(prefix).replace("\\ ", " "))
        shape = re.sub(r" *$", " ?", re.sub(r" +", " +", shape).removesuffix(" +"))
        if shape not in self.shapes and len(self.shapes) < _MOST_SHAPES:
            self.shapes[shape] = None
            self._learned = re.compile("|".join(sorted(self.shapes, key=len, reverse=True)))
            self.changed = True


def read_prefix(text: str, known: Mapping[str, str] | None = None, time: str = "") -> Prefix:
    """Split a line into the prefixes that are known and the rest."""
    tokens = dict(known or {})
    position = 0
    while match := _TOKEN.match(text, position):
        later = text[: match.start()].strip("> ") or tokens.keys() & {"rank", "local", "pid"}
        if match["task"] and later:
            break  # a number with a colon is a task of srun at the start of a line only
        position = match.end()
        tokens.update({name: value for name, value in match.groupdict().items() if value})
        time = time or _time(_STAMPED.search(match[0]))
    if "rank" not in tokens and (match := _BEFORE_RANK.match(text, position)):
        tokens.update(match.groupdict())
        position = match.end()
    if host := tokens.pop("host", ""):
        tokens["name"] = host
    body = text[position:]
    time = time or _time(_STAMPED.search(body[:80])) or _time(_GLOG.search(body[:80]))
    return Prefix(tokens, body, time)


def _time(match: re.Match[str] | None) -> str:
    return "" if match is None else f"{match[1]}-{match[2]} {match[3].replace(',', '.')}"
