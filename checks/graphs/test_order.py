"""Orders of passes."""

from __future__ import annotations

import pytest

from ringproof.errors import InputError
from ringproof.reference.graphs.order import Pass, checked_order, default_order, one_after_another

F0, F1, B0, B1 = (Pass(i, direction) for direction in ("forward", "backward") for i in (0, 1))


def test_orders() -> None:
    assert checked_order(None, 2) == default_order(2) == (F0, F1, B1, B0)
    assert checked_order([F0, B0, F1, B1], 2) == one_after_another(2)


@pytest.mark.parametrize(
    ("order", "problem"),
    [
        ([F0, B0, B0], "backward 0"),
        ([F0, F0, B0], "forward 0"),
        ([B0, F0], "backward 0"),
        ([F0, F1, B0, B1], "forward 1"),
        ([F0], "1 captures have 2 passes"),
    ],
)
def test_no_orders(order: list[Pass], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        checked_order(order, 1)
