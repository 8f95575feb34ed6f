"""One trial: a run with a fault in place, and every proof that looks at it.

The proofs, by the names under which a fault says which of them has to turn red:

==================  ==============================================================
loss                each step's loss against one rank, relative 1e-9
gradient norm       each step's gradient norm against one rank, relative 1e-9
evaluation          the loss on held-out documents against one rank, likewise
checkpoint          a resumed run against itself without a break, bit by bit
plan validator      `planning.validate.violations` of every plan
plan agreement      ranks that made another plan are refused by name
refusal             the input is refused, by its name
hang                the run is stopped within seconds, with the rank and the place
==================  ==============================================================
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from ringproof.errors import InputError
from ringproof.harness.cluster import Cluster, RankContext, RankFailure
from ringproof.reference.planning.validate import violations
from ringproof.reference.training import trainer
from ringproof.reference.training.assembly import make_schedule
from ringproof.reference.training.checkpoint import LATEST
from ringproof.reference.training.data import Sampler, read_data
from ringproof.reference.training.options import TrainOptions
from ringproof.reference.training.records import EvaluationRecord, Record, StepRecord
from ringproof.reference.training.schedules import StepPlan
from smoke.faults.catalogue import FAULTS
from smoke.faults.fault import PROOFS, Fault
from smoke.faults.seams import Site
from smoke.faults.setups import SETUPS, Setup
from smoke.training_matrix import TOLERANCE, Series

HANG_SECONDS = 4.0
CLEAN, NOTHING = "clean", "nothing"


@dataclass(frozen=True)
class Trace:
    """What one rank of a run measured.

    Args:
        steps: Loss and gradient norm of each step.
        evaluations: Losses.
        problems: What the validator found in the plans.
        refused: The field and the text of what stopped the run; empty: nothing did.
    """

    steps: Series
    evaluations: Sequence[float] = ()
    problems: Sequence[str] = ()
    refused: tuple[str, ...] = ()


@dataclass(frozen=True)
class Observed:
    """A whole trial.

    Args:
        trace: Of rank 0; ``None`` where the run did not end.
        wanted: The same on one rank, without a fault.
        unbroken, resumed: Of a resumed run: the steps after the break, without one and with it.
        said: What stopped the run.
        stopped_by: ``plan agreement``, ``plan validator``, ``refusal``, ``hang`` or ``failure``;
            empty: nothing.
    """

    trace: Trace | None
    wanted: Trace
    unbroken: Sequence[tuple[float, float]] = ()
    resumed: Sequence[tuple[float, float]] = ()
    said: str = ""
    stopped_by: str = ""

    @property
    def red(self) -> tuple[str, ...]:
        """The proofs that have turned red."""
        found = dict.fromkeys(PROOFS, False)
        if self.stopped_by:
            return (self.stopped_by,)
        assert self.trace is not None
        found["plan validator"] = bool(self.trace.problems)
        for place, name in enumerate(("loss", "gradient norm")):
            found[name] = any(d > TOLERANCE for d in self.differences(place))
        ours, theirs = self.trace.evaluations, self.wanted.evaluations
        found["evaluation"] = any(
            relative(a, b) > TOLERANCE for a, b in zip(ours, theirs, strict=True)
        )
        found["checkpoint"] = self.unbroken != self.resumed
        return tuple(name for name in PROOFS if found[name])

    def differences(self, place: int) -> list[float]:
        """Relative differences of the losses (0) or of the gradient norms (1), by step."""
        if self.trace is None:
            return []
        pairs = zip(self.trace.steps, self.wanted.steps, strict=True)
        return [relative(ours[place], theirs[place]) for ours, theirs in pairs]


def relative(found: float, wanted: float) -> float:
    """Relative difference; infinite for NaN."""
    difference = abs(found - wanted) / abs(wanted)
    return difference if difference == difference else float("inf")


class Laboratory:
    """Runs trials and keeps the clean ones, which many faults share.

    Args:
        cluster: Of at least as many ranks as a setup asks for.
        steps: Of each run.
    """

    def __init__(self, cluster: Cluster, steps: int) -> None:
        self._cluster = cluster
        self._steps = steps
        self._kept: dict[str, Observed] = {}
        self._warm: set[str] = set()  # setups that these ranks have run; a failure ends the ranks

    def clean(self, setup: str) -> Observed:
        """The run without a fault."""
        if setup not in self._kept:
            self._kept[setup] = self._observe(setup, CLEAN)
        return self._kept[setup]

    def broken(self, fault: Fault) -> Observed:
        """The run with a fault."""
        # What ranks do for the first time must not count as hanging.
        if fault.proof == "hang" and fault.setup not in self._warm:
            self._observe(fault.setup, CLEAN)
        return self._observe(fault.setup, fault.id)

    def _observe(self, name: str, fault: str) -> Observed:
        setup = SETUPS[name]
        wanted = Trace([]) if setup.only_plans else self._reference(name, setup)
        with tempfile.TemporaryDirectory(prefix="ringproof-") as folder:
            try:
                first, unbroken, resumed = self._run(setup, fault, folder)
            except RankFailure as failure:
                self._warm.clear()
                kind = "hang" if "not finished after" in failure.reason else "failure"
                return Observed(None, wanted, said=str(failure).splitlines()[0], stopped_by=kind)
        self._warm.add(name)
        if first.refused:
            field, said = first.refused
            return Observed(None, wanted, said=said, stopped_by=_who_refused(field, said))
        return Observed(first, wanted, unbroken, resumed)

    def _reference(self, name: str, setup: Setup) -> Trace:
        """One rank's run, which the clean run of the same setup has brought along."""
        if name in self._kept:
            return self._kept[name].wanted
        options = setup.reference(self._steps)
        values = self._cluster.run(train, world_size=1, options=options, fault=CLEAN).values
        return values[0]

    def _run(self, setup: Setup, fault: str, folder: str) -> tuple[Trace, Series, Series]:
        keeping = {"save": folder} if setup.resumed else {}
        first = self._case(setup, setup.options(self._steps, **keeping), fault)
        if not setup.resumed:
            return first, [], []
        Path(folder, LATEST).write_text("step-000001\n")  # as if the run had ended there
        again = setup.options(self._steps, **keeping, resume=True)
        return first, first.steps[1:], self._case(setup, again, fault).steps

    def _case(self, setup: Setup, options: TrainOptions, fault: str) -> Trace:
        outcome = self._cluster.run(
            plan if setup.only_plans else train,
            world_size=1 if setup.only_plans else setup.spread.ranks,
            timeout_seconds=HANG_SECONDS if fault in _HANGING else None,
            options=options,
            fault=fault,
        )
        refused = [value.refused for value in outcome.values]
        assert all(refused) or not any(refused), "some ranks went on"
        return outcome.values[0]


_HANGING = frozenset(fault.id for fault in FAULTS if fault.proof == "hang")


def train(rank: RankContext, *, options: TrainOptions, fault: str) -> Trace:
    """The case: train with a fault in place, and measure."""
    steps: Series = []
    evaluations: list[float] = []
    problems: list[str] = []

    def take(record: Record) -> None:
        if isinstance(record, StepRecord):
            steps.append((record.loss, record.grad_norm))
        if isinstance(record, EvaluationRecord):
            evaluations.append(record.loss)

    site = Site(rank, options)
    try:
        with site.watched(), injected(fault, site), _validated(options, problems):
            trainer.train(options, rank.device, take)
    except InputError as error:  # the ranks stay, for the next trial
        return Trace(steps, evaluations, problems, (error.field, str(error)))
    return Trace(steps, evaluations, problems)


def plan(rank: RankContext, *, options: TrainOptions, fault: str) -> Trace:
    """The case: plan with a fault in place."""
    problems: list[str] = []
    with injected(fault, Site(rank, options)):
        schedule = make_schedule(options)
        documents = read_data(options.batch.data, longest=options.batch.max_sequence_length)
        sampler = Sampler(
            seed=options.batch.seed,
            global_batch=options.batch.global_batch,
            documents=len(documents.training.lengths),
        )
        for step in range(options.optimiser.steps):
            lengths = documents.training.lengths[sampler.indices(step)]
            problems += problems_of(trainer.plan_step(lengths, schedule), options)
    return Trace([], problems=problems)


@contextmanager
def injected(fault: str, site: Site) -> Iterator[None]:
    """The fault of that name, for a while."""
    with ExitStack() as changes:
        if fault not in (CLEAN, NOTHING):
            found = next(one for one in FAULTS if one.id == fault)
            changes.enter_context(found.inject(site))
        yield


@contextmanager
def _validated(options: TrainOptions, problems: list[str]) -> Iterator[None]:
    """Every plan that the run agrees on is validated, and no number ends it."""
    agreed_plan = trainer.agreed_plan

    def validated(*arguments: Any) -> StepPlan:
        found = agreed_plan(*arguments)
        problems.extend(problems_of(found, options))
        return found

    with (
        mock.patch.object(trainer, "agreed_plan", validated),
        # A run goes on with a number that is not finite, so that every step can be compared.
        mock.patch.object(trainer, "check_finite", lambda _: None),
    ):
        yield


def problems_of(step: StepPlan, options: TrainOptions) -> list[str]:
    """What is wrong with a plan; its times aside, which are not what a run depends on."""
    parallel = options.parallel
    return violations(
        json.loads(json.dumps(step.plan.as_json())),
        rank_multiple=2 * parallel.row_shards,
        multiple=parallel.layout.pp if parallel.vpp > 1 else 1,
    )


def _who_refused(field: str, said: str) -> str:
    """Of plans two proofs speak: other ranks' plans, and the rules that every plan keeps."""
    if not field.startswith("plan of "):
        return "refusal"
    return "plan agreement" if "made another" in said else "plan validator"
