"""Whether starting the same launch again can be expected to get further."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ringproof.logs.diagnosis.shared import SharedError
from ringproof.logs.diagnosis.symptoms import Symptom

STOP, RESTART, UNKNOWN = "stop", "restart", "unknown"
_DETERMINISTIC = (
    "AssertionError", "AttributeError", "FileNotFoundError", "ImportError", "IndexError",
    "KeyError", "ModuleNotFoundError", "NameError", "NotImplementedError",
    "PermissionError", "SyntaxError", "TypeError", "UnboundLocalError", "UnicodeDecodeError",
    "ValidationError", "ValueError", "ZeroDivisionError", "usage",
)  # fmt: skip
_LOST = frozenset({"lost-peer", "lost-pipe", "peer-gone"})  # whose errors name a connection
_REPORTED = frozenset(
    {"launcher-report", "launcher-failed", "backend-error", "actor-died"}
)  # and may stand beside them


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
        return _of_consequences([one.symptom for one in rest if one.symptom])
    if cause.symptom is not None and cause.symptom.restart:
        return _written(cause.symptom)
    return _by_kind(cause)


def _written(symptom: Symptom) -> Restart:
    advice, _, why = symptom.restart.partition(": ")
    return Restart(advice, why)


def _of_consequences(symptoms: Sequence[Symptom]) -> Restart:
    """Return the advice where the logs show no cause, only what followed from one."""
    known = [one for one in symptoms if one.kind == "follow-up"]
    for one in known:
        if one.restart:
            return _written(one)
    ids = {one.id for one in known}
    if ids & _LOST and ids <= _LOST | _REPORTED:
        return Restart(RESTART, "A rank lost its peer, and no error of the training is known.")
    if ids:
        return Restart(UNKNOWN, "The error of the rank that ended first is not in the logs.")
    return Restart(UNKNOWN, "The logs show no error, only what is conspicuous.")


def _by_kind(cause: SharedError) -> Restart:
    kind = cause.symptom.kind if cause.symptom else ""
    name = cause.first.error.rpartition(".")[2]
    if kind == "hang":
        return Restart(UNKNOWN, "A hang can come from the network or from ranks that disagree.")
    if kind == "nan":
        return Restart(UNKNOWN, "The same data can give the same NaN; a faulty GPU would not.")
    if kind in ("exception", "usage") or name in _DETERMINISTIC:
        return Restart(STOP, "The same configuration and data raise the same error again.")
    return Restart(UNKNOWN, "It is not known whether this error depends on the machine.")
