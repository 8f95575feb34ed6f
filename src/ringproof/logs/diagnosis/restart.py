"""Whether starting the same launch again can be expected to get further."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ringproof.logs.diagnosis.shared import SharedError

STOP, RESTART, UNKNOWN = "stop", "restart", "unknown"
_DETERMINISTIC = (
    "AssertionError", "AttributeError", "FileNotFoundError", "ImportError", "IndexError",
    "JSONDecodeError", "KeyError", "ModuleNotFoundError", "NameError", "NotImplementedError",
    "PermissionError", "SyntaxError", "TypeError", "UnboundLocalError", "UnicodeDecodeError",
    "ValidationError", "ValueError", "ZeroDivisionError", "usage",
)  # fmt: skip
_LOST = ("lost-peer", "peer-gone", "backend-error", "actor-died")
_TRANSIENT = ("ConnectionError", "ConnectionResetError", "TimeoutError", "BrokenPipeError")


@dataclass(frozen=True)
class Restart:
    """Advice for a scheduler.

    Attributes:
        advice: ``stop``, ``restart`` or ``unknown``.
        why: The reason in one sentence.
    """

    advice: str
    why: str


def restart_advice(cause: SharedError | None, rest: Sequence[SharedError]) -> Restart:
    """Return whether the same launch can be expected to get further, and why.

    Args:
        cause: The first cause, or ``None``.
        rest: Further findings that are no causes, such as lost peers.
    """
    if cause is None:
        known = {one.symptom.id for one in rest if one.symptom and one.kind == "follow-up"}
        if known and not known <= set(_LOST):
            return Restart(UNKNOWN, "The error of the rank that ended first is not in the logs.")
        if known:
            return Restart(RESTART, "A rank lost its peer, and no error of the training is known.")
        return Restart(UNKNOWN, "The logs show no error, only what is conspicuous.")
    if cause.symptom is not None and cause.symptom.restart:
        advice, _, why = cause.symptom.restart.partition(": ")
        return Restart(advice, why)
    return _by_kind(cause)


def _by_kind(cause: SharedError) -> Restart:
    kind = cause.symptom.kind if cause.symptom else ""
    name = cause.first.error.rpartition(".")[2]
    if kind == "hang":
        return Restart(UNKNOWN, "A hang can come from the network or from ranks that disagree.")
    if kind == "nan":
        return Restart(UNKNOWN, "The same data can give the same NaN; a faulty GPU would not.")
    if kind in ("exception", "usage") or name in _DETERMINISTIC:
        return Restart(STOP, "The same configuration and data raise the same error again.")
    if name in _TRANSIENT:
        return Restart(RESTART, "A connection was lost.")
    return Restart(UNKNOWN, "It is not known whether this error depends on the machine.")
