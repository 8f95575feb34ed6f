"""One of three ranks, the last of which leaves a collective out; each dumps its flight recorder.

Arguments: the rank, and a folder for the rendezvous and the dumps.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

RANKS = 3
SECONDS = 2.0


def main(rank: int, folder: Path) -> None:
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


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
