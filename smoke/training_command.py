"""``ringproof train`` in this process, on workers that are there already."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import pytest

from ringproof.cli import train
from ringproof.cluster import CaseOutcome, Cluster, ClusterOptions
from smoke.processes import called

SMALL = (
    *("--data", "synthetic:mean=32", "--global-batch", "8", "--dtype", "float64"),
    *("--max-length", "64", "--max-tokens-per-rank", "64", "--steps", "1"),
)


@dataclass
class Borrowed(AbstractContextManager["Borrowed"]):
    """What the command takes for a cluster of its own."""

    cluster: Cluster
    world_size: int
    options: ClusterOptions

    def run(self, function: Any, **arguments: Any) -> CaseOutcome:
        """A case on the first ranks; its lines reach the command when it is over."""
        outcome = self.cluster.run(function, world_size=self.world_size, **arguments)
        for rank, line in outcome.logs:
            self.options.log_sink(rank, line)
        return outcome

    def __exit__(self, *failure: object) -> None:
        """The workers stay."""


@dataclass(frozen=True)
class Command:
    """Runs ``ringproof train`` as its users do, but for the start of ranks.

    Without a cluster it gets no further than there.
    """

    capture: pytest.CaptureFixture[str]
    change: pytest.MonkeyPatch
    cluster: Cluster | None = None

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        """Exit code, standard output and standard error."""
        with self.change.context() as change:
            change.setattr(train, "Cluster", self._ranks)
            return called(self.capture, change, "train", *SMALL, *arguments)

    def _ranks(self, world_size: int, options: ClusterOptions) -> Borrowed:
        if self.cluster is None:
            raise RuntimeError(f"{world_size} ranks would start")
        return Borrowed(self.cluster, world_size, options)

    def refusal(self, *arguments: str) -> str:
        """The one line of bad input."""
        code, _, errors = self(*arguments)
        assert code == 2, errors
        assert errors.count("\n") == 1, errors
        assert errors.startswith("error: ")
        return errors.removeprefix("error: ").rstrip()
