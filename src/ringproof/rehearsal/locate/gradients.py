"""Gradients as wholes: how the loss scales them, and those of parameters."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ringproof.rehearsal.locate.comparing import FACTOR, FLOOR, Runs, TraceComparison
from ringproof.rehearsal.locate.experts import INSIDE
from ringproof.rehearsal.locate.factors import CLOSE, explained, named, scale_between
from ringproof.rehearsal.locate.reading import Array, Port, RunTrace, coordinates
from ringproof.rehearsal.locate.result import Beside, Culprit, Measured
from ringproof.rehearsal.protocol.trace import (
    AFTER,
    EXPERT,
    GRADIENTS,
    LOCAL,
    LOSS,
    LOSS_CALLER,
    REDUCED,
    SCALING,
    WEIGHT,
)

Name = tuple[int, int, int, str]
"""TP rank (that of experts for theirs), pipeline stage, chunk and name of a parameter."""
Held = tuple[tuple[int, ...], Array, int]
"""Ranks that hold a parameter, its values, and where these begin (`TracedParameter.start`)."""
EPSILON = float(np.finfo(np.float32).eps)
WHOLE = ("reduction", "scale")  # phases in which no module computes
ORDER = ((LOSS, "the loss function"), (LOSS_CALLER, "its caller"),
         (SCALING, "data parallelism"), (GRADIENTS, "the end of the reduction"))  # fmt: skip
"""Where all gradients can be scaled, in the order of execution."""


def loss_scales(comparison: TraceComparison, step: int) -> dict[tuple[int, int, int], float]:
    """Return by what the gradient of each microbatch's losses is multiplied in the run.

    A rank divides by its own tokens, microbatches and ranks, which differ without CP, so that one
    factor for a microbatch is no error.

    Returns:
        Factors by step, DP rank and microbatch; none where losses are sums over tokens.
    """
    if comparison.runs.per_token:
        return {}
    powers: dict[tuple[int, int, int], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for rank in comparison.runs.run.ranks:
        for key, call in rank.calls.items():
            loss = key[0] == step and not key[3] and not key[4] and rank.is_last(key[1])
            if not loss or "output" not in call.outputs:
                continue
            found = comparison.compare(rank, Port(key, "outputs", "output", backward=True))
            if isinstance(found, str):
                continue
            place = (step, coordinates(rank.trace.place)[2], key[2])
            mine, expected = found.mine.astype(np.float64), found.expected.astype(np.float64)
            powers[place][0] += float((mine * expected).sum())
            powers[place][1] += float((expected * expected).sum())
    return {place: a / b for place, (a, b) in powers.items() if b and a / b > 0}


def wrong_norm(runs: Runs, step: int, norms: Sequence[float]) -> Culprit | None:
    """Return the norm of gradients, where these agree and it does not.

    Args:
        norms: Those of the run, of its reference and of the disturbed reference.
    """
    mine, expected, moved = norms
    if not expected or not _knows_reduced(runs) or lost_parameters(runs, (step,)):
        return None
    tolerance = max(FACTOR * abs(moved - expected) / expected, FLOOR * EPSILON)
    error = abs(mine - expected) / expected
    if error <= tolerance:
        return None
    ranks = tuple(one.trace.rank for one in runs.run.ranks)
    both = error, tolerance
    said = Beside("norm of all gradients", *both)
    sums = {one.site: None for rank in runs.run.ranks for one in rank.trace.norms}
    return Culprit(
        "norm", "", said.what, step, (), ranks, (), (), *both, called_from=next(iter(sums), ""),
        factor=wrong_sum(runs.run), evidence=(said,),
    )  # fmt: skip


def wrong_sum(run: RunTrace) -> str:
    """Say which ranks the sum of a norm lacks or has too often; empty where it has all once.

    Gradients are dealt to the ranks of a distributed optimizer, and to those of TP and PP.
    """
    peers: dict[tuple[int, int], set[int]] = defaultdict(set)
    beside: dict[int, set[int]] = {}
    for rank in run.ranks:
        _, context, data, _ = coordinates(rank.trace.place)
        peers[context, data].add(rank.trace.rank)
        beside[rank.trace.rank] = peers[context, data]
    shards = {rank.trace.rank: {r for one in rank.trace.norms for r in one.shards}
              for rank in run.ranks}  # fmt: skip
    for rank in run.ranks:
        if len(rank.trace.norms) != 1:
            return ""
        norm, holders, new = rank.trace.norms[0], set[int](), {rank.trace.rank}
        while new:
            holders |= new
            new = {r for one in new for r in beside.get(one, set()) | shards.get(one, set())}
            new -= holders
        lacks, more = holders.difference(norm.ranks), set(norm.ranks) - holders
        if lacks or more:
            said = f"its sum over ranks is taken over {norm.group}"
            said += f", which lacks {sorted(lacks)} with other parts" if lacks else ""
            return said + (f", of which {sorted(more)} have the same parts" if more else "")
    return ""


@dataclass(frozen=True)
class ParameterDifference(Measured):
    """A parameter, or its gradient, beside the reference.

    Attributes:
        ranks: Ranks that hold it; those that are summed for gradients before their reduction.
    """

    name: Name
    ranks: tuple[int, ...]
    error: float
    tolerance: float
    mine: Array
    expected: Array


def differences(runs: Runs, step: int, kind: str) -> list[ParameterDifference]:
    """Compare the parameters of a step, or one kind of their gradients.

    Gradients of `LOCAL` are compared up to the one factor that all of them have.
    """
    # The run may be wrong in what it sums over TP.
    summed = {
        (place.pipeline, one.chunk, one.name)
        for rank in runs.reference.ranks
        for place in (rank.trace.place,)
        for one in rank.trace.parameters
        if one.summed
    }
    mine, theirs, moved = (
        _collected(record, step, kind, summed)
        for record in (runs.run, runs.reference, runs.disturbed)
    )
    factor = _common(mine, theirs) if kind == LOCAL else 1.0
    found = []
    for name, held in mine.items():
        value, other = _whole(theirs.get(name, [])), _whole(moved.get(name, []))
        if value is None or other is None or value.shape != other.shape:
            continue
        scale = float(np.abs(value).max(initial=0.0))
        step_moved = float(np.abs(value - other).max(initial=0.0))
        tolerance = max(FACTOR * step_moved / scale if scale else 0.0, FLOOR * EPSILON)
        for ranks, own, start in held:
            expected = factor * _part(value, own, start)
            if expected.shape == own.shape:
                error = float(np.abs(own - expected).max(initial=0.0))
                error /= abs(factor) * scale or 1.0
                found.append(ParameterDifference(name, ranks, error, tolerance, own, expected))
    return found


def _part(value: Array, own: Array, start: int) -> Array:
    """Return what a whole parameter has in the place of a part, or of a whole one that is flat."""
    if start >= 0:
        return value.reshape(-1)[start : start + len(own)]
    return value.reshape(own.shape) if value.size == own.size else value


def _whole(held: Sequence[Held]) -> Array | None:
    """Return a parameter, put together where ranks hold parts; ``None`` where some are missing."""
    if not held or held[0][2] < 0:
        return held[0][1] if held else None
    parts = {start: value for _, value, start in held}
    end = 0
    for start in sorted(parts):
        if start != end:
            return None
        end += len(parts[start])
    return np.concatenate([parts[start] for start in sorted(parts)])


def _collected(
    run: RunTrace, step: int, kind: str, parts: Collection[tuple[int, int, str]]
) -> dict[Name, list[Held]]:
    """Return parameters with the ranks that hold them; gradients of `LOCAL` are summed.

    Args:
        parts: Stage, chunk and name of those of which TP ranks hold parts, too.
    """
    found: dict[Name, list[Held]] = defaultdict(list)
    for rank in run.ranks:
        tensor, _, _, stage = coordinates(rank.trace.place)
        for one in rank.trace.parameters:
            expert = INSIDE.match(one.name)
            if (one.step, one.kind) != (step, kind) or (expert and not EXPERT.search(one.name)):
                continue
            summed = kind == LOCAL
            part = summed and (stage, one.chunk, one.name) in parts
            own = rank.trace.place.expert_tensor if expert else 0 if part else tensor
            name = (own, stage, one.chunk, one.name)
            value = rank.values(one.value).astype(np.float64)
            if summed and found[name]:
                ranks, before, _ = found[name].pop()
                found[name].append(((*ranks, rank.trace.rank), before + value, -1))
            elif one.start == -1 or value.size:
                held = sum(values.size for _, values, _ in found[name])
                start = held if one.start == AFTER else one.start
                found[name].append(((rank.trace.rank,), value, start))
    return found


def _common(
    mine: Mapping[Name, Sequence[Held]],
    theirs: Mapping[Name, Sequence[Held]],
) -> float:
    """Return the factor that most gradients have."""
    factors = []
    for name in mine.keys() & theirs.keys():
        own, other = mine[name][0][1], theirs[name][0][1]
        power = float((other * other).sum())
        if power and own.shape == other.shape:
            factors.append(float((own * other).sum()) / power)
    return float(np.median(factors)) if factors else 1.0


def wrong_weights(runs: Runs, step: int) -> Culprit | None:
    """Return what is wrong in the weights at the start of a step.

    Weights whose gathering overlaps the forward are gathered after they were recorded.
    """
    if any(one.ranks[0].trace.gathered_late for one in (runs.run, runs.reference)):
        return None
    wrong = [one for one in differences(runs, step, WEIGHT) if one.wrong]
    if not wrong:
        return None
    found = _made("optimizer", wrong, runs, step - 1)
    words = found.tensor.replace("gradient of ", "value of ")
    return replace(found, tensor=words, computed_at="")  # no module computes it


def wrong_gradients(runs: Runs, step: int, scales: Collection[float] = ()) -> Culprit | None:
    """Return what is wrong in the gradients of parameters, where those of tensors agree.

    Args:
        scales: By what the gradients of losses are multiplied in the step (`loss_scales`).
    """
    first = runs.run.ranks[0].trace
    known = differences(runs, step, REDUCED) if _knows_reduced(runs) else []
    reduced = [one for one in known if one.wrong]
    # Where gradients are reduced while the backward still runs, there is nothing before that.
    early = first.overlapped
    # Ranks hold parts of a sum, which those lack that wrote no trace or ended before.
    held = {rank.trace.rank for rank in runs.run.ranks for one in rank.trace.parameters
            if (one.step, one.kind) == (step, LOCAL)}  # fmt: skip
    parts = early or len(held) < math.prod(first.place.sizes)
    local = [] if parts else [one for one in differences(runs, step, LOCAL) if one.wrong]
    if local:
        return _made("gradient", local, runs, step)
    if not reduced:
        return None
    if len(reduced) == len(known) and _scaled(reduced):
        return _scaled_before(_made("scale", reduced, runs, step), reduced, runs, scales)
    return _made("reduction" if not early else "gradient", reduced, runs, step)


def _scaled_before(
    found: Culprit, wrong: Sequence[ParameterDifference], runs: Runs, scales: Collection[float]
) -> Culprit:
    """Say whether the factor of all gradients is there when the backward begins, and what is near.

    A mean over the ranks of DP and CP divides by more ranks than the reference has, so that the
    gradient of the loss needs that ratio as its factor.
    """
    forwards = {**runs.run.ranks[0].trace.forwards, **runs.run.ranks[-1].trace.forwards}
    near = ", ".join(f"{forwards[key]} ({what})" for key, what in ORDER if forwards.get(key))
    found = replace(found, factor=found.factor + _divisors(runs, found.step))
    factor = f"{found.factor}; what can scale all gradients, in the order of execution: {near}"
    found = replace(found, module="", factor=factor) if near else replace(found, module="")
    factors = {scale_between(one.mine, one.expected) for one in wrong}
    needed = _sharing(runs.run) / _sharing(runs.reference)
    if not scales or max(scales) - min(scales) > CLOSE * abs(min(scales)):
        return found
    has = min(scales)
    if any(one is None or abs(has / needed / one - 1) > CLOSE for one in factors):
        return found
    said = f"it is {has:.4g} times that of the reference where this layout needs {needed:g}"
    return replace(
        found, phase="loss", tensor=f"the same factor in the gradients of all parameters; {said}",
        computed_at=forwards.get(LOSS, ""),
    )  # fmt: skip


def _divisors(runs: Runs, step: int) -> str:
    """Say by how many tokens gradients are divided, where the reference has another number."""
    one, other = (run.ranks[0].trace.divisors.get(str(step)) for run in (runs.run, runs.reference))
    if not one or not other or one == other:
        return ""
    return f"; they are divided by {one:g} tokens, and those of the reference by {other:g}"


def _sharing(run: RunTrace) -> int:
    """Return how many ranks share the rows of a step."""
    sizes = run.ranks[0].trace.place.sizes
    return sizes[1] * sizes[2]


def lost_parameters(runs: Runs, steps: Collection[int]) -> set[str]:
    """Return the parameters of which no gradient has a counterpart of its shape."""
    names = {one.name for rank in runs.run.ranks for one in rank.trace.parameters
             if one.kind != WEIGHT and one.step in steps}  # fmt: skip
    kinds = ((step, kind) for step in steps for kind in (LOCAL, REDUCED))
    return names - {one.name[3] for at in kinds for one in differences(runs, *at)}


def _knows_reduced(runs: Runs) -> bool:
    """Whether gradients after their reduction can be compared."""
    return all(knows_reduced(one) for one in (runs.run, runs.reference, runs.disturbed))


def knows_reduced(run: RunTrace) -> bool:
    """Whether a trace says what each rank has of gradients after their reduction."""
    parts = (one.start != -1 for rank in run.ranks for one in rank.trace.parameters)
    return not run.ranks[0].trace.sharded or any(parts)


def _scaled(reduced: Sequence[ParameterDifference]) -> bool:
    """Whether all gradients of a rank are multiplied by one factor, which can be its own."""
    by_rank: dict[tuple[int, ...], list[float | None]] = defaultdict(list)
    for one in reduced:
        by_rank[one.ranks].append(scale_between(one.mine, one.expected))
    known = [[factor for factor in found if factor is not None] for found in by_rank.values()]
    complete = sum(map(len, known)) == len(reduced)
    return complete and all(max(one) - min(one) < CLOSE * abs(one[0]) for one in known)


def _made(phase: str, wrong: Sequence[ParameterDifference], runs: Runs, step: int) -> Culprit:
    # The backward reaches the last parameters of the last stage first.
    first = max(wrong, key=lambda one: (one.name[2], one.name[1], wrong.index(one)))
    same = [one for one in wrong if one.name[1:] == first.name[1:]]
    worst = max(same, key=lambda one: one.error)
    place = runs.run.ranks[0].trace.place
    sizes = dict(zip(("TP", "CP", "DP", "PP"), place.sizes, strict=True))
    module, _, name = first.name[3].rpartition(".")
    factor = scale_between(worst.mine, worst.expected)
    said = f"all values are multiplied by {named(factor, sizes)}" if factor is not None else ""
    forwards = runs.run.ranks[worst.ranks[0]].trace.forwards
    count = len({one.name[1:] for one in wrong})
    more = f" (and those of {count - 1} other parameters)" if count > 1 else ""
    by_name = {one.name: one for one in sorted(wrong, key=lambda one: one.error)}
    evidence = sorted(by_name.values(), key=lambda one: -one.error)[:6]
    return Culprit(
        phase=phase,
        module=module,
        tensor=f"gradient of {name}{more}",
        step=step,
        microbatches=(),
        ranks=tuple(sorted({rank for one in same for rank in one.ranks})),
        error=worst.error,
        tolerance=worst.tolerance,
        computed_at=forwards.get(GRADIENTS if phase in WHOLE else module, ""),
        factor=said or explained(worst.mine, worst.expected, sizes),
        evidence=tuple(Beside(one.name[3], one.error, one.tolerance) for one in evidence),
    )
