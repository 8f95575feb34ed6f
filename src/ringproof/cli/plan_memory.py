"""The memory of a plan, by the tokens of its fullest microbatch, as ``ringproof fit`` measured."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ringproof.cli.plan_options import PlanOptions
from ringproof.errors import InputError, shown
from ringproof.reference.planning.lengths import MAX_LENGTH

OPTION = "--memory-from"
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

    @property
    def budget(self) -> int:
        """The largest number of tokens that fits; 0 if none does, or no GPU is known."""
        return bisect_left(range(1, MAX_LENGTH), self.gpu_bytes + 1, key=self.needed)

    def said(self, tokens: int) -> str:
        """Say what a fullest microbatch of so many tokens needs, and which budget fits."""
        needed = self.needed(tokens)
        text = f"{needed / 2**30:.2f} GiB for {tokens:,} tokens, the fullest microbatch of a rank"
        if not all(points[0][0] <= tokens <= points[-1][0] for points in self.ranks):
            text += ", which is outside of what was measured"
        fits = "fits on" if needed <= self.gpu_bytes else "does not fit on"
        return f"{text}; it {fits} {self.gpu}, for up to {self.budget:,}" if self.gpu else text


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
        InputError: It is something else, of another layout, or has one number of tokens only.
    """
    ranks: dict[int, dict[int, dict[str, int]]] = {}
    try:
        fits = [one["fit"] for one in data["choices"] if one["fit"]]
        for rank in (rank for fit in fits for rank in fit["ranks"]):
            sizes = {str(place): int(size) for place, size in rank["highest"].items()}
            ranks.setdefault(int(rank["rank"]), {})[int(rank["tokens"])] = sizes | {"": 0}
        given = {(at["tp"], at["pp"], at["dp"] * at["cp"]) for at in (f["layout"] for f in fits)}
        beside = sum(int(one["bytes"]) for one in fits[0]["estimates"].values())
        gpu = fits[0]["gpu"] or {"name": "", "bytes": 0}
        name, size = str(gpu["name"]), int(gpu["bytes"])
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        problem = f"{shown(options.memory_from)} is not a table of measurements"
        raise InputError(OPTION, f"{problem}; {MEASURE}") from error
    if given != {(options.tp, options.pp, options.ranks)}:
        there = ", ".join(f"{tp}, {pp}, {domain}" for tp, pp, domain in given)
        raise InputError(OPTION, f"TP, PP and DP x CP were {there} there; plan with the same")
    if not ranks or min(map(len, ranks.values())) < 2:
        problem = "a rank was measured with one number of tokens only, and a line needs two"
        raise InputError(OPTION, f"{problem}; {MEASURE}")
    return MeasuredMemory(name, size, beside, [sorted(at.items()) for at in ranks.values()])
