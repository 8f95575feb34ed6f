"""Types of a case: its context, its result, and its failure."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ringproof.errors import InputError, shown

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
    """A log sink for callers that only need the log of the outcome."""


@dataclass(frozen=True)
class ClusterOptions:
    """Options of the ranks.

    Args:
        backend: ``auto`` (NCCL if every rank can have a GPU, otherwise gloo), ``gloo`` or ``nccl``.
        threads: Compute threads per rank.
        timeout_seconds: Default time limit of one case.
        log_sink: Function that receives each line that a rank writes.
        share_gpus: Whether NCCL ranks share GPUs if there are fewer GPUs than ranks. This is slow
            and only for tests; see ``gpus``.
        preload: Modules to import once, before ranks are forked, instead of in every rank. Only
            those of the first cluster of a process have an effect.
        limited: Whether each rank may take no more than its share of the free memory. Ranks on
            GPUs have no limit.
    """

    backend: str = "auto"
    threads: int = 1
    timeout_seconds: float = 120.0
    log_sink: LogSink = forward_to_stderr
    share_gpus: bool = False
    preload: tuple[str, ...] = ()
    limited: bool = True

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            sentence = f"{shown(self.backend)} is unknown; use one of {', '.join(BACKENDS)}"
            raise InputError("backend", sentence)
        if self.threads < 1:
            raise InputError("threads", f"{shown(self.threads)} is less than 1; give 1 or more")
        if self.share_gpus and self.backend == "gloo":
            raise InputError("share_gpus", "gloo uses no GPUs; use nccl or auto")
        check_timeout(self.timeout_seconds)


def check_timeout(seconds: float) -> None:
    """Raise `InputError` for a limit that is not a positive, finite number of seconds."""
    if not 0 < seconds < math.inf:
        raise InputError(
            "timeout", f"{shown(seconds)} is not a positive number of seconds; give one"
        )


@dataclass(frozen=True)
class RankContext:
    """One rank's view of a case. The default process group is initialised."""

    rank: int
    world_size: int
    backend: str
    device: torch.device


@dataclass(frozen=True)
class CaseOutcome:
    """Result of a case."""

    values: tuple[Any, ...]
    logs: tuple[tuple[int, str], ...]

    def log_text(self) -> str:
        """Return the log as one text in which each line begins with its rank."""
        return "".join(f"[rank{rank}]: {line}\n" for rank, line in self.logs)


@dataclass(frozen=True)
class Assignment:
    """A case as sent to one rank.

    Args:
        payload: Pickled ``(function, arguments)``.
        store_path: File that only this case uses.
        module_path: ``sys.path`` of the parent, so that the function can be imported.
        sharing: Ranks of the whole cluster if they may share GPUs; otherwise 0.
    """

    payload: bytes
    world_size: int
    backend: str
    store_path: str
    timeout_seconds: float
    module_path: tuple[str, ...]
    sharing: int = 0


@dataclass(frozen=True)
class RankResult:
    """Result of a case on one rank.

    Args:
        error: Exception on one line; empty if it returned.
        failed_at: ``time.monotonic()`` of the exception, which is comparable between ranks of a
            machine.
        refused: Field and sentence of the :class:`ringproof.errors.InputError`, if that was raised.
    """

    rank: int
    value: Any = None
    error: str = ""
    traceback: str = ""
    failed_at: float | None = None
    refused: tuple[str, str] | None = None


class RankFailure(RuntimeError):
    """A case did not finish: a rank raised, died or hung.

    Args:
        detail: Traceback or last log lines of this rank.
        others: Results of the other ranks on one line.
    """

    def __init__(self, rank: int, reason: str, detail: str = "", others: str = "") -> None:
        self.rank = rank
        self.reason = reason
        self.detail = detail
        self.others = others
        text = f"rank {rank} failed first: {reason}"
        text += f" ({others})" if others else ""
        super().__init__(f"{text}\n{detail.rstrip()}" if detail else text)


class RankRefusal(RankFailure):
    """A rank refused its input, and the others could not continue without it."""

    def __init__(self, report: RankResult, others: str) -> None:
        assert report.refused is not None, "another failure is none of these"
        self.refused = report.refused
        super().__init__(report.rank, report.error, report.traceback, others)

    def input_error(self) -> InputError:
        """Return the refused input and the rank on one line."""
        field, sentence = self.refused
        return InputError(field, f"{sentence} (rank {self.rank} says so)")
