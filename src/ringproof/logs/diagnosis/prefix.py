"""What launchers and torch put in front of a line: which rank wrote it, and when.

Known are ``[rank3]:`` of torch, ``[default3]:`` of torchrun, ``3:`` of srun, ``(Actor pid=7)`` of
Ray, ``stderr F`` of containers, and dates.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath

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
_RANK_IN_NAME = re.compile(r"(?i)rank[-_.]?(\d{1,6})")
_TORCHRUN = re.compile(r"(\d{1,6})[/\\]std(?:err|out)\.log$")


@dataclass(frozen=True)
class Prefix:
    """The parts of a line.

    Attributes:
        tokens: What the prefix names: ``rank``, ``task``, ``local`` rank, ``actor`` and ``pid``.
        body: The line without the prefix.
        time: Month, day and time of day, for comparison; empty for none.
    """

    tokens: Mapping[str, str]
    body: str
    time: str

    @property
    def key(self) -> str:
        """What tells the lines of the ranks in one file apart."""
        return " ".join(f"{name}={value}" for name, value in self.tokens.items())

    def writer(self, file: str) -> str:
        """Return who wrote the line: ``rank 3`` where the prefix or the file's name says so."""
        tokens, path = self.tokens, PurePath(file)
        rank = tokens.get("rank") or tokens.get("task")
        named = _RANK_IN_NAME.findall(path.name)
        if rank or named:
            return f"rank {rank or int(named[-1])}"
        if "local" in tokens:
            return f"local rank {tokens['local']} of {path.name}"
        if "pid" in tokens:
            return f"{tokens['actor']} {tokens['pid']}"
        of_torchrun = _TORCHRUN.search(file)
        return f"local rank {of_torchrun[1]} of {path.parent}" if of_torchrun else file


def read_prefix(text: str) -> Prefix:
    """Split a line into its prefix and the rest."""
    tokens: dict[str, str] = {}
    time, position = "", 0
    while match := _TOKEN.match(text, position):
        if match["task"] and (tokens or match.start()):
            break  # a number with a colon is a task of srun at the start of a line only
        position = match.end()
        tokens.update({name: value for name, value in match.groupdict().items() if value})
        time = time or _time(_STAMPED.search(match[0]))
    body = text[position:]
    time = time or _time(_STAMPED.search(body[:80])) or _time(_GLOG.search(body[:80]))
    return Prefix(tokens, body, time)


def _time(match: re.Match[str] | None) -> str:
    return "" if match is None else f"{match[1]}-{match[2]} {match[3].replace(',', '.')}"
