"""The planted defects, and how each shows against the same program without it."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from checks.faults import engine, megatron, programs
from ringproof.rehearsal.protocol.program import Program, Upstream
from ringproof.rehearsal.runs.outcome import Outcome
from ringproof.rehearsal.verdict.agreement import Difference, differences

REMOVING = "checks.faults.removing"
# Runs of the same data in other layouts differ by rounding: 1.9e-7 relative was the largest of all
# clean programs but MTP's, whose difference is upstream's own.
TOLERANCE = 1e-6


@dataclass(frozen=True)
class Fault:
    """One planted defect.

    Attributes:
        function: ``module:function`` that plants it.
        breaks: The defect in one sentence: the function's docstring.
    """

    name: str
    function: str
    breaks: str
    training: str


def _fault(function: Callable[[], None], training: str) -> Fault:
    place = f"{function.__module__}:{function.__name__}"
    name = function.__name__.replace("_", "-")
    return Fault(name, place, inspect.getdoc(function) or "", training)


PLANTED = (
    ("dynamic", (
        engine.group_kept, megatron.rope_group_static, megatron.groups_halved,
        megatron.evaluation_keeps_group, megatron.stale_boundaries, engine.stale_lengths,
        megatron.slices_contiguous, megatron.labels_of_next_rank, megatron.padding_counted,
        megatron.sample_given_twice, megatron.microbatch_dropped, megatron.tokens_counted_locally,
        megatron.loss_scaled_by_microbatches, megatron.schedule_differs,
    )),
    ("cp2-dp2", (megatron.gradients_without_cp,)),
    ("hierarchical", (engine.levels_swapped, engine.chunks_unsorted, engine.ring_step_lost)),
    ("cp2", (
        engine.lse_merge_skipped, engine.second_half_merge_skipped, engine.diagonal_unmasked,
        engine.key_gradient_lost,
    )),
    ("learned-cp2", (megatron.positions_unsliced,)),
    ("tied-pp", (megatron.embeddings_not_summed,)),
    ("dynamic-pp", (megatron.norm_of_one_stage, megatron.stages_disagree)),
    ("dynamic-tp", (megatron.layernorms_not_summed, megatron.gather_rotated)),
    ("moe-cp2", (megatron.router_loss_local,)),
    ("mtp-cp2", (megatron.mtp_ignores_neighbours,)),
    ("dynamic-mtp", (megatron.mtp_ignores_boundaries,)),
)  # fmt: skip
FAULTS = tuple(_fault(function, training) for training, planted in PLANTED for function in planted)


@dataclass(frozen=True)
class FirstDifference:
    """How a difference between two runs shows first.

    Attributes:
        by: ``raised``, ``died``, ``hung``, ``timeout``, ``loss``, ``norm``, ``evaluation`` or
            ``path``; ``nothing`` where the runs agree.
        step: Training step, or index of the evaluation, from 1; 0 where there is none.
        rank: The rank that failed; -1 otherwise.
        message: Its message, and the collectives that other ranks waited in.
    """

    by: str
    step: int = 0
    difference: float = 0.0
    rank: int = -1
    message: str = ""
    place: str = ""


def compare(run: Outcome, expected: Outcome, tolerance: float = TOLERANCE) -> FirstDifference:
    """Return how a run parts first from another of the same data.

    The earliest step counts whose losses or gradient norm differ by more than ``tolerance``,
    relative; then a failure; then evaluations.

    Raises:
        ValueError: The expected run failed or logged no loss, so that nothing can be compared.
    """
    if expected.failure is not None or not expected.losses:
        raise ValueError(f"the reference did not run: {expected.failure}")
    for seen in _known(run, expected):
        shown = run.failure is None or (seen.kind != "evaluation" and seen.step in run.losses)
        if shown and seen.relative > tolerance:
            return FirstDifference(seen.kind, seen.step, seen.relative)
    return _failed(run) if run.failure is not None else FirstDifference("nothing")


def _failed(run: Outcome) -> FirstDifference:
    failure = run.failure
    assert failure is not None
    waits = "; ".join(f"rank {rank}: {text}" for rank, text in sorted(failure.waiting.items()))
    message = next(iter(failure.message.splitlines()), "")
    if failure.kind in ("hung", "timeout"):
        message = waits or message
    return FirstDifference(failure.kind, len(run.losses), 0.0, failure.rank, message, failure.place)


def largest(run: Outcome, expected: Outcome) -> dict[str, float]:
    """Return the largest relative difference by ``loss``, ``norm`` and ``evaluation``."""
    found = {"loss": 0.0, "norm": 0.0, "evaluation": 0.0}
    for seen in _known(run, expected):
        found[seen.kind] = max(found[seen.kind], seen.relative)
    return found


def _known(run: Outcome, expected: Outcome) -> Iterator[Difference]:
    """Yield the numbers that the expected run has, by step, and then those of evaluations."""
    return (item for item in differences(run, expected) if item.reference is not None)


def path(run: Outcome) -> Counter[tuple[object, ...]]:
    """Count attention calls over all ranks by the path that they took."""
    return Counter(
        (report.rank, call.iteration, call.phase, call.comm_type, call.sizes, call.tokens)
        for report in run.ranks
        for call in report.attention
    )


def falls(run: Outcome) -> bool:
    """Return whether the loss of the last step is below that of the first."""
    values = [losses["lm loss"] for _, losses in sorted(run.losses.items()) if "lm loss" in losses]
    return len(values) > 1 and values[-1] < values[0]


@dataclass(frozen=True)
class Trial:
    """What became of one planted defect.

    Attributes:
        against: Name of the training that it was held against.
        control: Comparison of the program without the defect; ``nothing`` if it agrees.
        largest: Largest relative differences of the whole run; empty where it failed.
        path_differs: Whether attention took another path than without the defect.
        falls: Whether the loss fell nevertheless.
    """

    fault: Fault
    seen: FirstDifference
    against: str
    control: FirstDifference
    largest: dict[str, float]
    path_differs: bool
    falls: bool


class Trials:
    """Runs trials on one upstream; programs without a defect run once."""

    def __init__(self, run: Callable[[Program], Outcome], upstream: Upstream) -> None:
        self._run, self._upstream = run, upstream
        self._clean: dict[str, Outcome] = {}

    def clean(self, name: str) -> Outcome:
        """Return the outcome of a training without any defect."""
        if name not in self._clean:
            self._clean[name] = self._run(programs.program(self._upstream, name))
        return self._clean[name]

    def control(self, name: str) -> FirstDifference:
        """Return how a training without any defect parts from its reference."""
        reference = programs.TRAININGS[name].reference
        return compare(self.clean(name), self.clean(reference))

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
            compare(run, expected),
            against,
            control,
            largest(run, expected) if run.failure is None else {},
            path(run) != path(self.clean(name)),
            falls(run),
        )

    def removal(self, training: str, symbol: str) -> FirstDifference:
        """Run a training without one stand-in; the message names the symbol that was missed."""
        run = self._run(programs.program(self._upstream, training, (f"{REMOVING}:{symbol}",)))
        if run.failure is None:
            return compare(run, self.clean(training))
        return replace(_failed(run), message=run.failure.symbol or run.failure.message)
