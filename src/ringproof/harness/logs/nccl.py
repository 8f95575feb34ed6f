"""What PyTorch's NCCL backend says of a process group under ``TORCH_CPP_LOG_LEVEL=INFO``.

Every such line carries a C++ log header and a prefix that names the group::

    [rank1]:[I429 13:55:49.384372190 ProcessGroupNCCL.cpp:1743]
        [PG ID 4 PG GUID 12(NAME) Rank 0] message   (on one line)

Read in PyTorch's source (``ProcessGroupNCCL.cpp``, ``createLogPrefix`` and ``initNCCLComm``):

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
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

_HEADER_END = "] [PG "
_HEADER = re.compile(
    r"(?:\[rank([0-9]{1,9})\]: ?)?"
    r"\[?[IWEF](?:[0-9]{3,8} [0-9:]{8}\.[0-9]+)?(?: +[0-9]+)? "
    r"[\w./+-]+\.(?:cpp|hpp|cc|cu|h):[0-9]+\] "
    r"\[PG (?:ID [0-9]+ PG GUID )?([\w.-]+) ?(?:\(([^()\s]*)\))? ?Rank ([0-9]{1,9})\] "
)
_SIZE = re.compile(r"[ ,]size: ([0-9]{1,9})\b")
_GLOBAL_RANK = re.compile(r"global rank: ([0-9]{1,9})\b")


class NcclEvent(Enum):
    """What a line shows about its group."""

    MENTION = "mention"
    OPTIONS = "options"
    EAGER = "eager"
    COMMUNICATOR = "communicator"
    WORK = "work"


@dataclass(frozen=True)
class NcclLine:
    """One line of the NCCL backend.

    Attributes:
        guid: Name of the group, unique in the run.
        description: ``group_desc``, or ``None`` where the prefix does not (yet) carry it.
        group_rank: The printing rank's place in the group; ``global_rank`` its rank in the run.
        size: Members of the group, where the line says it.
        event: What the line shows.
    """

    guid: str
    description: str | None
    group_rank: int
    global_rank: int | None
    size: int | None
    event: NcclEvent


def parse_nccl(text: str) -> Iterator[NcclLine]:
    """The NCCL lines in a line of a log: more than one where ranks wrote to one pipe at once."""
    if _HEADER_END not in text:  # far cheaper than the expression, and true of most lines
        return
    matches = list(_HEADER.finditer(text))
    for index, match in enumerate(matches):
        stop = matches[index + 1].start() if index + 1 < len(matches) else len(text)
        yield _line(match, text[match.end() : stop])


def _line(match: re.Match[str], message: str) -> NcclLine:
    event = _event(message)
    size = _SIZE.search(message) if event is NcclEvent.OPTIONS else None
    said = _GLOBAL_RANK.search(message) if event is NcclEvent.OPTIONS else None
    global_rank = said[1] if said else match[1]
    return NcclLine(
        guid=match[2],
        description=match[3] or None,
        group_rank=int(match[4]),
        global_rank=None if global_rank is None else int(global_rank),
        size=int(size[1]) if size else None,
        event=event,
    )


def _event(message: str) -> NcclEvent:
    if message.startswith("ProcessGroupNCCL initialization options:"):
        return NcclEvent.OPTIONS
    if message.startswith("Eagerly connecting nccl backend"):
        return NcclEvent.EAGER
    if message.startswith(("ProcessGroupNCCL created ncclComm_", "NCCL_DEBUG: ")):
        return NcclEvent.COMMUNICATOR
    if "WorkNCCL(SeqNum=" in message:
        return NcclEvent.WORK
    return NcclEvent.MENTION
