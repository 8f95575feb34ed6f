"""``logs diagnose`` on dumps that torch itself wrote while two of three ranks waited."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ringproof.logs.diagnosis.cause import diagnose
from ringproof.logs.diagnosis.output import as_text
from smoke.hanging_rank import RANKS


@pytest.mark.slow
def test_the_rank_that_left_a_collective_out_is_named(tmp_path: Path) -> None:
    from torch._C import _distributed_c10d as c10d

    if not hasattr(c10d, "_dump_fr_trace_json"):
        pytest.skip("this torch has no flight recorder for gloo")
    program = Path(__file__).with_name("hanging_rank.py")
    ranks = [
        subprocess.Popen(
            [sys.executable, str(program), str(rank), str(tmp_path)],
            env={**os.environ, "TORCH_FR_BUFFER_SIZE": "100"},
        )
        for rank in range(RANKS)
    ]
    assert [rank.wait(timeout=100) for rank in ranks] == [0] * RANKS
    for suffix in ("", ".json"):
        paths = [str(tmp_path / f"trace_{rank}{suffix}") for rank in range(RANKS)]
        report = diagnose(paths)
        (stuck,) = report.stuck
        assert (stuck.sequence, stuck.behind) == (5, (2,))
        assert set(stuck.waiting) == {0, 1}
        text = "\n".join(as_text(report))
        assert "ranks waited in CONTEXT_PARALLEL_GROUP for rank 2" in text
        assert "gloo:all_reduce, number 5" in text
    sound = diagnose(paths[-1:])  # the last rank alone waits for nothing
    assert not sound.stuck
