"""Plan one batch at many token budgets, sets of group sizes and types of communication."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ringproof.errors import InputError
from ringproof.reference.planning.costs import CostModel
from ringproof.reference.planning.domain import Domain, IntArray
from ringproof.reference.planning.plan import Plan
from ringproof.reference.planning.planner import make_plan
from ringproof.reference.planning.simulate import Goal

AS_GOOD = 1.01
"""Settings within this factor of the fastest are alike: a model of time is not more exact."""
MAX_SETTINGS = 1000


@dataclass(frozen=True)
class Setting:
    """One point of a sweep, with CP sizes as the user wrote them.

    The type of communication is empty where the cost model knows none.
    """

    max_tokens_per_rank: int
    cp_sizes: str
    comm_type: str


@dataclass(frozen=True)
class Outcome:
    """The plan of a setting, or why there is none; of settings alike, the first is preferred."""

    setting: Setting
    place: int
    domain: Domain | None = None
    plan: Plan | None = None
    problem: str = ""

    @property
    def upstream(self) -> bool:
        """Whether Megatron-LM's dynamic CP can be set to it.

        There, sizes are all powers of two from a smallest to the domain, itself one.
        """
        if self.domain is None or self.setting.comm_type == "a2a+p2p":
            return False
        return self.domain.cp_sizes == upstream_sizes(self.domain.ranks, self.domain.cp_sizes[0])


def upstream_sizes(ranks: int, smallest: int) -> tuple[int, ...]:
    """Group sizes of Megatron-LM's dynamic CP; empty where it supports no such domain."""
    if ranks & (ranks - 1) or smallest & (smallest - 1):
        return ()
    return tuple(1 << power for power in range(smallest.bit_length() - 1, ranks.bit_length()))


Build = Callable[[Setting], tuple[Domain, CostModel]]


def sweep(
    lengths: IntArray, settings: Sequence[Setting], build: Build, goal: Goal | None = None
) -> tuple[Outcome, ...]:
    """Plan the batch at every setting; one that is impossible is kept with its reason.

    Args:
        lengths: Tokens of each sequence.
        settings: At most `MAX_SETTINGS`, the preferred ones first.
        build: The domain and the cost model of a setting.
        goal: Goal of every plan.

    Raises:
        InputError: Too many settings, or none that is possible.
    """
    if not 0 < len(settings) <= MAX_SETTINGS:
        problem = f"{len(settings)} settings, not 1 to {MAX_SETTINGS}"
        raise InputError("sweep", None, problem, "vary less at a time")
    outcomes = tuple(
        _tried(lengths, setting, place, build, goal) for place, setting in enumerate(settings)
    )
    if all(outcome.plan is None for outcome in outcomes):
        problem = f"no setting is possible: {outcomes[0].problem}"
        raise InputError("sweep", None, problem, "change budgets or sizes")
    return outcomes


def _tried(
    lengths: IntArray, setting: Setting, place: int, build: Build, goal: Goal | None
) -> Outcome:
    try:
        domain, model = build(setting)
        return Outcome(setting, place, domain, make_plan(lengths, domain, model, goal))
    except InputError as error:
        return Outcome(setting, place, problem=str(error))


def recommend(outcomes: Iterable[Outcome], *, upstream: bool = False) -> Outcome | None:
    """The fastest setting; of those as good, the one with the smallest budget (least memory).

    With ``upstream``, only settings that Megatron-LM can be set to.
    """
    usable = [
        (outcome.plan.metrics.makespan, outcome)
        for outcome in outcomes
        if outcome.plan is not None and (outcome.upstream or not upstream)
    ]
    if not usable:
        return None
    limit = AS_GOOD * min(makespan for makespan, _ in usable)
    alike = [outcome for makespan, outcome in usable if makespan <= limit]
    return min(alike, key=lambda outcome: (outcome.setting.max_tokens_per_rank, outcome.place))
