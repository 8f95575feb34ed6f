"""The simulated pipeline against closed forms, and against the longest path through its events."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from ringproof.errors import InputError
from ringproof.reference.planning import Pipeline

Step = tuple[str, int, int]
"""``F`` or ``B``, microbatch, and depth in the model: chunk times stages, plus stage."""


def order(stage: int, stages: int, virtual: int, count: int) -> list[Step]:
    """Megatron-LM's order, from its schedule table: groups of ``stages`` microbatches, and in each
    all of them through one chunk after the other; so many forwards first, then one backward each.
    """
    table = [
        (microbatch, chunk)
        for first in range(0, count, stages)
        for chunk in range(virtual)
        for microbatch in range(first, min(first + stages, count))
    ]
    ahead = stages - stage - 1
    if virtual > 1:
        ahead = 2 * ahead + (virtual - 1) * stages
    forwards: list[Step] = [("F", item, chunk * stages + stage) for item, chunk in table]
    steps = forwards[:ahead]
    for index, (microbatch, chunk) in enumerate(table):
        steps += forwards[ahead + index : ahead + index + 1]
        steps.append(("B", microbatch, (virtual - 1 - chunk) * stages + stage))
    return steps


def inputs(step: Step, parts: int) -> list[Step]:
    """What a step needs from the depth before it, or from its own forward at the model's end."""
    kind, microbatch, depth = step
    before = depth + (-1 if kind == "F" else 1)
    if 0 <= before < parts:
        return [(kind, microbatch, before)]
    return [("F", microbatch, depth)] if kind == "B" else []


def length(times: Sequence[float], stages: int, virtual: int) -> float:
    """Longest path through all steps: each follows the one before it on its stage, and its input.

    Relaxed until nothing changes, so that it knows nothing of clocks and queues.
    """
    parts, before = stages * virtual, dict[Step, list[Step]]()
    for stage in range(stages):
        steps = order(stage, stages, virtual, len(times))
        for index, step in enumerate(steps):
            before[step] = [*steps[max(0, index - 1) : index], *inputs(step, parts)]
    end = dict.fromkeys(before, 0.0)
    while True:
        after = {
            step: max((end[other] for other in others), default=0.0)
            + times[step[1]] * (1 / 3 if step[0] == "F" else 2 / 3) / parts
            for step, others in before.items()
        }
        if after == end:
            return max(end.values())
        end = after


@pytest.mark.parametrize("seed", range(60))
def test_the_simulation_is_the_longest_path(seed: int) -> None:
    rng = random.Random(seed)
    stages, virtual = rng.choice([(2, 1), (3, 1), (4, 1), (2, 2), (3, 2), (2, 3), (4, 2)])
    count = rng.randint(1, 9) if virtual == 1 else stages * rng.randint(1, 3)
    times = [rng.choice([0.0, rng.random(), 10 * rng.random()]) for _ in range(count)]
    found = Pipeline(stages=stages, virtual=virtual).seconds(times)
    assert found == pytest.approx(length(times, stages, virtual), rel=1e-9, abs=1e-12)


def test_another_order_would_be_noticed() -> None:
    """One virtual stage or two is not the same."""
    assert Pipeline(stages=2, virtual=2).seconds([3.0, 1.0]) != length([3.0, 1.0], 2, 1)


@pytest.mark.parametrize("stages", [1, 2, 4, 8])
@pytest.mark.parametrize("count", [1, 4, 8, 24])
def test_equal_microbatches_have_the_textbook_length(stages: int, count: int) -> None:
    """1F1B: ``(microbatches + stages - 1)`` times a stage's share of one microbatch."""
    expected = (count + stages - 1) * 12.0 / stages
    assert Pipeline(stages).seconds([12.0] * count) == pytest.approx(expected)


@pytest.mark.parametrize("virtual", [2, 3, 4])
def test_virtual_stages_shrink_the_bubble_by_their_number(virtual: int) -> None:
    stages, count = 4, 8
    expected = count * 12.0 / stages + (stages - 1) * 12.0 / (stages * virtual)
    assert Pipeline(stages, virtual).seconds([12.0] * count) == pytest.approx(expected)


@pytest.mark.parametrize(("stages", "virtual"), [(0, 1), (1, 0), (1, 2)])
def test_bad_pipelines(stages: int, virtual: int) -> None:
    with pytest.raises(InputError):
        Pipeline(stages, virtual)
