"""Other ways in which a rank fails: its process dies, or it refuses its input."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

from ringproof.errors import InputError
from ringproof.harness.cluster.case import RankFailure, RankReport


@dataclass(frozen=True)
class Death:
    """A process that ended without a report.

    Args:
        noticed: ``time.monotonic()`` when its channel closed.
        code: Exit code, negative for a signal.
    """

    noticed: float
    code: int | None

    @property
    def by_itself(self) -> bool:
        """Whether it ended without a signal."""
        return self.code is not None and self.code >= 0

    @property
    def reason(self) -> str:
        """Reason of the end."""
        if self.code is not None and self.code < 0:
            return f"killed by {signal.Signals(-self.code).name}"
        return f"exited with code {self.code}"


class RankRefusal(RankFailure):
    """A rank refused its input, and the others could not continue without it.

    Args:
        report: Report of the rank, with ``refused``.
        others: What became of the other ranks, in one line.
    """

    def __init__(self, report: RankReport, others: str) -> None:
        assert report.refused is not None, "another failure is none of these"
        self.refused = report.refused
        super().__init__(report.rank, report.error, report.traceback, others)

    def input_error(self) -> InputError:
        """Return the refused input and the rank on one line."""
        field, value, problem, remedy = self.refused
        return InputError(field, value, f"{problem}, says rank {self.rank}", remedy)


def same_refusal(reports: Sequence[RankReport]) -> tuple[str, str | None, str, str] | None:
    """Return the common refusal if all ranks refused the same field for the same reason."""
    first = reports[0].refused
    reasons = {r.refused and (r.refused[0], r.refused[2]) for r in reports}
    return first if len(reasons) == 1 else None
