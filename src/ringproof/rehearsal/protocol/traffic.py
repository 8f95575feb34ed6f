"""What one rank contributed to a process group."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GroupTraffic:
    """What one rank contributed to one process group by one function of ``torch.distributed``.

    Attributes:
        group: Description of the process group.
        bytes: Bytes that this rank sent or contributed.
    """

    group: str
    ranks: tuple[int, ...]
    operation: str
    calls: int
    bytes: int
