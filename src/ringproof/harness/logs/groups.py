"""The vocabulary of the census reader: names of groups, how strong the evidence is, a group."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum

FLAT_GROUP = "CONTEXT_PARALLEL_GROUP"

# The exact names only: neither the gloo twins (..._GLOO_L0) nor the expert-data-parallel levels
# that Megatron-LM creates for its distributed optimizer.
_LEVEL = re.compile(r"HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L([0-9]{1,2})")
_DYNAMIC = re.compile(r"(?:DYNAMIC|HYBRID)_DP_CP_GROUP_([0-9]{1,9})")

# Operations that move attention's tensors; all_reduce and broadcast are bookkeeping on any group.
DATA_OPERATIONS = frozenset(("all_to_all", "all_gather", "reduce_scatter", "send", "recv"))


class Strength(IntEnum):
    """How much is known of a group's use, weakest first."""

    CREATED = 1
    COMMUNICATOR = 2
    TRAFFIC = 3

    @property
    def word(self) -> str:
        """The word in JSON and text."""
        return self.name.lower()


def level_of(name: str) -> int | None:
    """The level of a hierarchical CP group's name (0 is innermost), ``None`` for any other name."""
    match = _LEVEL.fullmatch(name)
    return int(match[1]) if match else None


def level_name(level: int) -> str:
    """The description of one level's groups."""
    return f"HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L{level}"


def is_context_parallel(name: str) -> bool:
    """Whether the name is the flat CP group's or one of the hierarchical levels'."""
    return name == FLAT_GROUP or level_of(name) is not None


def is_dynamic(name: str) -> bool:
    """Whether the name is one of dynamic CP's groups, which the verdict leaves out."""
    return dynamic_size(name) is not None


def dynamic_size(name: str) -> int | None:
    """The CP size in the name of one of dynamic CP's groups, ``None`` for any other name."""
    match = _DYNAMIC.fullmatch(name)
    return int(match[1]) if match else None


@dataclass(frozen=True)
class Group:
    """One process group found in the logs.

    Attributes:
        name: Its description.
        ranks: Global ranks in group order, ``None`` where the logs do not give all of them.
        size: Number of members, ``None`` where unknown.
        backend: ``None`` where unknown.
        strength: The strongest evidence for it.
        bytes_sent: Sum over the ranks that reported, ``operations`` likewise, sorted by kind.
    """

    name: str
    ranks: tuple[int, ...] | None
    size: int | None
    backend: str | None
    strength: Strength
    bytes_sent: int = 0
    operations: tuple[tuple[str, int], ...] = ()

    @property
    def moves_data(self) -> bool:
        """Whether tensors were really sent on it."""
        return self.bytes_sent > 0 and any(
            count > 0 and kind in DATA_OPERATIONS for kind, count in self.operations
        )

    def count(self, kind: str) -> int:
        """How often one kind of operation was issued."""
        return dict(self.operations).get(kind, 0)


ENGINE = "Transformer Engine"
CONFIGURATION = "configuration"


@dataclass(frozen=True)
class Evidence:
    """One line of a log that counts: for which group (or the words above), and what it shows."""

    file: str
    line: int
    text: str
    group: str
    shows: str
