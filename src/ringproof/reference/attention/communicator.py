"""Communication of attention: a process group, a few operations, and a count of bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from ringproof.errors import InputError
from ringproof.reference.topology.census_line import TrafficLine, field_word

Pending = tuple[dist.Work, ...]


@dataclass
class Traffic:
    """Counts what a rank really sent, per group: the evidence that a CP path was active.

    Whoever wants the count makes one and passes it.
    """

    operations: dict[str, Counter[str]] = field(default_factory=dict)
    bytes_sent: Counter[str] = field(default_factory=Counter)

    def add(self, group: str, operation: str, bytes_sent: int) -> None:
        """Count one operation of this rank."""
        self.operations.setdefault(group, Counter())[operation] += 1
        self.bytes_sent[group] += bytes_sent

    def lines(self, groups: Iterable[str]) -> tuple[TrafficLine, ...]:
        """One marker line per group, by name; a group that carried nothing says so.

        Args:
            groups: Names of the groups that hold this rank, as the census gives them.
        """
        return tuple(
            TrafficLine(
                rank=dist.get_rank(),
                world_size=dist.get_world_size(),
                group=group,
                operations=tuple(sorted(self.operations.get(group, {}).items())),
                bytes_sent=self.bytes_sent[group],
            )
            for group in sorted({*groups, *self.operations})
        )


@dataclass(frozen=True)
class Communicator:
    """One process group as attention sees it.

    Args:
        group: Holds this rank. ``None`` is refused: it would mean the world to torch, and a
            missing group has silently switched CP off in real trainings.
        traffic: Counter of bytes, or ``None``.
    """

    group: dist.ProcessGroup
    traffic: Traffic | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.group, dist.ProcessGroup):
            kind = type(self.group).__name__
            raise InputError("group", f"{kind} is not a process group of this rank; pass one")

    @property
    def size(self) -> int:
        """Ranks in the group."""
        return int(self.group.size())

    @property
    def rank(self) -> int:
        """This rank's index in the group."""
        return int(self.group.rank())

    @property
    def global_ranks(self) -> tuple[int, ...]:
        """The members, in group order."""
        return tuple(dist.get_process_group_ranks(self.group))

    def shift(
        self, send: torch.Tensor, receive: torch.Tensor, *, tag: int, distance: int = 1
    ) -> Pending:
        """Start sending to a later rank and receiving from an earlier one, around the ring.

        Both buffers belong to the transfer until :func:`wait` has returned. Transfers in flight
        at the same time carry different tags.

        Args:
            send: Tensor for the rank ``distance`` places later.
            receive: Tensor from the rank ``distance`` places earlier.
            distance: In ranks of the group; 1 is the neighbour.
        """
        successor = dist.get_global_rank(self.group, (self.rank + distance) % self.size)
        predecessor = dist.get_global_rank(self.group, (self.rank - distance) % self.size)
        self._count("send", send)
        return tuple(
            dist.batch_isend_irecv(
                [
                    dist.P2POp(dist.isend, send, successor, group=self.group, tag=tag),
                    dist.P2POp(dist.irecv, receive, predecessor, group=self.group, tag=tag),
                ]
            )
        )

    def start_all_gather(self, send: torch.Tensor, receive: torch.Tensor) -> Pending:
        """Start gathering ``send [n]`` of every rank into ``receive [size, n]``."""
        self._count("all_gather", send, copies=self.size - 1)
        # torch 2.13 renamed the collective and warns about the old name.
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        return (gather(receive.flatten(), send.flatten(), group=self.group, async_op=True),)

    def start_all_to_all(self, send: torch.Tensor, receive: torch.Tensor) -> Pending:
        """Start exchanging: row ``i`` of ``send [size, …]`` goes to rank ``i``."""
        self._count("all_to_all", send[1:])
        return (dist.all_to_all_single(receive, send, group=self.group, async_op=True),)

    def reduce_scatter(self, send: torch.Tensor) -> torch.Tensor:
        """Row ``i`` of ``send [size, n]``, summed over all ranks, for rank ``i``.

        An all-to-all and a local sum: as many bytes on the wire as a direct reduce-scatter, a
        fixed order of summation, and it exists on every backend.
        """
        receive = torch.empty_like(send)
        wait(self.start_all_to_all(send, receive))
        return receive.sum(0)

    def _count(self, operation: str, sent: torch.Tensor, copies: int = 1) -> None:
        if self.traffic is not None:
            name = field_word(self.group.group_desc)
            self.traffic.add(name, operation, sent.numel() * sent.element_size() * copies)


def wait(pending: Pending) -> None:
    """Return when the transfers' buffers may be used (on CUDA: by the current stream)."""
    for work in pending:
        work.wait()
