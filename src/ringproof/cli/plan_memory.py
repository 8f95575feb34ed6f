"""The memory of a plan, by the tokens of its fullest microbatch, as ``ringproof fit`` measured."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from ringproof.cli.plan_options import PlanOptions
from ringproof.errors import InputError, shown
from ringproof.reference.planning.lengths import MAX_LENGTH, Lengths

OPTION = "--memory-from"
BUDGET = "--max-seqlen-per-dp-cp-rank"
MEASURE = "write it by: ringproof fit LAUNCH --vary max-seqlen-per-dp-cp-rank=N,M --json FILE"


@dataclass(frozen=True)
class MeasuredMemory:
    """What each measured rank of a launch needs, by the tokens of its fullest microbatch.

    Attributes:
        gpu, gpu_bytes: What it shall fit on; empty and 0 where ``fit`` was given none.
        beside: Bytes that torch does not count, cuBLAS included.
        ranks: For each rank, at least two numbers of tokens, ascending, with bytes by place.
    """

    gpu: str
    gpu_bytes: int
    beside: int
    ranks: Sequence[Sequence[tuple[int, Mapping[str, int]]]]

    def needed(self, tokens: int) -> int:
        """Bytes of the GPU for a fullest microbatch of so many tokens, on the rank with most."""
        return self.beside + max(_highest(points, tokens) for points in self.ranks)

    def measured(self, tokens: int) -> bool:
        """Whether so many tokens are within those of the measurements."""
        return all(points[0][0] <= tokens <= points[-1][0] for points in self.ranks)

    @property
    def budget(self) -> int:
        """The largest number of tokens that fits; 0 if none does, or no GPU is known."""
        return bisect_left(range(1, MAX_LENGTH), self.gpu_bytes + 1, key=self.needed)

    def with_budget(self, options: PlanOptions) -> PlanOptions:
        """Return options with the largest budget that fits, where no budget was given.

        Raises:
            InputError: Nothing fits on the GPU.
        """
        if options.max_tokens_per_rank or not self.gpu:
            return options
        if not self.budget:
            least = f"{self.needed(1) / 2**30:.2f} of {self.gpu_bytes / 2**30:.2f} GiB"
            problem = f"no budget fits on {shown(self.gpu)}: one token takes {least}"
            raise InputError(OPTION, f"{problem}; measure a launch that needs less on a rank")
        return replace(options, max_tokens_per_rank=self.budget)

    def refuse_longer(self, lengths: Lengths, options: PlanOptions) -> None:
        """Refuse a sequence that no group can hold at the budget of `with_budget`."""
        longest = options.domain(options.max_tokens_per_rank or 0, options.cp_sizes).longest
        most = f"{self.budget:,} tokens on a rank are the most that fit on {shown(self.gpu)}"
        lengths.refuse_longer(longest, f"{most}, by {OPTION}: cut it, or measure more ranks")

    def said(self, tokens: int) -> str:
        """Say what a fullest microbatch of so many tokens needs, and which budget fits."""
        needed = self.needed(tokens)
        text = f"{needed / 2**30:.2f} GiB for {tokens:,} tokens, the fullest microbatch of a rank"
        if not self.measured(tokens):
            text += ", which is outside of what was measured"
        if not self.gpu:
            return text
        fits = "fits on" if needed <= self.gpu_bytes else "does not fit on"
        most = f"for up to {self.budget:,}" if self.budget else "and no budget does"
        outside = "" if not self.budget or self.measured(self.budget) else ", extrapolated"
        return f"{text}; it {fits} {self.gpu}, {most}{outside}"


def _highest(points: Sequence[tuple[int, Mapping[str, int]]], tokens: int) -> int:
    """Return the highest line through both ends; a place that one end lacks was lower there."""
    after = bisect_left(points, tokens, 1, len(points) - 1, key=lambda point: point[0])
    (low, before), (high, behind) = points[after - 1 : after + 1]
    most, last = max(before.values()), max(behind.values())
    lines = ((before.get(name, most), behind.get(name, last)) for name in {*before, *behind})
    return max(a + (b - a) * (tokens - low) // (high - low) for a, b in lines)


def memory_of(data: Any, options: PlanOptions) -> MeasuredMemory:
    """Read what ``fit --vary`` says as JSON.

    Raises:
        InputError: It is something else, of another layout, of several GPUs or settings, says of
            no line how memory grows with tokens, or is asked about what was not counted.
    """
    _refuse_uncounted(options)
    ranks: dict[int, dict[int, dict[str, int]]] = {}
    try:
        measured = [one for one in data["choices"] if one["fit"]]
        mixed = _mixed([one.get("settings", {}) for one in measured])
        fits = [one["fit"] for one in measured]
        for rank in (rank for fit in fits for rank in fit["ranks"]):
            sizes = {str(place): int(size) for place, size in rank["highest"].items()}
            ranks.setdefault(int(rank["rank"]), {})[int(rank["tokens"])] = sizes | {"": 0}
        given = sorted({(at["tp"], at["pp"], at["dp"] * at["cp"])
                        for at in (fit["layout"] for fit in fits)})  # fmt: skip
        beside = {sum(int(one["bytes"]) for one in fit["estimates"].values()) for fit in fits}
        gpus = [fit["gpu"] or {"name": "", "bytes": 0} for fit in fits]
        name, size = str(gpus[0]["name"]), int(gpus[0]["bytes"])
        others = any((str(one["name"]), int(one["bytes"])) != (name, size) for one in gpus)
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        problem = f"{shown(options.memory_from)} is not a table of measurements"
        raise InputError(OPTION, f"{problem}; {MEASURE}") from error
    if mixed:
        problem = f"the measurements differ in {shown(mixed)}, and the plan is for one of them"
        raise InputError(OPTION, f"{problem}; vary {BUDGET} alone")
    if others or len(beside) != 1:
        raise InputError(OPTION, "the measurements are for several GPUs; measure for one --gpu")
    if given != [(options.tp, options.pp, options.ranks)]:
        there = " and ".join(", ".join(map(str, layout)) for layout in given)
        remedy = "plan with the same" if len(given) == 1 else "measure one layout"
        raise InputError(OPTION, f"TP, PP and DP x CP were {there} there; {remedy}")
    lines = {number: sorted(at.items()) for number, at in sorted(ranks.items())}
    for number, points in lines.items():
        if problem := _not_a_line(points):
            raise InputError(OPTION, f"rank {number} {problem}; {MEASURE}")
    return MeasuredMemory(name, size, beside.pop(), list(lines.values()))


def _mixed(settings: Sequence[Mapping[str, Any]]) -> str:
    """Return an option besides the budget that has several values in measurements; else empty."""
    names = sorted({name for one in settings for name in one} - {BUDGET})
    return next((n for n in names if len({str(one.get(n)) for one in settings}) > 1), "")


def _refuse_uncounted(options: PlanOptions) -> None:
    if options.graphs:
        problem = "fit measures neither the padding nor the pools of CUDA graphs"
        raise InputError(OPTION, f"{problem}; leave --graphs out, or {OPTION}")
    if options.pp > 1:
        problem = "a pipeline stage holds several microbatches, and only its fullest is counted"
        raise InputError(OPTION, f"{problem}; leave it out with --pp {options.pp}")


def _not_a_line(points: Sequence[tuple[int, Mapping[str, int]]]) -> str:
    """Why the memory of a rank does not say how it grows with tokens; empty if it does."""
    if not points[0][0]:
        return "has no attention, by which tokens are counted"
    if len(points) < 2:
        return "was measured with one number of tokens only, and a line needs two"
    peaks = [max(highest.values()) for _, highest in points]
    if any(more <= less for less, more in pairwise(peaks)):
        return "does not need more memory for more tokens"
    return ""
