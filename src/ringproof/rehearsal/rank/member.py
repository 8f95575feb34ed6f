"""One rank that torchrun started: upstream's script with stand-ins, and a census of its groups.

Without the option ``--engine`` nothing stands in for GPUs, and the rank only writes a trace.

``python -m torch.distributed.run ... -m ringproof.rehearsal.rank.member OPTIONS SCRIPT ARGUMENTS``
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch.distributed as dist

from ringproof.reference.topology.census import print_census
from ringproof.rehearsal.protocol.program import Program, Upstream
from ringproof.rehearsal.protocol.trace import SMOKE
from ringproof.rehearsal.rank import bootstrap


def main(words: list[str]) -> int:
    """Run the script as the rank that the environment names; return an exit code."""
    given = _parser().parse_args(words)
    cpu, traced = given.engine is not None, given.trace is not None
    upstream = Upstream(
        given.megatron, given.megatron.name, given.engine or given.megatron, given.engine_version,
        given.helpers,
    )  # fmt: skip
    script = given.script if traced else ""  # the training loop is watched before the script runs
    packages = bootstrap.prepare(upstream, given.dtype, script) if cpu else set()
    world, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    request = replace(
        SMOKE, steps=given.traced_steps, disturbed=given.disturbed,
        name=f"{given.script} on {world} ranks",
    )  # fmt: skip
    program = Program(
        upstream, given.script, tuple(given.arguments), world, dtype=given.dtype,
        same_weights=traced, trace=request if traced else None,
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="ringproof-rank-") as name:
        folder = Path(name)
        try:
            if cpu:
                finished = bootstrap.execute(program, rank, folder, packages)
            else:
                finished = bootstrap.record(program, rank, folder)
        finally:  # a rank that raises has written what it recorded, too
            for path in sorted(folder.glob("trace*.*") if traced else ()):
                given.trace.mkdir(parents=True, exist_ok=True)
                shutil.move(path, given.trace / path.name)
    if cpu and finished and dist.is_initialized():
        print_census()
    return 0 if finished else 1


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--megatron", type=Path, required=True)
    parser.add_argument("--engine", type=Path)
    parser.add_argument("--engine-version", required=True)
    parser.add_argument("--helpers", type=Path)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--traced-steps", type=_numbers, default=SMOKE.steps)
    parser.add_argument("--disturbed", action="store_true")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
