"""What a case sees, what it returns, and how its failure is reported."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ringproof.errors import InputError

if TYPE_CHECKING:
    import torch

CaseFunction = Callable[..., Any]
"""``function(context: RankContext, **arguments)``; module-level, so that it can be sent by name."""

LogSink = Callable[[int, str], None]
BACKENDS = ("auto", "gloo", "nccl")


def forward_to_stderr(rank: int, line: str) -> None:
    """The default log sink."""
    sys.stderr.write(f"[rank{rank}]: {line}\n")
    sys.stderr.flush()


def drop(rank: int, line: str) -> None:
    """A log sink for callers that only want the outcome's copy."""


@dataclass(frozen=True)
class ClusterOptions:
    """How the ranks run.

    Args:
        backend: ``auto`` (NCCL where every rank can have a GPU, else gloo), ``gloo`` or ``nccl``.
        threads: Compute threads of each rank.
        timeout_seconds: Default limit of one case.
        log_sink: Called with each line that a rank writes, as it arrives.
        share_gpus: Whether NCCL ranks share GPUs where there are fewer than ranks: slow, and only
            to see that something works; see ``gpus``.

    Raises:
        InputError: An unknown backend, no thread, or a limit that is not a positive number; GPUs
            to be shared by gloo, which has none.
    """

    backend: str = "auto"
    threads: int = 1
    timeout_seconds: float = 120.0
    log_sink: LogSink = forward_to_stderr
    share_gpus: bool = False

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise InputError("backend", self.backend, "unknown", f"use one of {BACKENDS}")
        if self.threads < 1:
            raise InputError("threads", self.threads, "below 1", "give 1 or more")
        if self.share_gpus and self.backend == "gloo":
            raise InputError("share_gpus", True, "gloo uses none", "use nccl or auto")
        check_timeout(self.timeout_seconds)


def check_timeout(seconds: float) -> None:
    """Refuse a limit that is not a positive, finite number of seconds.

    Raises:
        InputError: It is not.
    """
    if not 0 < seconds < math.inf:
        raise InputError("timeout", seconds, "not a positive number of seconds", "give one")


@dataclass(frozen=True)
class RankContext:
    """One rank's view of a case. The default process group is initialised.

    Args:
        rank: This rank.
        world_size: Ranks in the case.
        backend: ``gloo`` or ``nccl``.
        device: Where this rank's tensors belong.
    """

    rank: int
    world_size: int
    backend: str
    device: torch.device


@dataclass(frozen=True)
class CaseOutcome:
    """What a case returned.

    Args:
        values: Return value of each rank.
        logs: ``(rank, line)`` in order of arrival: everything the ranks wrote to stdout or stderr.
    """

    values: tuple[Any, ...]
    logs: tuple[tuple[int, str], ...]

    def log_text(self) -> str:
        """The log as one text, each line behind its rank, as launchers write it."""
        return "".join(f"[rank{rank}]: {line}\n" for rank, line in self.logs)


@dataclass(frozen=True)
class Assignment:
    """One case, as sent to one rank.

    Args:
        payload: Pickled ``(function, arguments)``.
        world_size: Ranks in the case.
        backend: ``auto``, ``gloo`` or ``nccl``.
        store_path: A file that only this case uses.
        timeout_seconds: Of each collective.
        module_path: The parent's ``sys.path``, so that the function can be found.
        sharing: Ranks of the whole cluster, where they may share GPUs; otherwise 0.
    """

    payload: bytes
    world_size: int
    backend: str
    store_path: str
    timeout_seconds: float
    module_path: tuple[str, ...]
    sharing: int = 0


@dataclass(frozen=True)
class RankReport:
    """The end of a case on one rank.

    Args:
        rank: Which.
        value: What it returned, when it did.
        error: One line, when it raised.
        traceback: Of the exception.
        failed_at: ``time.monotonic()`` when it raised; the clock is the machine's, so ranks
            can be compared.
        refused: The arguments of :class:`ringproof.errors.InputError`, when that was raised.
    """

    rank: int
    value: Any = None
    error: str = ""
    traceback: str = ""
    failed_at: float | None = None
    refused: tuple[str, str | None, str, str] | None = None


class RankFailure(RuntimeError):
    """A case did not finish: a rank raised, died or hung.

    Args:
        rank: The rank that failed first.
        reason: Why, in one line.
        detail: Its traceback or last log lines.
        others: What became of the other ranks, in one line.
    """

    def __init__(self, rank: int, reason: str, detail: str = "", others: str = "") -> None:
        self.rank = rank
        self.reason = reason
        self.detail = detail
        self.others = others
        text = f"rank {rank} failed first: {reason}"
        text += f" ({others})" if others else ""
        super().__init__(f"{text}\n{detail.rstrip()}" if detail else text)
