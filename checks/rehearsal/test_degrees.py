"""What each type of CP communication keeps for the backward, by upstream's own program."""

from __future__ import annotations

from pathlib import Path

import pytest

from checks.rehearsal.test_full_size import request_of
from ringproof.rehearsal.fit.fitting import Fitting
from ringproof.rehearsal.fit.vary import with_settings
from ringproof.rehearsal.fixtures import SessionServers

TOKENS, HIDDEN, RANKS, BYTES = 256, 128, 4, 2
QUERIES = TOKENS // RANKS * HIDDEN * BYTES
LEVELS = ("--hierarchical-context-parallel-sizes", "2 2")
OPTIONS = f"--context-parallel-size {RANKS} --num-query-groups 4 --cp-comm-type"


@pytest.mark.slow
def test_an_all_to_all_keeps_one_more_copy_of_the_queries(
    stage: SessionServers, tmp_path: Path
) -> None:
    """From two and four layers, so that what is there once does not count."""
    request = request_of(stage, tmp_path, f"{OPTIONS} p2p")

    def kept(fitting: Fitting, kind: str, *more: tuple[str, str]) -> int:
        """Bytes of the peak that each layer adds on the first rank."""
        low, high = (
            fitting.fit(
                fitting.prepare(
                    with_settings(
                        request.launch, (("--cp-comm-type", kind), ("--num-layers", depth), *more)
                    )
                )
            ).ranks[0].memory.peak
            for depth in ("2", "4")
        )  # fmt: skip
        return (high - low) // 2

    with Fitting(request, lambda *_: None) as fitting:
        ring = kept(fitting, "p2p")
        # One small tensor more, and torch's allocator hands out blocks of 512 bytes.
        assert kept(fitting, "all_gather") - ring in (0, 512)
        assert kept(fitting, "a2a") - ring == QUERIES
        assert kept(fitting, "a2a+p2p", LEVELS) - ring == QUERIES
