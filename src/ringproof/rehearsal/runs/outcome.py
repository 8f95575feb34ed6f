"""What became of a run, and why one could not be started."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ringproof.rehearsal.protocol.reports import DIGESTS, Failure, RankReport, SendRace


@dataclass(frozen=True)
class Outcome:
    """What became of a run.

    Attributes:
        ranks: Reports of the ranks that wrote one, by rank.
        failure: ``None`` when every rank ran through.
        seconds: Wall-clock time from the forks to the last report.
        memory_bytes: Highest sum of the ranks' own (not shared) memory that was seen.
    """

    ranks: tuple[RankReport, ...]
    failure: Failure | None
    seconds: float
    memory_bytes: int
    folder: Path

    @property
    def losses(self) -> dict[int, dict[str, float]]:
        """Losses by training step, from a rank that holds them."""
        found: dict[int, dict[str, float]] = {}
        for report in self.ranks:
            for step in report.iterations:
                if step.losses:
                    found.setdefault(step.number, dict(step.losses))
        return found

    @property
    def grad_norms(self) -> dict[int, float]:
        """Gradient norms by training step."""
        return {
            step.number: step.grad_norm
            for report in self.ranks
            for step in report.iterations
            if step.grad_norm is not None
        }

    @property
    def tokens(self) -> dict[int, tuple[int, int]]:
        """Number and digest of the targets of all ranks, by training step in which they were seen.

        Each rank of a tensor parallel group counts the same ones.
        """
        found: dict[int, tuple[int, int]] = {}
        for step in (step for report in self.ranks for step in report.iterations):
            if step.tokens is not None:
                count, digest = found.get(step.number, (0, 0))
                found[step.number] = count + step.tokens[0], (digest + step.tokens[1]) % DIGESTS
        return found

    @property
    def evaluations(self) -> tuple[Mapping[str, float], ...]:
        """Losses of each evaluation, from a rank that holds them."""
        return next((r.evaluations for r in self.ranks if any(r.evaluations)), ())

    @property
    def packages(self) -> tuple[str, ...]:
        """Packages in whose place a stand-in computed on some rank."""
        return tuple(sorted({name for report in self.ranks for name in report.packages}))

    @property
    def races(self) -> tuple[SendRace, ...]:
        """Races of all ranks, each kind and place once."""
        counts: Counter[tuple[str, str, str]] = Counter()
        for report in self.ranks:
            for race in report.races:
                counts[race.change, race.sent, race.waited] += race.count
        return tuple(SendRace(*where, count) for where, count in sorted(counts.items()))


class UpstreamFails(RuntimeError):
    """Upstream cannot be imported."""

    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        where = f" at {failure.place}" if failure.place else ""
        fault = f" (raised in {failure.raised_in})" if failure.raised_in else ""
        super().__init__(f"upstream cannot be imported: {failure.message}{where}{fault}")
