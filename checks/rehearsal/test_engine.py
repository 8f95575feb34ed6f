"""Transformer Engine's unmodified Python computes CP attention on the stand-ins, exactly."""

from __future__ import annotations

import pytest

from ringproof.rehearsal.fixtures import Stage

CASES = "checks.rehearsal.engine_cases:attend"


@pytest.mark.parametrize(
    ("comm", "ranks", "levels"),
    [("p2p", 2, None), ("a2a", 2, None), ("all_gather", 2, None), ("p2p", 4, None),
     ("a2a+p2p", 4, [2, 2])],
)  # fmt: skip
def test_exact(stage: Stage, comm: str, ranks: int, levels: list[int] | None) -> None:
    case = {"comm": comm, "levels": levels, "heads": 8, "groups": 4, "length": 64}
    for errors in stage.call(CASES, ranks, case):
        assert max(errors.values()) < 1e-12, errors
