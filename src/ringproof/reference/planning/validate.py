"""Check whether a plan is legal. The check reads the JSON and shares no code with the planner."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ringproof.reference.planning.forms import built

_MOST_PROBLEMS = 20
_ROUNDING = 1e-9
"""What a sum of floating-point numbers may differ by."""
_Positive = Annotated[int, Field(ge=1)]
_Number = Annotated[float, Field(ge=-1e300, le=1e300)]
_REMEDY = "give a plan's JSON"


class _Form(BaseModel):
    model_config = ConfigDict(strict=True)


class _Group(_Form):
    ranks: Annotated[list[int], Field(min_length=1)]
    sequences: list[int]
    dummy: Any = None


class _Microbatch(_Form):
    groups: list[_Group]


class _Metrics(_Form):
    makespan: _Number | None = None
    lower_bound: _Number | None = None
    ratio: _Number | None = None
    padding_fraction: _Number | None = None
    cp_histogram: dict[str, Any] | None = None


class _Graphs(_Form):
    groups: dict[Annotated[str, Field(pattern="^[0-9]+$")], Any]
    rows_per_rank: _Positive
    thd_max_packed_sequences: _Positive
    microbatches: _Positive
    slots: _Positive


class PlanForm(_Form):
    """The JSON of a plan."""

    version: Literal[1]
    ranks: _Positive
    max_tokens_per_rank: _Positive
    cp_sizes: list[int]
    lengths: list[int]
    microbatches: list[_Microbatch]
    metrics: _Metrics = Field(default_factory=_Metrics)

    def groups(self) -> Iterator[tuple[str, _Group]]:
        """Every group, with its place for messages."""
        for number, microbatch in enumerate(self.microbatches):
            for index, group in enumerate(microbatch.groups):
                yield f"microbatches[{number}].groups[{index}]", group

    def rows(self, group: _Group, rank_multiple: int) -> int:
        """Padded rows on a rank of a group; sequences that do not exist have none."""
        chunk = len(group.ranks) * rank_multiple
        return sum(
            (self.lengths[sequence] + chunk - 1) // chunk * rank_multiple
            for sequence in group.sequences
            if 0 <= sequence < len(self.lengths)
        )


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
    read = built(PlanForm, plan, "plan", _REMEDY)
    problems = itertools.chain(
        _header_problems(read, multiple),
        _group_problems(read, rank_multiple, max_sequences),
        _rank_problems(read),
        _sequence_problems(read),
        _metrics_problems(read),
    )
    return list(itertools.islice(problems, _MOST_PROBLEMS))


def _header_problems(plan: PlanForm, multiple: int) -> Iterator[str]:
    if len(plan.microbatches) % multiple:
        yield f"{len(plan.microbatches)} microbatches are not a multiple of {multiple}"
    if not plan.lengths:
        yield "the plan has no sequences"
    for sequence, length in enumerate(plan.lengths):
        if length < 1:
            yield f"lengths[{sequence}]: {length} is less than 1"
    for size in plan.cp_sizes:
        # Without a whole number of groups of a size, the last ones would not exist.
        if size < 1 or plan.ranks % size:
            yield f"cp_sizes: {size} does not divide the domain of {plan.ranks} ranks"


def _group_problems(plan: PlanForm, rank_multiple: int, most: int | None) -> Iterator[str]:
    for where, group in plan.groups():
        ranks, sequences = group.ranks, group.sequences
        size, rows = len(ranks), plan.rows(group, rank_multiple)
        if most is not None and len(sequences) > most:
            yield f"{where}: {len(sequences)} sequences, more than {most}"
        if ranks != list(range(ranks[0], ranks[0] + size)):
            yield f"{where}: its ranks are not consecutive"
        if ranks[0] % size:
            yield f"{where}: starts at rank {ranks[0]}, which is not a multiple of its size {size}"
        if not (ranks[0] >= 0 and ranks[-1] < plan.ranks):
            yield f"{where}: rank outside the domain of {plan.ranks}"
        if size not in plan.cp_sizes:
            yield f"{where}: {size} is not one of the sizes {plan.cp_sizes}"
        if not sequences and group.dummy is not True:
            yield f"{where}: is empty and not declared a dummy"
        if sequences and group.dummy:
            yield f"{where}: is declared a dummy and has sequences"
        for sequence in sequences:
            if not 0 <= sequence < len(plan.lengths):
                yield f"{where}: there is no sequence {sequence}"
        if rows > plan.max_tokens_per_rank:
            yield f"{where}: {rows} tokens per rank, more than {plan.max_tokens_per_rank}"


def _rank_problems(plan: PlanForm) -> Iterator[str]:
    for number, microbatch in enumerate(plan.microbatches):
        where, owners = f"microbatches[{number}]", dict[int, int]()
        held = ((i, rank) for i, group in enumerate(microbatch.groups) for rank in group.ranks)
        for index, rank in held:
            if rank in owners:
                yield f"{where}: rank {rank} is in groups[{owners[rank]}] and groups[{index}]"
            owners[rank] = index
        # Gaps, not ranks: a plan may claim more ranks than anybody could count.
        known = sorted({-1, plan.ranks, *(rank for rank in owners if 0 <= rank < plan.ranks)})
        for before, after in itertools.pairwise(known):
            if after - before == 2:
                yield f"{where}: rank {before + 1} is in no group"
            elif after - before > 2:
                yield f"{where}: ranks {before + 1} to {after - 1} are in no group"


def _sequence_problems(plan: PlanForm) -> Iterator[str]:
    placed = Counter(sequence for _, group in plan.groups() for sequence in group.sequences)
    for sequence in range(len(plan.lengths)):
        if placed[sequence] != 1:
            yield f"sequence {sequence} is in the plan {placed[sequence]} times"


def _metrics_problems(plan: PlanForm) -> Iterator[str]:
    """Metrics may be left out; those that are there have to agree with each other and the plan."""
    metrics, counts = plan.metrics, Counter[str]()
    for _, group in plan.groups():
        counts[str(len(group.ranks))] += len(group.sequences)
    said = counts if metrics.cp_histogram is None else metrics.cp_histogram
    if {size: count for size, count in said.items() if count} != dict(+counts):
        yield f"metrics.cp_histogram: {said}, but the plan has {dict(+counts)}"
    if metrics.padding_fraction is not None and not 0 <= metrics.padding_fraction < 1:
        yield f"metrics.padding_fraction: {metrics.padding_fraction} is not from 0 to 1"
    makespan, bound, ratio = metrics.makespan, metrics.lower_bound, metrics.ratio
    if makespan is not None and bound is not None:
        if not 0 <= bound <= makespan * (1 + _ROUNDING):
            yield f"metrics: makespan {makespan} is below its lower bound {bound}"
        elif bound and ratio is not None and not math.isclose(ratio, makespan / bound):
            yield f"metrics.ratio: {ratio} is not {makespan / bound}"


def capacity_violations(data: Mapping[str, Any], *, rank_multiple: int) -> list[str]:
    """List why graphs of the capacity under ``graphs`` could not replay a plan; empty if they can.

    Args:
        data: A legal plan.
        rank_multiple: Rows of a sequence on one rank are padded to a multiple of this.

    Raises:
        InputError: The key ``graphs`` does not have the form in which it is written.
    """
    if "graphs" not in data:
        return []
    plan = built(PlanForm, data, "plan", _REMEDY)
    graphs = built(_Graphs, data["graphs"], "graphs", "plan the batch anew")
    return list(itertools.islice(_capacity_problems(plan, graphs, rank_multiple), _MOST_PROBLEMS))


def _capacity_problems(plan: PlanForm, graphs: _Graphs, rank_multiple: int) -> Iterator[str]:
    captured, budget = sorted(map(int, graphs.groups)), plan.max_tokens_per_rank
    if captured != sorted(plan.cp_sizes):
        yield f"graphs.groups: CP sizes {captured}, but the plan has {sorted(plan.cp_sizes)}"
    if graphs.microbatches < len(plan.microbatches):
        most = len(plan.microbatches)
        yield f"graphs.microbatches: {graphs.microbatches}, but the plan has {most}"
    if graphs.rows_per_rank > budget:
        yield f"graphs.rows_per_rank: {graphs.rows_per_rank}, more than the budget {budget}"
    if graphs.slots > graphs.microbatches:
        yield f"graphs.slots: {graphs.slots} for {graphs.microbatches} microbatches"
    for where, group in plan.groups():
        used, entries = plan.rows(group, rank_multiple), graphs.thd_max_packed_sequences
        if len(group.sequences) + 1 > entries:
            yield f"{where}: {len(group.sequences)} sequences and a dummy in {entries} entries"
        if used > graphs.rows_per_rank:
            yield f"{where}: {used} rows on a rank, graphs have {graphs.rows_per_rank}"
