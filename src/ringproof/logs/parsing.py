"""What one line of a log says of process groups and of context parallelism.

Megatron-LM prints on rank 0 a line that begins with "using world size:" and a dump of all
arguments, one per line, name and value joined by dots. Both are configuration and show no activity.

Transformer Engine prints "Running with config=" and a Python dict under ``NVTE_DEBUG=1
NVTE_DEBUG_LEVEL=2`` each time it selects an attention backend. Its ``context_parallel`` is true
only where the CP group handed over has more than one rank, so it is evidence of what runs.

PyTorch's NCCL backend prints under ``TORCH_CPP_LOG_LEVEL=INFO`` lines with a C++ log header and a
prefix that names the group (read in ``ProcessGroupNCCL.cpp``, ``createLogPrefix`` and
``initNCCLComm``)::

    [rank1]:[I429 13:55:49.384372190 ProcessGroupNCCL.cpp:1743]
        [PG ID 4 PG GUID 12(NAME) Rank 0] message   (on one line)

* The rank in the prefix is the rank within the group; the GUID is the same on all its ranks.
* The constructor's line ("initialization options") holds the group's size and the global rank but
  never the description: ``torch.distributed`` sets it afterwards. The prefix gets it when the
  communicator is set up, so the GUID has to join the two.
* The communicator is set up at the first operation on the group, or at once where
  ``init_process_group`` was given a ``device_id`` ("Eagerly connecting"); then it shows no use.
* "created ncclComm_" is an INFO line in older releases and hidden in newer ones; the line with
  ``NCCL_DEBUG:`` follows it in both.
* Errors name an operation as "WorkNCCL(SeqNum=...": proof of use, printed at any log level.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

# One per kind of evidence; each parser states what it needs beyond its needle.
NEEDLES = (
    b"ringproof census",  # without the bracket: colours may stand in between
    b"ringproof traffic",
    b"] [PG ",  # the end of a C++ log header and the prefix
    b"Running with config=",
    b"using world size: ",
    b"cp_comm_type ",
    b"context_parallel_size",
)

_STARTUP_BEGIN = "using world size: "
_DOTS = " .."
_SIZES = ("world_size", "data_parallel_size", "context_parallel_size")
_LEVELS = "hierarchical_context_parallel_sizes"
_STARTUP = re.compile(
    _STARTUP_BEGIN + r"(?P<world_size>[0-9]{1,9}), "
    r"data-parallel size: (?P<data_parallel_size>[0-9]{1,9}), "
    r"context-parallel size: (?P<context_parallel_size>[0-9]{1,9}), "
    rf"hierarchical context-parallel sizes: (?P<{_LEVELS}>None|\[[0-9, ]*\]),"
)
_ARGUMENT = re.compile(
    r"(?:^|\s)(cp_comm_type|context_parallel_size|hierarchical_context_parallel_sizes"
    r"|(?:dynamic|hybrid)_context_parallel) \.{2,} (\S.*)"
)
_ENGINE = "Running with config={'transformer_engine_version': "
_ENGINE_PARALLEL = re.compile(r"'context_parallel': (True|False)\b")
_ENGINE_TYPE = re.compile(r"'cp_comm_type': '([a-z0-9_+]{1,20})'")
_ENGINE_SIZE = re.compile(r"'cp_size': ([0-9]{1,9})\b")
_WORD = re.compile(r"[A-Za-z0-9_+]{1,20}")
_INTEGER = re.compile(r"[0-9]{1,9}")

_HEADER_END = "] [PG "
_HEADER = re.compile(
    r"(?:\[rank([0-9]{1,9})\]: ?)?"
    r"\[?[IWEF](?:[0-9]{3,8} [0-9:]{8}\.[0-9]+)?(?: +[0-9]+)? "
    r"[\w./+-]+\.(?:cpp|hpp|cc|cu|h):[0-9]+\] "
    r"\[PG (?:ID [0-9]+ PG GUID )?([\w.-]+) ?(?:\(([^()\s]*)\))? ?Rank ([0-9]{1,9})\] "
)
_SIZE = re.compile(r"[ ,]size: ([0-9]{1,9})\b")
_GLOBAL_RANK = re.compile(r"global rank: ([0-9]{1,9})\b")


@dataclass(frozen=True)
class Configuration:
    """What Megatron-LM prints of context parallelism; ``None`` where the log does not say.

    Attributes:
        hierarchical_context_parallel_sizes: Level sizes, inner first; empty where there are none.
        cp_comm_type: Its distinct values, sorted.
    """

    world_size: int | None = None
    data_parallel_size: int | None = None
    context_parallel_size: int | None = None
    hierarchical_context_parallel_sizes: tuple[int, ...] | None = None
    cp_comm_type: tuple[str, ...] | None = None


@dataclass(frozen=True)
class EngineLine:
    """One choice of an attention backend in Transformer Engine."""

    context_parallel: bool
    cp_comm_type: str
    cp_size: int | None


def parse_configuration(text: str) -> dict[str, Any]:
    """Return what a start-up line or an argument's line gives.

    These are fields of `Configuration`, or ``dynamic``: whether Dynamic CP is on.
    """
    startup = _STARTUP.search(text) if _STARTUP_BEGIN in text else None
    if startup is not None:
        sizes = {name: int(startup[name]) for name in _SIZES}
        return {**sizes, _LEVELS: _integers(startup[_LEVELS])}
    argument = _ARGUMENT.search(text) if _DOTS in text else None
    if argument is None:
        return {}
    name, value = argument[1], argument[2].rstrip()
    if name == "cp_comm_type":
        types = tuple(sorted(set(_WORD.findall(value)) - {"None"}))
        return {name: types} if types else {}
    if name.endswith("_context_parallel"):
        return {"dynamic": value == "True"}
    if name == _LEVELS:
        return {name: _integers(value)}
    return {name: int(value)} if _INTEGER.fullmatch(value) else {}


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in _INTEGER.findall(text))


def parse_engine(text: str) -> EngineLine | None:
    """Return what Transformer Engine's configuration line says of CP, or ``None``."""
    begin = text.find(_ENGINE)
    if begin < 0:
        return None
    parallel, comm_type, size = (
        field.search(text, begin) for field in (_ENGINE_PARALLEL, _ENGINE_TYPE, _ENGINE_SIZE)
    )
    if parallel is None or comm_type is None:
        return None
    return EngineLine(parallel[1] == "True", comm_type[1], int(size[1]) if size else None)


def engine_text(counted: Sequence[tuple[EngineLine, int]]) -> str:
    """Return the variants of attention that ran, each with the number of lines that say so.

    >>> engine_text([(EngineLine(False, "p2p", 1), 3), (EngineLine(True, "p2p", 2), 1)])
    '3 lines without, 1 line with p2p over 2 ranks'
    """
    said = []
    for line, count in counted:
        over = f"with {line.cp_comm_type} over {line.cp_size or 'an unknown number of'} ranks"
        what = over if line.context_parallel else "without"
        said.append(f"{count} {'line' if count == 1 else 'lines'} {what}")
    return ", ".join(said)


def parse_setup(text: str) -> EngineLine | dict[str, Any]:
    """Return what a line says of attention, or else of the configuration; empty for nothing."""
    return parse_engine(text) or parse_configuration(text)


class RunSetup:
    """What all lines of a run say of its configuration and of the attention that it ran.

    Attributes:
        configuration: The later line wins, field by field.
        dynamic: Whether Dynamic CP is on.
    """

    def __init__(self) -> None:
        self.configuration = Configuration()
        self.dynamic = False
        self._engine: Counter[EngineLine] = Counter()

    def add(self, told: EngineLine | dict[str, Any]) -> None:
        """Take what `parse_setup` returned for a line."""
        if isinstance(told, EngineLine):
            self._engine[told] += 1
        elif "dynamic" in told:
            self.dynamic |= told["dynamic"]
        else:
            self.configuration = replace(self.configuration, **told)

    @property
    def engine(self) -> tuple[tuple[EngineLine, int], ...]:
        """Transformer Engine's choices, each with the number of lines that say so."""
        return tuple(sorted(self._engine.items(), key=repr))


class NcclEvent(Enum):
    """What a line shows about its group."""

    MENTION = "mention"
    OPTIONS = "options"
    EAGER = "eager"
    COMMUNICATOR = "communicator"
    WORK = "work"


_EVENTS = (
    (NcclEvent.OPTIONS, "ProcessGroupNCCL initialization options:"),
    (NcclEvent.EAGER, "Eagerly connecting nccl backend"),
    (NcclEvent.COMMUNICATOR, ("ProcessGroupNCCL created ncclComm_", "NCCL_DEBUG: ")),
)


@dataclass(frozen=True)
class NcclLine:
    """One line of the NCCL backend.

    Attributes:
        guid: Name of the group, unique in the run.
        description: ``group_desc``, or ``None`` where the prefix does not (yet) carry it.
        group_rank: The printing rank's place in the group; ``global_rank`` its rank in the run.
        size: Members of the group, where the line says it.
    """

    guid: str
    description: str | None
    group_rank: int
    global_rank: int | None
    size: int | None
    event: NcclEvent


def parse_nccl(text: str) -> Iterator[NcclLine]:
    """Yield the NCCL lines in a line of a log: several where ranks wrote to one pipe at once."""
    if _HEADER_END not in text:  # far cheaper than the expression, and true of most lines
        return
    matches = list(_HEADER.finditer(text))
    stops = [*(match.start() for match in matches[1:]), len(text)]
    for match, stop in zip(matches, stops, strict=False):
        message = text[match.end() : stop]
        event = next((event for event, words in _EVENTS if message.startswith(words)), None)
        size = said = None
        if event is NcclEvent.OPTIONS:
            size, said = _SIZE.search(message), _GLOBAL_RANK.search(message)
        elif event is None:
            event = NcclEvent.WORK if "WorkNCCL(SeqNum=" in message else NcclEvent.MENTION
        rank = said[1] if said else match[1]
        yield NcclLine(
            guid=match[2],
            description=match[3] or None,
            group_rank=int(match[4]),
            global_rank=None if rank is None else int(rank),
            size=int(size[1]) if size else None,
            event=event,
        )
