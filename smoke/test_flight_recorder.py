"""``logs diagnose`` on dumps that torch itself wrote while two of three ranks waited."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ringproof.logs.diagnosis.cause import diagnose
from ringproof.logs.diagnosis.output import as_text

RANKS = 3
SECONDS = 2.0


def main(rank: int, folder: Path) -> None:
    """One of three ranks, the last of which leaves a collective out; each dumps its recorder."""
    import torch
    import torch.distributed as dist
    from torch._C import _distributed_c10d as c10d

    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=RANKS)
    group = dist.new_group(list(range(RANKS)), group_desc="CONTEXT_PARALLEL_GROUP")
    for _ in range(4):
        dist.all_reduce(torch.ones(2), group=group)
    if rank != RANKS - 1:
        wait = threading.Thread(target=dist.all_reduce, args=(torch.ones(2),),
                                kwargs={"group": group}, daemon=True)  # fmt: skip
        wait.start()
    time.sleep(SECONDS)
    (folder / f"trace_{rank}").write_bytes(c10d._dump_fr_trace())
    (folder / f"trace_{rank}.json").write_bytes(c10d._dump_fr_trace_json())
    deadline = time.monotonic() + 60  # no rank leaves before all have written
    while len(list(folder.glob("trace_*.json"))) < RANKS and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.2)
    os._exit(0)


@pytest.mark.slow
def test_the_rank_that_left_a_collective_out_is_named(tmp_path: Path) -> None:
    from torch._C import _distributed_c10d as c10d

    if not hasattr(c10d, "_dump_fr_trace_json"):
        pytest.skip("this torch has no flight recorder for gloo")
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, str(rank), str(tmp_path)],
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


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
