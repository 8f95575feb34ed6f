"""What ranks of a user's program report, put together."""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ringproof.rehearsal.protocol.reports import DIGESTS, RankReport
from ringproof.rehearsal.runs.outcome import Outcome
from ringproof.rehearsal.verdict.path import RequestedPath

STEPS, WITHOUT_CP = "RINGPROOF_STEPS", "RINGPROOF_WITHOUT_CP"
"""Variables of a rank: steps after which it ends, and whether the program gets CP 1."""
OF_LABELS = "loss of the labels"
REPORTED = "reported "


@dataclass(frozen=True)
class AskedLayout:
    """What a program asked megatron-core for.

    Attributes:
        bf16: Whether the model's parameters are bfloat16.
    """

    tensor: int
    pipeline: int
    path: RequestedPath
    bf16: bool

    @property
    def ranks_of_reference(self) -> int:
        """By which number of ranks the number of the program's is divided without CP."""
        return self.path.size


def layout_of(outcome: Outcome) -> AskedLayout | None:
    """Return what rank 0 asked for; ``None`` where it made no groups by ``parallel_state``."""
    told = _told(outcome.ranks[0]) if outcome.ranks else {}
    asked = told.get("layout")
    if asked is None:
        return None
    path = RequestedPath(
        bool(asked["dynamic"]),
        int(asked["context"]),
        tuple(told.get("comm_types") or ("p2p",)),
        tuple(asked["levels"] or ()),
    )
    return AskedLayout(int(asked["tensor"]), int(asked["pipeline"]), path, bool(told.get("bf16")))


def undrawn(outcome: Outcome) -> str:
    """Return why some rank could not draw its weights again; empty where all did."""
    return next((_told(one)["undrawn"] for one in outcome.ranks if "undrawn" in _told(one)), "")


def combined(outcome: Outcome) -> Outcome:
    """Return an outcome whose steps have the losses and gradient norms of all ranks together.

    A loss is the sum over the ranks by the number of tokens of all of them, so that it does not
    depend on how many ranks share a sequence. The norm of a torch optimizer is of the parameters of
    its rank: the squares of all ranks are added up and divided by the number of copies, ranks by
    TP and PP.
    """
    steps = [_told(report).get("steps", []) for report in outcome.ranks]
    if not outcome.ranks or outcome.failure is not None or not steps[0]:
        return outcome
    layout = layout_of(outcome)
    shards = layout.tensor * layout.pipeline if layout else 1
    copies = len(outcome.ranks) / shards
    first = outcome.ranks[0]
    iterations = tuple(
        dataclasses.replace(
            iteration,
            losses=_losses(_chosen(rows, OF_LABELS)),
            grad_norm=_norm(rows, copies),
            tokens=_tokens(rows),
        )
        for iteration, rows in zip(first.iterations, zip(*steps, strict=False), strict=False)
    )
    others = outcome.ranks[1:]
    silent = (dataclasses.replace(one, iterations=tuple(_silent(one))) for one in others)
    ranks = (dataclasses.replace(first, iterations=iterations), *silent)
    return dataclasses.replace(outcome, ranks=ranks)


def _silent(report: RankReport) -> Iterator[Any]:
    for iteration in report.iterations:
        yield dataclasses.replace(iteration, losses={}, grad_norm=None, tokens=None)


def _losses(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Losses of a step by name."""
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for row in rows:
        for name, (value, count) in row["sums"].items():
            sums[name][0] += value
            sums[name][1] += count
    return {name: value / count for name, (value, count) in sums.items() if count}


def reported(outcome: Outcome) -> list[dict[str, float]]:
    """Return for each step what the program's own loss function reported, averaged over ranks."""
    steps = [_told(report).get("steps", []) for report in outcome.ranks]
    return [_losses(_chosen(rows, REPORTED)) for rows in zip(*steps, strict=False)]


def _chosen(rows: Sequence[Mapping[str, Any]], start: str) -> list[Mapping[str, Any]]:
    """Rows of ranks with those sums alone whose names begin so."""
    every = ([(k, v) for k, v in row["sums"].items() if k.startswith(start)] for row in rows)
    return [{"sums": dict(sums)} for sums in every]


def _tokens(rows: Sequence[Mapping[str, Any]]) -> tuple[int, int] | None:
    """Number and digest of the labels of all ranks; ``None`` where no model got any."""
    count = sum(row["tokens"][0] for row in rows)
    return (count, sum(row["tokens"][1] for row in rows) % DIGESTS) if count else None


def without_tokens(outcome: Outcome) -> Outcome:
    """Return an outcome of which it is not known what was trained on."""
    first, *others = outcome.ranks
    blank = tuple(dataclasses.replace(one, tokens=None) for one in first.iterations)
    ranks = (dataclasses.replace(first, iterations=blank), *others)
    return dataclasses.replace(outcome, ranks=ranks)


def repeats(outcome: Outcome, reference: Outcome, times: int) -> bool:
    """Return whether a run trained on each token of its reference so many times, in each step."""
    mine, other = outcome.tokens, reference.tokens
    return mine == {
        step: (times * count, times * digest % DIGESTS) for step, (count, digest) in other.items()
    }


def _norm(rows: Sequence[Mapping[str, Any]], copies: float) -> float | None:
    if any(row["norm"] is None for row in rows):
        return None
    if all(row["of_all"] for row in rows):
        return float(rows[0]["norm"])
    return math.sqrt(sum(row["norm"] ** 2 for row in rows) / copies)


def _told(report: RankReport) -> Mapping[str, Any]:
    return report.results if isinstance(report.results, dict) else {}
