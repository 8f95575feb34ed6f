"""Runs a program and its reference once more with traces, and finds the first wrong tensor."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ringproof.rehearsal.locate.comparing import FLOOR, Runs, TraceComparison
from ringproof.rehearsal.locate.gradients import (
    EPSILON,
    knows_reduced,
    loss_scales,
    lost_parameters,
    wrong_gradients,
    wrong_norm,
    wrong_weights,
)
from ringproof.rehearsal.locate.kept import keep
from ringproof.rehearsal.locate.overview import error_map
from ringproof.rehearsal.locate.reading import RunTrace, read_run
from ringproof.rehearsal.locate.result import Culprit, WrongPlace
from ringproof.rehearsal.locate.rows import dealt_as, layout_of
from ringproof.rehearsal.locate.search import Search
from ringproof.rehearsal.protocol.program import Program
from ringproof.rehearsal.protocol.reports import Failure
from ringproof.rehearsal.protocol.trace import MOST_BYTES, TraceRequest
from ringproof.rehearsal.runs.outcome import Outcome, UpstreamFails

Run = Callable[[Program, Path], Outcome]
AGREES = "every tensor that was compared agrees"
SHARDED = "gradients after their reduction, which a distributed optimizer holds in parts"
RUNS = (("run", False), ("reference", False), ("disturbed", True))


@dataclass(frozen=True)
class Told:
    """What is known of the runs besides their traces.

    Attributes:
        norms: Norms of all gradients, of the run, the reference and the disturbed one, by step.
        failure: What ended the run; ``None`` where it ran through.
    """

    norms: Mapping[int, tuple[float, float, float]] = field(default_factory=dict)
    failure: Failure | None = None


def locate(
    run: Run, program: Program, reference: Program, step: int, folder: Path,
    kept: Path | None = None, *, before: Outcome | None = None,
) -> WrongPlace:  # fmt: skip
    """Find the first tensor of a program that its reference does not have.

    Args:
        run: Runs a program in a folder.
        step: First training step whose loss or gradient norm differs, or which does not end; the
            step before is examined, too, since its gradients can be the cause. -1 is the first
            evaluation.
        folder: Where traces are kept until this function ends.
        kept: Where they stay, in a folder for each run; ``None`` for nowhere.
        before: The run without traces, which one that is repeatable repeats.
    """
    steps = (step,) if step < 0 else tuple(range(max(1, step - 1), step + 1))
    try:
        records, outcomes = [], []
        for name, disturbed in RUNS:
            one = program if name == "run" else reference
            said = f"{one.upstream.megatron_name}: {one.file.name} on {one.ranks} ranks"
            share = min(TraceRequest.most_bytes, MOST_BYTES // (len(RUNS) * one.ranks))
            traced = replace(one, trace=TraceRequest(steps, disturbed, share, said))
            outcome = _outcome(run, traced, folder / name)
            failure = outcome if isinstance(outcome, Failure) else outcome.failure
            partly = name == "run" and failure is not None
            record = None
            if failure is None or partly:
                record = _read(traced, folder / name, kept and kept / name, partly=partly)
            # Values stay mapped, and their space on the disk is free when the last one is let go.
            shutil.rmtree(folder / name, ignore_errors=True)
            if record is None or (partly and not any(one.trace.batches for one in record.ranks)):
                why = f"the {name} with traces did not end well"
                return WrongPlace(None, why + (f": {failure.message}" if failure else ""), steps)
            records.append(record)
            outcomes.append(outcome)
        found = located(records[0], records[1], records[2], steps, _told(program, outcomes))
        return replace(found, unstable=_unstable(before, outcomes[0]))
    except Exception as error:
        # The verdict on the run does not depend on this search, and must not be lost with it.
        said = f": {error}" if str(error) else ""
        return WrongPlace(None, f"the search failed with {type(error).__name__}{said}", steps)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _outcome(run: Run, program: Program, folder: Path) -> Outcome | Failure:
    try:
        return run(program, folder)
    except UpstreamFails as failed:
        return failed.failure


def _read(program: Program, folder: Path, kept: Path | None, *, partly: bool) -> RunTrace | None:
    """Read the traces of a run; those of one that ran through are kept where that is asked for."""
    if kept is None or partly:
        return read_run(folder, program.ranks, partly=partly)
    keep(folder, kept)
    return read_run(kept, program.ranks)


def _unstable(before: Outcome | None, traced: Outcome | Failure) -> str:
    """Say how two runs of one program differ; empty where they do not."""
    if before is None or isinstance(traced, Failure):
        return ""
    first, second = (
        {(step, "loss"): next(iter(one.losses[step].values())) for step in one.losses}
        | {(step, "gradient norm"): norm for step, norm in one.grad_norms.items()}
        for one in (before, traced)
    )
    for step, name in sorted(first.keys() & second.keys()):
        both = first[step, name], second[step, name]
        if not abs(both[0] - both[1]) <= FLOOR * EPSILON * abs(both[0]) and both[0] == both[0]:
            return f"the {name} of step {step} was {both[0]:.9g} and then {both[1]:.9g}"
    return ""


def _told(program: Program, outcomes: Sequence[Outcome | Failure]) -> Told:
    ran = [one for one in outcomes if isinstance(one, Outcome)]
    norms = [one.grad_norms for one in ran]
    known = set.intersection(*(set(one) for one in norms)) if len(norms) == len(RUNS) else set()
    failure = outcomes[0] if isinstance(outcomes[0], Failure) else outcomes[0].failure
    if failure is not None:
        failure = replace(failure, message=program.upstream.relative(failure.message))
    return Told(
        {step: (norms[0][step], norms[1][step], norms[2][step]) for step in known},
        failure,
    )


def located(
    run: RunTrace,
    reference: RunTrace,
    disturbed: RunTrace,
    steps: Sequence[int],
    told: Told = Told(),
) -> WrongPlace:
    """Find the first tensor of a run that its reference does not have, from their traces."""
    given = tuple(steps)
    every = (*run.ranks, *reference.ranks, *disturbed.ranks)
    if any(rank.trace.full for rank in every):
        return WrongPlace(None, "the trace is larger than its limit", given)
    runs = _runs(run, reference, disturbed)
    if isinstance(runs, str):
        return WrongPlace(None, runs, given)
    comparison = TraceComparison(runs)
    search = Search(comparison)
    culprit = None
    for step in given:
        culprit = _in_step(comparison, search, step, told, first=step == given[0])
        if culprit is not None:
            break
    if culprit is None and told.failure is not None:
        culprit = search.failed(told.failure)
    said = search.compared, _left_out(search.left_out, runs, given)  # before others are compared
    if culprit is None and told.failure is not None:
        at = f" at {told.failure.place}" if told.failure.place else ""
        why = f"the run ends outside of all modules that are traced{at}: {told.failure.message}"
        last = search.last(told.failure)
        why += f"; the last tensor that was recorded is the {last}" if last else ""
        return WrongPlace(None, why, given, *said)
    if culprit is None:
        missing = "" if knows_reduced(run) else f"; not compared were {SHARDED}"
        return WrongPlace(None, AGREES + missing, given, *said)
    comparison.scales.update(loss_scales(comparison, culprit.step))
    gradients = runs.per_token or any(place[0] == culprit.step for place in comparison.scales)
    others = tuple(search.others(culprit, backward=gradients))
    return WrongPlace(culprit, "", given, *said, error_map(search, culprit), others=others)


def _runs(run: RunTrace, reference: RunTrace, disturbed: RunTrace) -> Runs | str:
    """Return how rows are aligned; a string says why that is not known."""
    packed = any(batch.borders for rank in run.ranks for batch in rank.trace.batches)
    sizes = [one.ranks[0].trace.place.sizes for one in (run, reference, disturbed)]
    # Packed sequences are found in any microbatch of any rank.
    if len({(size[0], 1 if packed else size[2], size[3]) for size in sizes}) > 1:
        return "the runs differ in TP, DP or PP, not only in CP"
    if packed:
        return Runs(run, reference, disturbed, "")
    dealt = dealt_as(reference)
    if dealt is None:
        return "the positions of the ranks are in no known layout"
    layout = layout_of(run, reference, dealt)
    if layout is None:
        return "the tokens of the ranks are not those of the reference in any known layout"
    return Runs(run, reference, disturbed, layout, dealt)


def _in_step(
    comparison: TraceComparison, search: Search, step: int, told: Told, *, first: bool
) -> Culprit | None:
    runs = comparison.runs
    # Nothing is known of the steps before one in which the run ends.
    known = first and (told.failure is None or step == 1)
    found = None if known or step < 0 else wrong_weights(runs, step)
    found = found or search.data(step) or search.forward(step)
    if found is not None or step < 0:
        return found
    comparison.scales.update(loss_scales(comparison, step))
    if runs.per_token or any(place[0] == step for place in comparison.scales):
        found = search.backward(step)
    scales = [factor for place, factor in comparison.scales.items() if place[0] == step]
    found = found or wrong_gradients(runs, step, scales)
    if found is None and step in told.norms:
        found = wrong_norm(runs, step, told.norms[step])
    return found


def _left_out(seen: Counter[str], runs: Runs, steps: Sequence[int]) -> tuple[tuple[str, int], ...]:
    found: dict[str, int] = {}
    run = runs.run
    if not knows_reduced(run):
        found[SHARDED] = 1
    if run.ranks[0].trace.overlapped:
        found["gradients before their reduction, which overlaps the backward"] = 1
    found |= seen
    if lost := lost_parameters(runs, steps):
        found[f"gradients of parameters without a counterpart, such as {min(lost)}"] = len(lost)
    if closed := max(rank.trace.closed for rank in run.ranks):
        found["tensors inside of decoder layers that the sample of the trace leaves out"] = closed
    thinned = (one.value.every > 1 for rank in run.ranks for one in rank.trace.tensors)
    if count := sum(thinned):
        found["rows that the sample of the trace leaves out"] = count
    if run.ranks[0].trace.gathered_late:
        found["weights after a step, which are gathered while the next forward runs"] = 1
    return tuple(found.items())
