"""Lines of a run that share one line of a file.

Container engines and log services wrap each line in a JSON record. Loggers write a traceback with
escaped line feeds, or as a Python list of its lines. Ranks that write to one pipe at once leave
their lines behind one another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json

_MESSAGES = (
    "log", "message", "msg", "textpayload", "logentry", "logmessage", "line", "text", "body",
    "stringvalue", "content", "event", "data",
)  # fmt: skip
"""Names of the fields of a record, in lower case."""
_DETAILS = ("exc_info", "exception", "traceback", "stack_trace", "stack", "error", "py_callstack")
_TIMES = ("time", "timestamp", "@timestamp", "ts", "asctime", "datetime")
_RANKS = ("rank", "global_rank")
_NAMES = (
    "pod", "pod_name", "podname", "host", "hostname", "_hostname", "node", "instance", "worker",
    "worker_id", "container", "containerid", "container_name", "logstreamname", "process", "pid",
    "_pid",
)  # fmt: skip
_DEEPEST = 3
_LATEST_BRACE = 200
_MOST_PIECES = 2000
_CLOCK = re.compile(r"(?:\d{4}-)?(\d\d)-(\d\d)[ T](\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)")
_ESCAPED = re.compile(r"""\\n(?:["'], *["'])?""")
_RANK = re.compile(r"\[rank\d{1,6}\]:")


@dataclass(frozen=True)
class LinePiece:
    """A line of the run: its text, and what the record around it says of who wrote it and when."""

    text: str
    tokens: Mapping[str, str] = field(default_factory=dict)
    time: str = ""


def pieces(text: str) -> list[LinePiece]:
    """Return the lines of the run that a line of a file holds; mostly the line itself."""
    found = list(_of_record(text)) if '{"' in text[:_LATEST_BRACE] else []
    found = found or [LinePiece(text)]
    if "\\n" in text:
        found = [part for one in found for part in _unescaped(one)]
    if "[rank" in text[1:]:
        found = [part for one in found for part in _unglued(one)]
    return found[:_MOST_PIECES]


def _of_record(text: str) -> Iterator[LinePiece]:
    """Yield the lines in a JSON record; none where it is not one of a line of text."""
    brace = text.find('{"')
    try:
        record = from_json(text[brace:].rstrip(", ]"))  # it may be one of a list
    except ValueError:
        return
    if not isinstance(record, dict):
        return
    fields = dict(_fields(record, 0))
    said = [fields[name] for name in _MESSAGES if isinstance(fields.get(name), str)][:1]
    said += [fields[name] for name in _DETAILS if "\n" in str(fields.get(name, ""))]
    if not said:
        return
    rank = next((str(fields[name]) for name in _RANKS if str(fields.get(name)).isdecimal()), "")
    names = [str(fields[name]) for name in _NAMES if isinstance(fields.get(name), str | int)]
    tokens = {"rank": rank} if rank else {}
    if str(fields.get("local_rank")).isdecimal():
        tokens["local"] = str(fields["local_rank"])
    if names:
        tokens["name"] = " ".join(dict.fromkeys(names))[:_LATEST_BRACE]
    clock = _CLOCK.search(" ".join(str(fields.get(name, "")) for name in _TIMES))
    time = f"{clock[1]}-{clock[2]} {clock[3].replace(',', '.')}" if clock else ""
    before = "" if text[:brace].strip() == "[" else text[:brace]
    for part in said:
        for line in part.splitlines():
            yield LinePiece(before + line, tokens, time)


def _fields(record: Mapping[str, Any], depth: int) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a record and of the records inside it."""
    for name, value in record.items():
        if not isinstance(value, dict):
            yield name.lower(), value
        elif depth < _DEEPEST:
            yield from _fields(value, depth + 1)


def _unescaped(one: LinePiece) -> Iterator[LinePiece]:
    """Yield the lines of a traceback that was written in one, each with what precedes it."""
    start = one.text.find("Traceback (most recent")
    if start < 0 or not _ESCAPED.search(one.text, start):
        yield one
        return
    before = one.text[:start].rstrip("['\"")
    for line in _ESCAPED.split(one.text[start:]):
        if line.strip("]'\" ,}"):
            yield LinePiece(before + line, one.tokens, one.time)


def _unglued(one: LinePiece) -> Iterator[LinePiece]:
    """Yield the lines of the ranks that stand behind one another."""
    starts = []
    for number, match in enumerate(_RANK.finditer(one.text)):
        before = one.text[: match.start()]
        prefix = not number and (not before or before[-1].isspace() or before.endswith("]:"))
        if not prefix and not before.endswith(" "):
            starts.append(match.start())
    for start, stop in zip([0, *starts], [*starts, len(one.text)], strict=False):
        yield LinePiece(one.text[start:stop], one.tokens, one.time)
