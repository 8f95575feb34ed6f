"""One rank of a smoke run on GPUs, with stand-ins for GPUs around it and a planted defect in it.

``python -m torch.distributed.run ... -m smoke.gpu_rank ENGINE DEFECT WORDS``, where ``ENGINE`` is a
folder with Transformer Engine, ``DEFECT`` a function of `checks.faults.kinds`, and ``WORDS`` are
those of `member` without the option ``--engine``.
"""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path

import torch

from checks.faults import kinds
from ringproof.rehearsal.protocol.board import Board
from ringproof.rehearsal.protocol.program import Upstream
from ringproof.rehearsal.rank import bootstrap, member
from ringproof.rehearsal.standins import communication, extension


def main(engine: str, defect: str, words: list[str]) -> int:
    """Run `member`, which finds GPUs, NCCL and compiled kernels where it looks for them."""
    given = dict(itertools.pairwise(words))
    megatron = Path(given["--megatron"])
    dtype = given["--dtype"]
    upstream = Upstream(
        megatron, megatron.name, Path(engine), given["--engine-version"], Path(given["--helpers"])
    )
    bootstrap.prepare(upstream, dtype, given[dtype])  # which is the script
    devices, rank = int(os.environ["LOCAL_WORLD_SIZE"]), os.environ["RANK"]
    torch.cuda.device_count = lambda: devices
    board = Path(os.environ["TMPDIR"]) / f"{rank}.board"
    communication.install(communication.Contributions(), Board(board))
    extension.leave_out_fused_kernels()
    getattr(kinds, defect)()
    return member.main(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
