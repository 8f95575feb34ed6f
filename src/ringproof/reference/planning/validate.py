"""Check whether a plan is legal. The check reads the JSON and shares no code with the planner."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from ringproof.errors import InputError

_MOST_PROBLEMS = 20
_LARGEST = 1e300
_ROUNDING = 1e-9
"""What a sum of floating-point numbers may differ by."""


def violations(
    plan: Mapping[str, Any],
    *,
    rank_multiple: int = 2,
    multiple: int = 1,
    max_sequences: int | None = None,
) -> list[str]:
    """List what is wrong with a plan, at most the first twenty problems; empty for a legal plan.

    Args:
        plan: The parsed JSON.
        rank_multiple: Rows of a sequence on one rank are padded to a multiple of this.
        multiple: The number of microbatches has to be a multiple of this.
        max_sequences: Most sequences in one group.

    Raises:
        InputError: The data do not have the form of a plan.
    """
    _check_form(plan)
    problems = itertools.chain(
        _header_problems(plan),
        _crowded(plan, max_sequences),
        _group_and_rank_problems(plan, rank_multiple),
        _sequence_problems(plan),
        _count_problems(plan, multiple),
        _metrics_problems(plan),
    )
    return list(itertools.islice(problems, _MOST_PROBLEMS))


def _header_problems(plan: Mapping[str, Any]) -> Iterator[str]:
    if not plan["lengths"]:
        yield "the plan has no sequences"
    for sequence, length in enumerate(plan["lengths"]):
        if length < 1:
            yield f"lengths[{sequence}]: {length} is less than 1"
    for size in plan["cp_sizes"]:
        # Without a whole number of groups of a size, the last ones would not exist.
        if size < 1 or plan["ranks"] % size:
            yield f"cp_sizes: {size} does not divide the domain of {plan['ranks']} ranks"


def _group_and_rank_problems(plan: Mapping[str, Any], rank_multiple: int) -> Iterator[str]:
    for number, microbatch in enumerate(plan["microbatches"]):
        for index, group in enumerate(microbatch["groups"]):
            where = f"microbatches[{number}].groups[{index}]"
            yield from _group_problems(plan, group, where, rank_multiple)
        yield from _rank_problems(microbatch["groups"], plan["ranks"], f"microbatches[{number}]")


def _sequence_problems(plan: Mapping[str, Any]) -> Iterator[str]:
    placed = Counter(
        sequence
        for microbatch in plan["microbatches"]
        for group in microbatch["groups"]
        for sequence in group["sequences"]
    )
    for sequence in range(len(plan["lengths"])):
        if placed[sequence] != 1:
            yield f"sequence {sequence} is in the plan {placed[sequence]} times"


def _count_problems(plan: Mapping[str, Any], multiple: int) -> Iterator[str]:
    if len(plan["microbatches"]) % multiple:
        yield f"{len(plan['microbatches'])} microbatches are not a multiple of {multiple}"


def _metrics_problems(plan: Mapping[str, Any]) -> Iterator[str]:
    """Metrics may be left out; those that are there have to agree with each other and the plan."""
    metrics = plan.get("metrics", {})
    counts: Counter[str] = Counter()
    for group in (group for item in plan["microbatches"] for group in item["groups"]):
        counts[str(len(group["ranks"]))] += len(group["sequences"])
    said = {size: n for size, n in metrics.get("cp_histogram", counts).items() if n}
    if said != dict(+counts):
        yield f"metrics.cp_histogram: {said}, but the plan has {dict(+counts)}"
    if "padding_fraction" in metrics and not 0 <= metrics["padding_fraction"] < 1:
        yield f"metrics.padding_fraction: {metrics['padding_fraction']} is not from 0 to 1"
    if "makespan" in metrics and "lower_bound" in metrics:
        makespan, bound = metrics["makespan"], metrics["lower_bound"]
        if not 0 <= bound <= makespan * (1 + _ROUNDING):
            yield f"metrics: makespan {makespan} is below its lower bound {bound}"
        elif bound and not math.isclose(metrics.get("ratio", makespan / bound), makespan / bound):
            yield f"metrics.ratio: {metrics['ratio']} is not {makespan / bound}"


def _crowded(plan: Mapping[str, Any], most: int | None) -> Iterator[str]:
    for number, microbatch in enumerate(plan["microbatches"]):
        for index, group in enumerate(microbatch["groups"]):
            held = len(group["sequences"])
            if most is not None and held > most:
                where = f"microbatches[{number}].groups[{index}]"
                yield f"{where}: {held} sequences, more than {most}"


def _rank_problems(groups: list[Any], ranks: int, where: str) -> Iterator[str]:
    owners: dict[int, int] = {}
    for index, group in enumerate(groups):
        for rank in group["ranks"]:
            if rank in owners:
                yield f"{where}: rank {rank} is in groups[{owners[rank]}] and groups[{index}]"
            owners[rank] = index
    # Gaps, not ranks: a plan may claim more ranks than anybody could count.
    known = sorted({-1, ranks, *(rank for rank in owners if 0 <= rank < ranks)})
    for before, after in itertools.pairwise(known):
        if after - before == 2:
            yield f"{where}: rank {before + 1} is in no group"
        elif after - before > 2:
            yield f"{where}: ranks {before + 1} to {after - 1} are in no group"


def _group_problems(
    plan: Mapping[str, Any], group: Mapping[str, Any], where: str, rank_multiple: int
) -> Iterator[str]:
    ranks, sequences = group["ranks"], group["sequences"]
    size = len(ranks)
    if ranks != list(range(ranks[0], ranks[0] + size)):
        yield f"{where}: its ranks are not consecutive"
    if ranks[0] % size:
        yield f"{where}: starts at rank {ranks[0]}, which is not a multiple of its size {size}"
    if not (ranks[0] >= 0 and ranks[-1] < plan["ranks"]):
        yield f"{where}: rank outside the domain of {plan['ranks']}"
    if size not in plan["cp_sizes"]:
        yield f"{where}: {size} is not one of the sizes {plan['cp_sizes']}"
    if not sequences and group.get("dummy") is not True:
        yield f"{where}: is empty and not declared a dummy"
    if sequences and group.get("dummy"):
        yield f"{where}: is declared a dummy and has sequences"
    rows = 0
    for sequence in sequences:
        if not 0 <= sequence < len(plan["lengths"]):
            yield f"{where}: there is no sequence {sequence}"
        else:
            chunk = size * rank_multiple
            rows += (plan["lengths"][sequence] + chunk - 1) // chunk * rank_multiple
    if rows > plan["max_tokens_per_rank"]:
        yield f"{where}: {rows} tokens per rank, more than {plan['max_tokens_per_rank']}"


def _check_form(plan: Mapping[str, Any]) -> None:
    if not isinstance(plan, Mapping):
        raise InputError("plan", type(plan).__name__, "is not a JSON object", "give a plan's JSON")
    if plan.get("version") != 1 or plan["version"] is True:
        raise InputError("version", plan.get("version"), "is not 1", "write the plan anew")
    for name in ("ranks", "max_tokens_per_rank"):
        if not _is_count(plan.get(name)) or plan[name] < 1:
            raise InputError(name, plan.get(name), "is not a positive number", "correct it")
    for name in ("cp_sizes", "lengths"):
        if not isinstance(plan.get(name), list) or not all(map(_is_count, plan[name])):
            raise InputError(name, None, "is not a list of numbers", "correct it")
    _check_metrics(plan.get("metrics", {}))
    microbatches = plan.get("microbatches")
    if not isinstance(microbatches, list):
        raise InputError("microbatches", None, "is not a list", "correct it")
    for number, microbatch in enumerate(microbatches):
        groups = microbatch.get("groups") if isinstance(microbatch, dict) else None
        if not isinstance(groups, list) or not all(map(_is_group, groups)):
            problem = "needs `groups`, each with a list of ranks and one of sequences"
            raise InputError(f"microbatches[{number}]", None, problem, "correct it")


def _check_metrics(metrics: object) -> None:
    if not isinstance(metrics, dict):
        raise InputError("metrics", None, "is not a JSON object", "correct it or leave it out")
    for name in ("makespan", "lower_bound", "ratio", "padding_fraction"):
        if name in metrics and not _is_number(metrics[name]):
            raise InputError(f"metrics.{name}", metrics[name], "is not a number", "correct it")
    if not isinstance(metrics.get("cp_histogram", {}), dict):
        raise InputError("metrics.cp_histogram", None, "is not a JSON object", "correct it")


def _is_number(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return abs(value) <= _LARGEST  # also: neither infinite nor NaN


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_group(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    ranks, sequences = value.get("ranks"), value.get("sequences")
    if not isinstance(ranks, list) or not isinstance(sequences, list) or not ranks:
        return False
    return all(map(_is_count, ranks)) and all(map(_is_count, sequences))
