"""The simulated pipeline against closed forms and against an order-free lower bound."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringproof.errors import InputError
from ringproof.reference.planning.simulate import Pipeline


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


@settings(max_examples=150, deadline=None)
@given(
    times=st.lists(st.floats(0.1, 100), min_size=1, max_size=12),
    stages=st.integers(1, 6),
    virtual=st.integers(1, 3),
)
def test_no_pipeline_beats_its_work_and_its_depth(
    times: list[float], stages: int, virtual: int
) -> None:
    pipeline = Pipeline(stages, virtual if stages > 1 else 1)
    length = pipeline.seconds(times)
    assert length >= sum(times) / stages - 1e-9
    assert length >= max(times) - 1e-9
    assert length <= sum(times) + 1e-9


def test_a_long_microbatch_costs_every_stage() -> None:
    even = Pipeline(4).seconds([10.0] * 8)
    uneven = Pipeline(4).seconds([45.0] + [5.0] * 7)
    assert uneven > 1.3 * even


@pytest.mark.parametrize(("stages", "virtual"), [(0, 1), (1, 0), (1, 2)])
def test_bad_pipelines(stages: int, virtual: int) -> None:
    with pytest.raises(InputError):
        Pipeline(stages, virtual)
