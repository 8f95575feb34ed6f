"""``ringproof rehearse`` on a launch that hangs: what each rank waits in is named, none is left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil
import pytest

from ringproof.rehearsal.fixtures import ENGINE, MEGATRON

MARK = "RINGPROOF_TEST_OF_A_HANG"
# Rank 1 does not reduce its gradients: rank 0 waits there, and rank 1 where losses are averaged.
HANGING = """
import os
from ringproof.rehearsal.library import train

if __name__ == "__main__":
    if os.environ["RANK"] == "1":
        train.finalize_model_grads = lambda *arguments, **named: None
    train.main()
"""
MODEL = """--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 128
--max-position-embeddings 128 --micro-batch-size 1 --global-batch-size 2 --train-iters 3 --lr
1e-3 --min-lr 1e-3 --normalization RMSNorm --swiglu --position-embedding-type rope --vocab-size
255 --disable-bias-linear --make-vocab-size-divisible-by 128 --eval-interval 1000 --eval-iters 1
--attention-dropout 0 --hidden-dropout 0 --mock-data --context-parallel-size 2"""


@pytest.mark.slow
def test_a_hang_is_named_within_30_seconds_and_nothing_is_left(tmp_path: Path) -> None:
    script, mark = tmp_path / "pretrain_hanging.py", uuid.uuid4().hex
    script.write_text(HANGING)
    command = ("torchrun", "--nproc-per-node", "2", str(script), *MODEL.split())
    run = subprocess.run(
        [sys.executable, "-m", "ringproof", "rehearse", "--upstream", MEGATRON, "--te", ENGINE,
         "--json", "result.json", "--out", "logs", "--", *command],
        cwd=tmp_path, env={**os.environ, MARK: mark}, capture_output=True, text=True, timeout=100,
        check=False,
    )  # fmt: skip
    assert run.returncode == 1, run.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    refused = result["refused_by"]
    assert refused["kind"] == "hung"
    assert "DATA_PARALLEL_GROUP_WITH_CP [0, 1]" in refused["waiting"]["0"]
    assert "all_reduce in CONTEXT_PARALLEL_GROUP [0, 1]" in refused["waiting"]["1"]
    last = max(path.stat().st_mtime for path in (tmp_path / "logs").rglob("*.board"))
    assert (tmp_path / "result.json").stat().st_mtime - last < 30
    assert marked(mark) == []


def marked(mark: str) -> list[psutil.Process]:
    """Processes that the command started, or that these started; they get a moment to end."""
    deadline = time.monotonic() + 5
    while found := [process for process in psutil.process_iter() if _has(process, mark)]:
        if time.monotonic() > deadline:
            return found
        time.sleep(0.1)
    return []


def _has(process: psutil.Process, mark: str) -> bool:
    try:
        return process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
