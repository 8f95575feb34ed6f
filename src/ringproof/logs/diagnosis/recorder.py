"""Dumps of PyTorch's flight recorder: which rank, which group and which collective is stuck.

A dump is a pickle or JSON of one rank: its process groups, and its last collectives with their
state. The pickle is read by a reader of plain data, which finds no class or function, so that
nothing in it can run. A value may have the same part many times, so only text and numbers are
written out.
"""

from __future__ import annotations

import json
import pickle
import pickletools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from types import MappingProxyType
from typing import Any

from ringproof.errors import printable
from ringproof.logs.lines import OpenLog
from ringproof.logs.rendering import rank_text

LARGEST_BYTES = 256 << 20
HEAD_BYTES = 4096
REMEDY = "; give dumps that torch wrote, such as nccl_trace_rank_3"
_POINT_TO_POINT = re.compile(r"(?i)\b(i?send|i?recv)|coalesced")
_SAME_SIZES = re.compile(r"(?i)all_?reduce|broadcast")
_LAST_NUMBER = re.compile(r"(\d{1,6})(?:\.\w{1,8})?$")


@dataclass(frozen=True)
class UnfinishedOperation:
    """The first unfinished operation of one rank on one group."""

    sequence: int
    operation: str
    sizes: str


@dataclass
class DumpedGroup:
    """A process group, as the dumps of its ranks describe it.

    Attributes:
        members: Its ranks, as far as the dumps name them.
        last: Number of the last collective that each rank has entered.
        waiting: What each rank waits in.
        behind: Ranks that have not entered the collective that others wait in.
        elsewhere: Those of them that wait in another group.
        silent: Members without a dump.
    """

    name: str
    description: str
    members: set[int] = field(default_factory=set)
    last: dict[int, int] = field(default_factory=dict)
    waiting: dict[int, UnfinishedOperation] = field(default_factory=dict)
    behind: tuple[int, ...] = ()
    elsewhere: tuple[int, ...] = ()
    silent: tuple[int, ...] = ()

    @property
    def sequence(self) -> int:
        """Number of the first collective that a rank waits in."""
        return min(waiting.sequence for waiting in self.waiting.values())

    @property
    def free(self) -> list[int]:
        """Ranks that are behind and wait for nothing else."""
        return [rank for rank in self.behind if rank not in self.elsewhere]

    @property
    def differ(self) -> bool:
        """Whether ranks wait in different operations, or in sizes that differ, at one number."""
        first = [one for one in self.waiting.values() if one.sequence == self.sequence]
        return len(set(map(_compared, first))) > 1


_TAKES: Mapping[str, int] = MappingProxyType(
    {"APPEND": 1, "SETITEM": 2, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
)
"""How many values an operation takes; others take those above the last mark."""
_CONSTANTS = MappingProxyType({"NONE": None, "NEWTRUE": True, "NEWFALSE": False})


def _plain(data: bytes) -> Any:
    """Read a pickle of numbers, text, lists and dictionaries in time that grows with its size.

    Python's own reader takes gigabytes for one high index of its memo. Tuples become lists, so
    that no key is a tuple of tuples, whose hash takes years if they share their parts.

    Raises:
        Exception: It is damaged, or it has another operation, which may run code.
    """
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[object, Any] = {}
    for operation, value, _ in pickletools.genops(data):
        match name := operation.name:
            case "PROTO" | "FRAME" | "STOP":
                pass
            case "MARK":
                marks.append(len(stack))
            case "MEMOIZE" | "BINPUT" | "LONG_BINPUT":
                memo[len(memo) if value is None else value] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[value])
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                stack.append(_CONSTANTS[name])
            case "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINFLOAT":
                stack.append(value)
            case "BINUNICODE" | "SHORT_BINUNICODE" | "BINUNICODE8":
                stack.append(value)
            case "EMPTY_LIST" | "EMPTY_TUPLE" | "EMPTY_DICT":
                stack.append({} if name == "EMPTY_DICT" else [])
            case "APPEND" | "APPENDS" | "SETITEM" | "SETITEMS":
                parts = _taken(stack, name, marks)
                pairs = zip(parts[::2], parts[1::2], strict=True)
                stack[-1].update(pairs) if "SET" in name else stack[-1].extend(parts)
            case "TUPLE" | "TUPLE1" | "TUPLE2" | "TUPLE3":
                stack.append(_taken(stack, name, marks))
            case _:
                raise pickle.UnpicklingError(f"has {name}, which may run code")
    return stack.pop()


def _taken(stack: list[Any], name: str, marks: list[int]) -> list[Any]:
    """Remove from the stack what an operation takes."""
    at = len(stack) - _TAKES[name] if name in _TAKES else marks.pop()
    parts = stack[at:]
    del stack[at:]
    return parts


def is_dump(first: bytes) -> bool:
    """Whether a file that begins with these bytes is a flight recorder's dump."""
    head = first[:HEAD_BYTES]
    if head[:1] == b"\x80":
        return head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")
    keys = (b'"entries"', b'"pg_config"', b'"comm_lib_version"')
    return head.lstrip()[:1] == b"{" and any(key in head for key in keys)


def read_dump(log: OpenLog, blocks: Iterable[bytes]) -> tuple[int, dict[str, Any]]:
    """Return the rank and the content of a dump.

    Raises:
        InputError: The dump is larger than `LARGEST_BYTES`, is damaged or holds more than plain
            data, or its name has no rank.
    """
    named = _LAST_NUMBER.search(PurePath(log.path).name)
    if named is None:
        raise log.refused(f"is a dump whose name has no rank{REMEDY}")
    data = bytearray()
    for block in blocks:  # a few megabytes of gzip may be gigabytes of zeros
        data += block
        if len(data) > LARGEST_BYTES:
            raise log.refused(f"is a dump above {LARGEST_BYTES:,} bytes; give a smaller one")
    try:
        content = _plain(bytes(data)) if data[:1] == b"\x80" else json.loads(data)
    except pickle.UnpicklingError as error:
        raise log.refused(printable(f"is a damaged dump ({error}){REMEDY}")) from None
    except Exception as error:  # a damaged pickle raises nearly anything
        raise log.refused(f"is a damaged dump{REMEDY}") from error
    if isinstance(content, dict) and "pg_config" in content:
        content.setdefault("entries", [])  # JSON without collectives has none
    if not isinstance(content, dict) or not isinstance(content.get("entries"), list):
        raise log.refused(f"is not a dump of the flight recorder{REMEDY}")
    return int(named[1]), content


def _merged(dumps: Mapping[int, Mapping[str, Any]]) -> dict[str, DumpedGroup]:
    groups: dict[str, DumpedGroup] = {}
    for rank, dump in dumps.items():
        for entry in dump["entries"]:
            if isinstance(entry, dict):
                _add(groups, rank, entry)
        config = dump.get("pg_config")
        for told in config.values() if isinstance(config, dict) else ():
            if isinstance(told, dict) and (name := _text(told.get("name"))) in groups:
                groups[name].members.update(_ranks(told.get("ranks")))
    return groups


def _add(groups: dict[str, DumpedGroup], rank: int, entry: Mapping[str, Any]) -> None:
    named = entry.get("process_group")
    name, description = map(_text, [*(named[:2] if isinstance(named, list) else ()), "", ""][:2])
    group = groups.setdefault(name, DumpedGroup(name, description or f"group {name}"))
    group.members.add(rank)
    point_to_point = bool(entry.get("is_p2p"))
    sequence = _whole(entry.get("p2p_seq_id" if point_to_point else "collective_seq_id"))
    if not point_to_point:
        group.last[rank] = max(group.last.get(rank, 0), sequence)
    finished = entry.get("retired") is True or entry.get("state") == "completed"
    known = group.waiting.get(rank)
    if not finished and (known is None or sequence < known.sequence):
        operation = printable(_text(entry.get("profiling_name"))[:80]) or "an operation"
        sizes = _sizes(entry.get("input_sizes"))
        group.waiting[rank] = UnfinishedOperation(sequence, operation, sizes)


def _text(value: object) -> str:
    return str(value) if isinstance(value, str | int) else ""


def _sizes(shapes: object) -> str:
    """Return the first shapes of an operation's tensors, for comparison."""
    listed = shapes[:32] if isinstance(shapes, list) else ()
    return str([[*map(_whole, one[:8])] for one in listed if isinstance(one, list)])


def _whole(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < 1 << 62 else 0


def _ranks(text: object) -> list[int]:
    """Return the ranks in ``[0, 1]``, which torch writes as text."""
    if isinstance(text, str):
        try:
            text = json.loads(text[:1_000_000])
        except (ValueError, RecursionError):
            return []
    return [rank for rank in text if isinstance(rank, int)] if isinstance(text, list) else []


def stuck_groups(dumps: Mapping[int, Mapping[str, Any]]) -> list[DumpedGroup]:
    """Return the groups whose ranks wait, by the dumps of each rank; first those that explain."""
    groups = _merged(dumps)
    waiting = {rank for group in groups.values() for rank in group.waiting}
    stuck = [group for group in groups.values() if group.waiting]
    for group in stuck:
        for rank in sorted(group.members & set(dumps)):
            if rank not in group.waiting and group.last.get(rank, 0) < group.sequence:
                group.behind += (rank,)
        group.elsewhere = tuple(rank for rank in group.behind if rank in waiting)
        group.silent = tuple(sorted(group.members - set(dumps)))
    return sorted(stuck, key=_order)


def _compared(waiting: UnfinishedOperation) -> tuple[str, str]:
    """Return what must be equal on all ranks of a group; a send and its receive are not."""
    if _POINT_TO_POINT.search(waiting.operation):
        return "", ""
    return waiting.operation, waiting.sizes if _SAME_SIZES.search(waiting.operation) else ""


def _order(group: DumpedGroup) -> tuple[int, int, str]:
    """Groups with a rank that is behind and waits for nothing else come first."""
    reasons = (bool(group.free), bool(group.silent), group.differ, True)
    return reasons.index(True), len(group.members), group.name


def explained(group: DumpedGroup) -> Iterator[str]:
    """Return what the dumps say of a group, line by line."""
    by_what: dict[tuple[int, str], list[int]] = {}
    for rank, waiting in sorted(group.waiting.items()):
        by_what.setdefault((waiting.sequence, waiting.operation), []).append(rank)
    for (sequence, operation), ranks in sorted(by_what.items()):
        waits = f"waited in {operation}, number {sequence}, of {group.description}"
        yield f"{rank_text(ranks)} {waits}"
    missed = f"did not enter number {group.sequence}"
    told = (
        (group.free, f"{missed} of {group.description} and waited in no group"),
        (group.elsewhere, f"{missed} and waited in another group"),
        (group.silent, f"left no dump here, as members of {group.description}"),
    )
    yield from (f"{rank_text(some)} {text}" for some, text in told if some)
    if group.differ:
        yield f"ranks of {group.description} disagreed in the operation or its sizes"
