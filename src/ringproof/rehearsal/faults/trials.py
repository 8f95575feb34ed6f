"""Runs each planted defect, and each removed stand-in, against the same program without it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ringproof.rehearsal.faults import judging, programs
from ringproof.rehearsal.faults.judging import Seen
from ringproof.rehearsal.faults.table import Fault
from ringproof.rehearsal.program import Program, Upstream
from ringproof.rehearsal.running import Outcome

REMOVING = "ringproof.rehearsal.faults.removing"


@dataclass(frozen=True)
class Trial:
    """What became of one planted defect.

    Attributes:
        fault: The defect.
        seen: How it shows first.
        against: Name of the training that it was held against.
        control: How the same program without the defect compares; ``nothing`` if it agrees.
        largest: Largest relative differences of the whole run; empty where it failed.
        path_differs: Whether attention took another path than without the defect.
        falls: Whether the loss fell nevertheless.
    """

    fault: Fault
    seen: Seen
    against: str
    control: Seen
    largest: dict[str, float]
    path_differs: bool
    falls: bool

    def record(self) -> dict[str, Any]:
        """Return it as JSON data."""
        return dataclasses.asdict(self)


class Trials:
    """Runs trials on one upstream; programs without a defect run once.

    Args:
        run: Runs a program on its ranks.
        upstream: A checkout of Megatron-LM that has Dynamic CP.
    """

    def __init__(self, run: Callable[[Program], Outcome], upstream: Upstream) -> None:
        self._run, self._upstream = run, upstream
        self._clean: dict[str, Outcome] = {}

    def clean(self, name: str) -> Outcome:
        """Return the outcome of a training without any defect."""
        if name not in self._clean:
            self._clean[name] = self._run(programs.program(self._upstream, name))
        return self._clean[name]

    def control(self, name: str) -> Seen:
        """Return how a training without any defect parts from its reference."""
        reference = programs.TRAININGS[name].reference
        return judging.compare(self.clean(name), self.clean(reference))

    def trial(self, fault: Fault) -> Trial:
        """Run a planted defect.

        It is held against the reference, or against the same program without the defect where
        upstream's own program does not agree with its reference.
        """
        name = fault.training
        control = self.control(name)
        against = programs.TRAININGS[name].reference if control.by == "nothing" else name
        run = self._run(programs.program(self._upstream, name, (fault.function,)))
        expected = self.clean(against)
        return Trial(
            fault,
            judging.compare(run, expected),
            against,
            control,
            {} if run.failure is not None else judging.largest(run, expected),
            judging.path(run) != judging.path(self.clean(name)),
            judging.falls(run),
        )

    def removal(self, training: str, symbol: str) -> Seen:
        """Run a training without one stand-in; the message names the symbol that was missed."""
        run = self._run(programs.program(self._upstream, training, (f"{REMOVING}:{symbol}",)))
        failure = run.failure
        if failure is None:
            return judging.compare(run, self.clean(training))
        return Seen(
            failure.kind, len(run.losses), 0.0, failure.rank, failure.symbol or failure.message,
            failure.place,
        )  # fmt: skip
