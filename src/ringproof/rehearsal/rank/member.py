"""One rank that torchrun started: upstream's script with stand-ins, and a census of its groups.

``python -m torch.distributed.run ... -m ringproof.rehearsal.rank.member OPTIONS SCRIPT ARGUMENTS``
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

import torch.distributed as dist

from ringproof.reference.topology.census import print_census
from ringproof.rehearsal.protocol.program import Program, Upstream
from ringproof.rehearsal.rank import bootstrap


def main(words: list[str]) -> int:
    """Run the script as the rank that the environment names; return an exit code."""
    given = _parser().parse_args(words)
    upstream = Upstream(
        given.megatron, given.megatron.name, given.engine, given.engine_version, given.helpers
    )
    packages = bootstrap.prepare(upstream, given.dtype)
    world, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    program = Program(
        upstream, given.script, tuple(given.arguments), world, dtype=given.dtype, same_weights=False
    )
    with tempfile.TemporaryDirectory(prefix="ringproof-rank-") as folder:
        finished = bootstrap.execute(program, rank, Path(folder), packages)
    if finished and dist.is_initialized():
        print_census()
    return 0 if finished else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--megatron", type=Path, required=True)
    parser.add_argument("--engine", type=Path, required=True)
    parser.add_argument("--engine-version", required=True)
    parser.add_argument("--helpers", type=Path)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
