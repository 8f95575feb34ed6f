"""Runs a program and its reference once more with traces, and finds the first wrong tensor."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ringproof.rehearsal.locate.comparing import EXPERTS, Runs, TraceComparison
from ringproof.rehearsal.locate.gradients import loss_scales, wrong_gradients, wrong_weights
from ringproof.rehearsal.locate.joining import joined
from ringproof.rehearsal.locate.kept import TraceHead, keep
from ringproof.rehearsal.locate.overview import error_map
from ringproof.rehearsal.locate.reading import RunTrace, read_run
from ringproof.rehearsal.locate.result import Culprit, WrongPlace
from ringproof.rehearsal.locate.rows import layout_of
from ringproof.rehearsal.locate.search import Search
from ringproof.rehearsal.protocol.program import Program
from ringproof.rehearsal.protocol.trace import TraceRequest
from ringproof.rehearsal.runs.outcome import Outcome, UpstreamFails

Run = Callable[[Program, Path], Outcome]
DYNAMIC = ("--dynamic-context-parallel", "--hybrid-context-parallel")
MOST_BYTES = 2_000_000_000
"""Bytes on disk of the traces of all three runs together."""
RUNS = (("run", False), ("reference", False), ("disturbed", True))


def locate(
    run: Run, program: Program, reference: Program, step: int, folder: Path,
    kept: Path | None = None,
) -> WrongPlace:  # fmt: skip
    """Find the first tensor of a program that its reference does not have.

    Args:
        run: Runs a program in a folder.
        step: First training step whose loss or gradient norm differs; the step before is examined,
            too, since its gradients can be the cause. -1 is the first evaluation.
        folder: Where traces are kept until this function ends.
        kept: Where they stay, in a folder for each run; ``None`` for nowhere.
    """
    why = _not_covered(program)
    if why and kept is None:
        return WrongPlace(None, why)
    steps = (step,) if step < 0 else tuple(range(max(1, step - 1), step + 1))
    share = min(TraceRequest.most_bytes, MOST_BYTES // (program.ranks + 2 * reference.ranks))
    try:
        records = []
        for name, disturbed in RUNS:
            request = TraceRequest(steps, disturbed, share)
            traced = replace(program if name == "run" else reference, trace=request)
            record = _recorded(run, traced, folder / name, kept and kept / name)
            if isinstance(record, str):
                why = f"the {name} with traces did not end well{record and f': {record}'}"
                return WrongPlace(None, why, steps)
            records.append(record)
        if why:
            return WrongPlace(None, why, steps)
        return located(records[0], records[1], records[2], steps)
    except Exception as error:
        # The verdict on the run does not depend on this search, and must not be lost with it.
        said = f": {error}" if str(error) else ""
        return WrongPlace(None, f"the search failed with {type(error).__name__}{said}", steps)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _recorded(run: Run, program: Program, folder: Path, kept: Path | None) -> RunTrace | str:
    """Run a program and read its traces; a string says why it wrote none."""
    request = program.trace
    assert request is not None
    try:
        failure = run(program, folder).failure
    except UpstreamFails as failed:
        failure = failed.failure
    if failure is not None:
        return failure.message
    if kept is not None:
        name = f"{program.upstream.megatron_name}: {program.script} on {program.ranks} ranks"
        keep(folder, kept, TraceHead(name, program.ranks, request.steps, request.disturbed))
    record = read_run(kept or folder, program.ranks)
    # The values stay mapped, and their space on the disk is free when the last one is let go.
    shutil.rmtree(folder, ignore_errors=True)
    return "" if record is None else record


def _not_covered(program: Program) -> str:
    """Say why a program is not located; empty where it can be."""
    if any(name in program.arguments for name in DYNAMIC):
        return "the rows of Dynamic CP are not put together"
    return ""


def located(
    run: RunTrace, reference: RunTrace, disturbed: RunTrace, steps: Sequence[int]
) -> WrongPlace:
    """Find the first tensor of a run that its reference does not have, from their traces.

    A reference with context parallelism is put together first.
    """
    given = tuple(steps)
    every = (*run.ranks, *reference.ranks, *disturbed.ranks)
    if any(rank.trace.full for rank in every):
        return WrongPlace(None, "the trace is larger than its limit", given)
    if any(batch.borders for rank in run.ranks for batch in rank.trace.batches):
        return WrongPlace(None, "the rows of packed sequences are not put together", given)
    sizes = [one.ranks[0].trace.place.sizes for one in (run, reference, disturbed)]
    if len({(tensor, data, stage) for tensor, _, data, stage in sizes}) > 1:
        return WrongPlace(None, "the runs differ in TP, DP or PP, not only in CP", given)
    whole, moved = joined(reference), joined(disturbed)
    if isinstance(whole, str) or isinstance(moved, str):
        return WrongPlace(None, f"{whole if isinstance(whole, str) else moved}", given)
    layout = layout_of(run, whole)
    if layout is None:
        why = "the tokens of the ranks are not those of the reference in any known layout"
        return WrongPlace(None, why, given)
    comparison = TraceComparison(Runs(run, whole, moved, layout))
    search = Search(comparison)
    culprit = None
    for step in given:
        culprit = _in_step(comparison, search, step, first=step == given[0])
        if culprit is not None:
            break
    reason = "" if culprit else "every tensor that was compared agrees"
    said = (search.compared, _left_out(search.left_out, run))  # before all others are compared
    errors = None if culprit is None else error_map(search, culprit)
    return WrongPlace(culprit, reason, given, *said, errors)


def _in_step(
    comparison: TraceComparison, search: Search, step: int, *, first: bool
) -> Culprit | None:
    if step < 0:
        return search.forward(step)
    runs = comparison.runs
    found = None if first else wrong_weights(runs, step)
    found = found or search.forward(step)
    if found is not None:
        return found
    comparison.scales.update(loss_scales(comparison, step))
    if any(place[0] == step for place in comparison.scales):
        found = search.backward(step)
    return found or wrong_gradients(runs, step)


def _left_out(counts: Counter[str], run: RunTrace) -> tuple[tuple[str, int], ...]:
    found = dict(counts)
    if any(EXPERTS in one.name for rank in run.ranks for one in rank.trace.parameters):
        found["gradients of the parameters of experts"] = 1
    if run.ranks[0].trace.sharded:
        found["gradients after their reduction, which a distributed optimizer holds in parts"] = 1
    if run.ranks[0].trace.overlapped:
        found["gradients before their reduction, which overlaps the backward"] = 1
    return tuple(found.items())
