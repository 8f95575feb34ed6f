"""One trial of the trainer: a run with a fault in place, and every proof that looks at it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest import mock

from ringproof.cluster import Cluster, RankContext, RankFailure
from ringproof.errors import InputError
from ringproof.reference.graphs.backend import CaptureBackend
from ringproof.reference.graphs.tape.backend import choose_backend
from ringproof.reference.planning.validate import violations
from ringproof.reference.training import trainer
from ringproof.reference.training.assembly import make_schedule, sampler_of
from ringproof.reference.training.checkpoint import LATEST
from ringproof.reference.training.data import read_data
from ringproof.reference.training.options import KeepingOptions, TrainOptions
from ringproof.reference.training.records import Record, StepRecord
from ringproof.reference.training.schedules import StepPlan
from smoke.broken_replays import CONTROLS
from smoke.faults import MOONLIGHT, QWEN3, QWEN3_DP, Fault, Site, injected
from smoke.training_matrix import (
    ONE_RANK,
    TOLERANCE,
    Series,
    Spread,
    Trace,
    options_of,
    relative,
)

PROOFS = (
    "loss",  # each step's loss against one rank
    "gradient norm",  # each step's gradient norm against one rank
    "evaluation",  # the loss on held-out documents against one rank
    "checkpoint",  # a resumed run against itself without a break, bit by bit
    "plan validator",  # `planning.validate.violations` of every plan
    "plan agreement",  # ranks that made another plan are refused by name
    "refusal",  # the input is refused, by its name
    "hang",  # the run is stopped within seconds, with the rank and the place
    "failure",  # a rank failed in another way
)
HANG_SECONDS = 4.0
EVERY = 10
"""Steps between two lines of progress."""
NOTHING = ""
"""In place of a fault's name."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """One run, and what is compared with it.

    Args:
        spread: How it is spread over ranks.
        preset: Model.
        mtp: Depths of multi-token prediction.
        batch: Fields of `BatchOptions`, the same in the run on one rank.
        keeping: Fields of `KeepingOptions`.
        resumed: Whether the run is resumed from its first checkpoint and compared with itself.
        only_plans: Whether nothing is trained.
    """

    spread: Spread
    preset: str = "qwen3-tiny"
    mtp: int = 1
    batch: Mapping[str, Any] = field(default_factory=dict)
    keeping: Mapping[str, Any] = field(default_factory=dict)
    resumed: bool = False
    only_plans: bool = False

    def options(self, steps: int, **keeping: Any) -> TrainOptions:
        """The run."""
        options = options_of(self.preset, self.spread, mtp=self.mtp, steps=steps, **self.batch)
        return replace(options, keeping=KeepingOptions(**{**self.keeping, **keeping}))

    def reference(self, steps: int) -> TrainOptions:
        """The same samples on one rank; nothing is saved."""
        return replace(self, spread=ONE_RANK).options(steps, save_every=0)


def _in_turn(layout: Mapping[str, int], parallel: Mapping[str, Any] | None = None) -> Spread:
    return Spread(layout, parallel or {}, batch={"forced_sizes": (2, 1)})


def _packed(layout: Mapping[str, int], parallel: Mapping[str, Any] | None = None) -> Spread:
    return Spread(layout, parallel or {}, batch={"schedule": "packed"})


_CP2 = _in_turn({"cp": 2})
SETUPS: Mapping[str, Setup] = MappingProxyType(
    {
        QWEN3: Setup(spread=_CP2),
        QWEN3_DP: Setup(spread=_in_turn({"dp": 2})),
        MOONLIGHT: Setup(spread=_CP2, preset="moonlight-tiny", mtp=0),
        "qwen3, CP 3, sizes 3 and 1 in turn": Setup(
            spread=Spread({"cp": 3}, batch={"cp_sizes": "divisors", "forced_sizes": (3, 1)})
        ),
        "qwen3, CP 2 as two levels": Setup(
            spread=_in_turn({"cp": 2}, {"comm_type": "a2a+p2p", "ranks_per_node": 1})
        ),
        "qwen3, TP 2": Setup(spread=_packed({"tp": 2})),
        "qwen3, PP 2": Setup(spread=_packed({"pp": 2})),
        "qwen3, FSDP2 on 2": Setup(spread=_packed({"dp": 2}, {"fully_sharded": True})),
        "qwen3, FSDP2 on 2, a dummy in each step": Setup(
            spread=_in_turn({"cp": 2}, {"fully_sharded": True}), batch={"global_batch": 2}
        ),
        "qwen3, CP 2, evaluated after step 2": Setup(spread=_CP2, keeping={"evaluate_every": 2}),
        "qwen3, CP 2, resumed after step 1": Setup(
            spread=_CP2, keeping={"save_every": 1}, resumed=True
        ),
        "plans for CP 4, sizes 2 and 1 in turn": Setup(spread=_in_turn({"cp": 4}), only_plans=True),
        "plans for PP 2 x VPP 2": Setup(
            spread=Spread({"pp": 2}, {"vpp": 2}, {"forced_sizes": (1,)}), only_plans=True
        ),
    }
)


@dataclass(frozen=True)
class Observed:
    """A whole trial.

    Args:
        trace: What rank 0 measured; ``None`` where the run did not end.
        wanted: The same on one rank, without a fault.
        unbroken, resumed: Steps of a resumed run after the break, without one and with it.
        said: What stopped the run.
        stopped_by: ``plan agreement``, ``plan validator``, ``refusal``, ``hang`` or ``failure``;
            empty if nothing did.
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
        if self.trace is None:
            return (self.stopped_by,)
        evaluations = zip(self.trace.evaluations, self.wanted.evaluations, strict=True)
        found = {
            "loss": any(d > TOLERANCE for d in self.differences(0)),
            "gradient norm": any(d > TOLERANCE for d in self.differences(1)),
            "evaluation": any(relative(a, b) > TOLERANCE for a, b in evaluations),
            "checkpoint": self.unbroken != self.resumed,
            "plan validator": bool(self.trace.problems),
        }
        return tuple(name for name in PROOFS if found.get(name))

    def differences(self, place: int) -> list[float]:
        """Relative differences of the losses (0) or of the gradient norms (1), by step."""
        if self.trace is None:
            return []
        pairs = zip(self.trace.steps, self.wanted.steps, strict=True)
        return [relative(ours[place], theirs[place]) for ours, theirs in pairs]


class Laboratory:
    """Runs trials and keeps the clean ones, which many faults share.

    Args:
        cluster: At least as many ranks as a setup asks for.
        steps: Steps of each run.
    """

    def __init__(self, cluster: Cluster, steps: int) -> None:
        self._cluster = cluster
        self._steps = steps
        self._kept: dict[str, Observed] = {}
        self._warm: set[str] = set()  # setups that these ranks have run; a failure ends the ranks

    def clean(self, setup: str) -> Observed:
        """The run without a fault."""
        if setup not in self._kept:
            self._kept[setup] = self._observe(setup, NOTHING)
        return self._kept[setup]

    def broken(self, fault: Fault) -> Observed:
        """The run with a fault."""
        if fault.proof != "hang":
            return self._observe(fault.setup, fault.id)
        if fault.setup not in self._warm:  # a first time that takes long must not count as hanging
            self._observe(fault.setup, NOTHING)
        return self._observe(fault.setup, fault.id, seconds=HANG_SECONDS)

    def _observe(self, name: str, fault: str, *, seconds: float | None = None) -> Observed:
        setup = SETUPS[name]
        wanted = Trace() if setup.only_plans else self._reference(name, setup)
        with tempfile.TemporaryDirectory(prefix="ringproof-") as folder:
            try:
                first, unbroken, resumed = self._run(setup, fault, folder, seconds)
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
        return self._cluster.run(train, world_size=1, options=options).values[0]

    def _run(
        self, setup: Setup, fault: str, folder: str, seconds: float | None
    ) -> tuple[Trace, Series, Series]:
        keeping = {"save": folder} if setup.resumed else {}
        first = self._case(setup, setup.options(self._steps, **keeping), fault, seconds)
        if not setup.resumed:
            return first, [], []
        Path(folder, LATEST).write_text("step-000001\n")  # as if the run had ended there
        again = setup.options(self._steps, **keeping, resume=True)
        return first, first.steps[1:], self._case(setup, again, fault, seconds).steps

    def _case(
        self, setup: Setup, options: TrainOptions, fault: str, seconds: float | None
    ) -> Trace:
        outcome = self._cluster.run(
            plan if setup.only_plans else train,
            world_size=1 if setup.only_plans else setup.spread.ranks,
            timeout_seconds=seconds,
            options=options,
            fault=fault,
        )
        refused = [value.refused for value in outcome.values]
        assert all(refused) or not any(refused), "some ranks went on"
        return outcome.values[0]


def _site(rank: RankContext, options: TrainOptions) -> Site:
    return Site(rank, options.parallel.layout, options.model.mtp)


def train(
    rank: RankContext,
    *,
    options: TrainOptions,
    fault: str = NOTHING,
    control: str = NOTHING,
    backend: CaptureBackend | None = None,
) -> Trace:
    """The case: train, and measure.

    Args:
        rank: This rank.
        options: The options of the run.
        fault: One of ``smoke.faults``.
        control: A broken replay, one of ``smoke.broken_replays``.
        backend: Captures the graphs; that of the options by default.
    """
    trace, site = Trace(), _site(rank, options)
    chosen = backend or choose_backend(options.graphs.graph_backend, rank.device)

    def take(record: Record) -> None:
        trace.take(record)
        if isinstance(record, StepRecord) and record.step % EVERY == 0 and rank.rank == 0:
            print(record.progress_line(options.optimiser.steps), flush=True)

    try:
        with (
            site.watched(),
            injected(fault, site),
            CONTROLS[control](rank) if control else nullcontext(),
            _validated(options, trace.problems),
        ):
            trainer.train(options, rank.device, take, backend=chosen)
    except InputError as error:  # the ranks stay, for the next trial
        return replace(trace, refused=(error.field, str(error)))
    return trace


def plan(rank: RankContext, *, options: TrainOptions, fault: str) -> Trace:
    """The case: plan with a fault in place."""
    trace = Trace()
    with injected(fault, _site(rank, options)):
        schedule = make_schedule(options)
        documents = read_data(options.batch.data, longest=options.batch.max_sequence_length)
        sampler = sampler_of(options, documents.training)
        for step in range(options.optimiser.steps):
            lengths = documents.training.lengths[sampler.indices(step)]
            trace.problems.extend(problems_of(trainer.plan_step(lengths, schedule), options))
    return trace


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
    """Two proofs are about plans: other ranks' plans, and the rules that every plan keeps."""
    if not field.startswith("plan of "):
        return "refusal"
    return "plan agreement" if "made another" in said else "plan validator"
