"""A script that calls one function of ours in every rank, with groups up, and hands its value over.

Its command line is ``MODULE:FUNCTION JSON``; the function is called with the JSON value as its only
argument and returns what JSON can hold.
"""

from __future__ import annotations

import importlib
import json
import os
import sys

import torch.distributed as dist

from ringproof.rehearsal.rank.handing import hand_over


def main() -> None:
    """Call the function."""
    name, argument = sys.argv[1:]
    module, _, function = name.partition(":")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("nccl", rank=rank, world_size=world)
    try:
        hand_over(getattr(importlib.import_module(module), function)(json.loads(argument)))
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
