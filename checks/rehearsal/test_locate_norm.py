"""The norm of gradients that a distributed optimizer deals to ranks, from traces made up here."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from checks.rehearsal.test_locate import one_rank, run
from ringproof.rehearsal.locate import saying
from ringproof.rehearsal.locate.locating import Told, located
from ringproof.rehearsal.locate.reading import RankRecord, RunTrace
from ringproof.rehearsal.locate.result import WrongPlace
from ringproof.rehearsal.protocol.trace import REDUCED, TracedNorm, TracedParameter, Values

PLACE = "optimizer.py:7"


def dealt(record: RunTrace, sums: tuple[tuple[int, ...], ...], *, parts: bool = True) -> RunTrace:
    """Let ranks keep their part of each gradient only, and sum the norm over some ranks."""
    count = len(record.ranks)
    ranks = []
    for number, one in enumerate(record.ranks):

        def part(held: TracedParameter, number: int = number) -> TracedParameter:
            size = int(np.prod(held.value.shape))
            low, high = size * number // count, size * (number + 1) // count
            value = Values(held.value.offset + low * 8, (high - low,), held.value.dtype)
            return replace(held, value=value, start=low)

        held = tuple(
            part(one) if one.kind == REDUCED and parts else one for one in one.trace.parameters
        )
        norm = TracedNorm(sums[number], f"GROUP {list(sums[number])}", PLACE, tuple(range(count)))
        trace = replace(one.trace, sharded=True, parameters=held, norms=(norm,))
        ranks.append(RankRecord(trace, one.data))
    return RunTrace(tuple(ranks))


def found(record: RunTrace, *, parts: bool = True) -> WrongPlace:
    told = Told(norms={1: (0.5, 1.0, 1.0)})
    references = (dealt(one_rank(off), ((0,),), parts=parts) for off in (0.0, 1e-15))
    return located(record, *references, (1,), told)


@pytest.mark.parametrize(
    ("sums", "said"),
    [
        (((0,), (1,)), "GROUP [0], which lacks [1] with other parts"),
        (((0, 1), (0, 1)), ""),
        (((0, 1, 2), (0, 1, 2)), "GROUP [0, 1, 2], of which [2] have the same parts"),
    ],
)
def test_the_ranks_that_a_norm_lacks_are_named(
    sums: tuple[tuple[int, ...], ...], said: str
) -> None:
    location = found(dealt(run(), sums))
    assert location.culprit is not None and location.culprit.phase == "norm"
    sentence = saying.sentence(location)
    assert "agree after their reduction and their norm does not" in sentence
    assert ("its sum over ranks" in sentence) is bool(said)
    assert sentence.endswith(said)
    assert location.culprit.called_from == PLACE
    assert not location.left_out


def test_a_wrong_part_of_a_gradient_is_a_wrong_reduction() -> None:
    location = found(dealt(run(reduced=0.5), ((0, 1), (0, 1))))
    assert location.culprit is not None and location.culprit.phase == "scale"


def test_gradients_that_were_not_compared_are_said_first() -> None:
    location = found(dealt(run(), ((0,), (1,)), parts=False), parts=False)
    assert location.culprit is None
    assert (
        saying.left_out(location)
        .partition("not compared: ")[2]
        .startswith("gradients after their reduction")
    )
    assert "gradients after their reduction" in saying.sentence(location)
