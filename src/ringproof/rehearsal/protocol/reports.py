"""What a rank reports of its run: plain data, the same as JSON."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ringproof.rehearsal.protocol.memory import MemoryReport
from ringproof.rehearsal.protocol.traffic import GroupTraffic

MISSING = re.compile(r"ModuleNotFoundError|ImportError|not installed|is not available")
"""Messages about a package that this machine lacks; these do not count as a refusal."""
DIGESTS = 1 << 40
"""Digests of tokens are numbers below this one."""


@dataclass(frozen=True)
class Iteration:
    """One training step as a rank logged it.

    Attributes:
        number: Training step, from 1.
        losses: By name; empty on ranks that hold no loss.
        grad_norm: Global gradient norm; ``None`` where upstream computes none.
        seconds: Since the training step before.
        tokens: Number of targets that count in the loss on this rank, and a digest of them that
            does not depend on their order; ``None`` where they were not seen.
    """

    number: int
    losses: Mapping[str, float]
    grad_norm: float | None
    seconds: float
    tokens: tuple[int, int] | None = None


@dataclass(frozen=True)
class AttentionCall:
    """Attention calls of one layer in one microbatch that took the same path.

    Attributes:
        iteration: Training step, from 1.
        phase: ``train``, ``recompute`` or ``evaluate``; ``capture`` while a CUDA graph is captured
            and ``warmup`` before that in Transformer Engine's own function. A replay calls nothing.
        layer: Layer number, from 1.
        microbatch: Index of the call within the iteration, from 0.
        comm_type: ``p2p``, ``a2a``, ``all_gather``, ``a2a+p2p``; ``none`` without communication.
        sizes: Size of the CP group, or of each level of ``a2a+p2p``.
        ranks: Ranks of the group, or of each level.
        layout: ``sbhd``, ``bshd`` or ``thd``.
        tokens: Query tokens of this rank in the call, padding included.
        without_cp: Whether the calling module's own configuration sets CP 1, as Megatron-LM does
            for vision encoders whatever the launch says.
    """

    iteration: int
    phase: str
    layer: int
    microbatch: int
    comm_type: str
    sizes: tuple[int, ...]
    ranks: tuple[tuple[int, ...], ...]
    layout: str
    tokens: int
    without_cp: bool = False

    @property
    def size(self) -> int:
        """Ranks that share the sequence."""
        return math.prod(self.sizes)


@dataclass(frozen=True)
class SendRace:
    """Tensors that upstream released or overwrote while an ``isend`` could still read them.

    The rehearsal keeps their memory, so that its losses are those of a run in which the send was
    in time. On a GPU it may not be.

    Attributes:
        change: ``released`` or ``overwritten``.
        sent: ``FILE:LINE`` of the ``isend``, relative to the upstream folder.
        waited: ``FILE:LINE`` of the wait for it.
        count: Number of sends.
    """

    change: str
    sent: str
    waited: str
    count: int

    def __str__(self) -> str:
        return (
            f"a tensor sent at {self.sent} was {self.change} before the wait for it at "
            f"{self.waited}"
        )


@dataclass(frozen=True)
class GraphCapture:
    """One CUDA graph that upstream captured on the tape.

    Attributes:
        pool: Number of its memory pool, from 0 in the order of first use.
        position: Position of its capture among the captures of the pool, from 0.
        operations: Operations that a replay runs.
        kernels: Stand-ins of compiled kernels among them.
        transfers: Operations of process groups among them.
        bytes: Memory that the capture allocated, without reuse.
    """

    pool: int
    position: int
    operations: int
    kernels: int
    transfers: int
    bytes: int
    replays: int


@dataclass(frozen=True)
class Failure:
    """Why a rank, or a run of many, did not end well.

    Attributes:
        kind: ``raised``, ``died``, ``hung`` or ``timeout``; ``memory`` where memory ran out;
            ``import`` where upstream cannot be imported.
        rank: The rank that failed; -1 where none was started.
        message: The type of the exception and its message, or how the rank ended.
        place: ``FILE:LINE`` of the innermost upstream frame, relative to the upstream folder.
        symbol: The symbol that no stand-in implements; empty for upstream's own errors.
        waiting: Collective and group that each unfinished rank waits in, by rank.
        raised_in: Whose code raised, and ``FILE:LINE`` in it, where upstream's imports called code
            that is not upstream's.
        package: Package that upstream needs and that is not installed here.
        cause: What upstream had found when it raised something else while reporting it.
    """

    kind: str
    rank: int
    message: str
    place: str = ""
    symbol: str = ""
    waiting: Mapping[int, str] = field(default_factory=dict)
    traceback: str = ""
    raised_in: str = ""
    package: str = ""
    cause: str = ""

    @property
    def ours(self) -> bool:
        """Whether it says nothing about the launch: a stand-in, a package or memory is missing."""
        return bool(self.symbol or self.package) or self.kind == "memory"


@dataclass(frozen=True)
class RankReport:
    """What one rank did.

    Attributes:
        error: Why it ended early; ``None`` when it ran through.
        evaluations: Losses of each evaluation, by name.
        attention: Attention calls in order.
        graphs: CUDA graphs in the order of their captures.
        seconds: Wall-clock time of the rank.
        ran: Some of upstream's functions that ran, as ``FILE:FUNCTION``, by each folder from which
            a module was imported.
        results: Value that a script handed over (see `ringproof.rehearsal.rank.probe`).
        packages: Packages in whose place a stand-in computed, and which a machine may lack.
        memory: What it would take on a GPU, of a run at full size.
    """

    rank: int
    error: Failure | None
    iterations: tuple[Iteration, ...] = ()
    evaluations: tuple[Mapping[str, float], ...] = ()
    attention: tuple[AttentionCall, ...] = ()
    traffic: tuple[GroupTraffic, ...] = ()
    races: tuple[SendRace, ...] = ()
    graphs: tuple[GraphCapture, ...] = ()
    seconds: float = 0.0
    ran: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    results: Any = None
    packages: tuple[str, ...] = ()
    memory: MemoryReport | None = None
