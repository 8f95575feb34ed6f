"""What one rank contributed to a process group."""

from __future__ import annotations

from dataclasses import dataclass

_LEAVING_A_PART = ("reduce_scatter", "all_to_all", "scatter")


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

    @property
    def leaving(self) -> float:
        """Bytes that leave this rank, where collectives are rings or direct exchanges.

        With ``n`` ranks and ``s`` bytes that are given, a gather of all sends ``(n - 1) s``, an
        all-reduce ``2 (n - 1) s / n``, and a scattered sum or an all-to-all, of which a part
        stays, ``(n - 1) s / n``; see "Performance" in NVIDIA's nccl-tests. All else sends ``s``.
        """
        others = len(self.ranks) - 1
        if self.operation.startswith("all_gather"):
            return self.bytes * others
        share = others / max(len(self.ranks), 1)
        if self.operation == "all_reduce":
            return 2 * self.bytes * share
        return self.bytes * (share if self.operation.startswith(_LEAVING_A_PART) else 1)
