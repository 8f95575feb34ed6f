"""One rank from start to end: prepare the interpreter, run the script, write the report."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import runpy
import sys
import time
import traceback
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import typing_extensions

from ringproof.rehearsal.program import (
    PACKAGES,
    GroupTraffic,
    Program,
    RankError,
    RankReport,
    SendRace,
    Upstream,
)
from ringproof.rehearsal.rank import handing, weights
from ringproof.rehearsal.rank.board import Board
from ringproof.rehearsal.rank.probe import Probe
from ringproof.rehearsal.standins import (
    communication,
    conversations,
    cuda,
    dataset_helpers,
    engine,
    extension,
    state_space,
)
from ringproof.rehearsal.standins.graphs import cuda_graph
from ringproof.rehearsal.standins.guard import StandInMissing

PRELOADED = "__ringproof_preload__"
MAX_DEVICES = 64


@dataclasses.dataclass(frozen=True)
class Seat:
    """One rank of a run, the loopback's port of the rendezvous, and the folder of its files."""

    rank: int
    port: int
    folder: Path


def prepare(upstream: Upstream, dtype: str) -> None:
    """Put every stand-in in place and import what all ranks need; called once, before forks."""
    if not hasattr(typing, "override"):  # upstream imports it from where Python 3.12 has it
        vars(typing)["override"] = typing_extensions.override
    # Transformer Engine reads these when it is imported: no extension, no compiler.
    os.environ.setdefault("NVTE_PROJECT_BUILDING", "1")
    os.environ.setdefault("NVTE_TORCH_COMPILE", "0")
    cuda.install(MAX_DEVICES)
    extension.install_apex()
    state_space.install()
    tapes = cuda_graph.install(MAX_DEVICES)
    wrap = cuda_graph.one_operation_each(tapes)
    engine.install(upstream.engine, upstream.engine_version, getattr(torch, dtype), wrap)
    sys.path[:0] = [str(upstream.megatron), *map(str, upstream.extra)]
    if upstream.helpers is not None:
        dataset_helpers.install(upstream.helpers)


def preload(upstream: Upstream, script: str) -> None:
    """Import what a script imports, without running it."""
    runpy.run_path(str(upstream.megatron / script), run_name=PRELOADED)


def run(program: Program, seat: Seat) -> bool:
    """Take a seat, run a script there as `execute` does; return whether it ran through."""
    _enter(program, seat)
    return execute(program, seat)


def execute(program: Program, seat: Seat) -> bool:
    """Run a script as one rank and write ``rank-N.json``; return whether it ran through.

    The variables that a launcher sets for a rank are set.
    """
    started = time.perf_counter()
    probe, traffic = Probe(), communication.Traffic()
    board = Board(seat.folder / f"rank-{seat.rank}.board")
    roots, error = program.upstream.roots, None
    results = handing.Results(step=probe.step, evaluation=probe.evaluations.append)
    try:
        communication.install(traffic, board)
        probe.watch_attention()
        handing.open_for(results)
        for fault in program.faults:
            module, _, name = fault.partition(":")
            getattr(importlib.import_module(module), name)()
        conversations.install(program.arguments)
        extension.leave_out_fused_kernels()
        _watch_training(probe, program)
        sys.argv = [program.script, *program.arguments]
        runpy.run_path(str(program.upstream.megatron / program.script), run_name="__main__")
    except BaseException as raised:  # a report is written whatever ended the script
        if not (isinstance(raised, SystemExit) and raised.code in (None, 0)):
            error = describe(raised, roots)
            traceback.print_exc()
    report = RankReport(
        rank=seat.rank,
        error=error,
        iterations=tuple(probe.iterations),
        evaluations=tuple(probe.evaluations),
        attention=tuple(probe.attention),
        traffic=_traffic(traffic),
        races=_races(traffic, roots),
        graphs=tuple(torch.cuda.CUDAGraph.tapes.uses),
        seconds=time.perf_counter() - started,
        imported=tuple(name for name in PACKAGES if name in sys.modules),
        results=results.value,
    )
    _write(seat.folder / f"rank-{seat.rank}.json", report)
    return error is None


def _enter(program: Program, seat: Seat) -> None:
    """Set the variables that torchrun sets, and send output to the rank's log."""
    log = os.open(seat.folder / f"rank-{seat.rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(program.environment)
    os.environ.update(
        RANK=str(seat.rank),
        LOCAL_RANK=str(seat.rank),
        WORLD_SIZE=str(program.ranks),
        LOCAL_WORLD_SIZE=str(program.ranks),
        GROUP_RANK="0",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(seat.port),
        OMP_NUM_THREADS="1",
    )
    torch.set_num_threads(1)
    torch.cuda.device_count = lambda: program.ranks


def _watch_training(probe: Probe, program: Program) -> None:
    """Watch the training loop that the script has imported: Megatron's or Bridge's."""
    training: Any = sys.modules.get("megatron.training.training")
    if training is not None:
        probe.watch_training(training, training)
        if program.same_weights:
            training.get_model = weights.wrap_get_model(training.get_model)
            weights.wrap_builders()
    loop = sys.modules.get("megatron.bridge.training.train")
    if loop is not None:
        probe.watch_training(loop, sys.modules["megatron.bridge.training.eval"])


def describe(raised: BaseException, roots: Sequence[Path]) -> RankError:
    """Describe an exception by the innermost frame that is upstream's."""
    place = ""
    for frame, line in traceback.walk_tb(raised.__traceback__):
        path = frame.f_code.co_filename
        if any(Path(path).is_relative_to(root) for root in roots):
            place = _relative(f"{path}:{line}", roots)
    text = "".join(traceback.format_exception(raised))
    symbol = raised.symbol if isinstance(raised, StandInMissing) else ""
    message = (isinstance(raised, SystemExit) and _parser_message(raised)) or str(raised)
    return RankError(type(raised).__name__, message, place, symbol, text)


def _parser_message(raised: SystemExit) -> str:
    """Return what argparse printed before it exited."""
    for frame, _ in traceback.walk_tb(raised.__traceback__):
        code = frame.f_code
        if code.co_name == "error" and Path(code.co_filename).name == "argparse.py":
            return str(frame.f_locals.get("message", ""))
    return ""


def _relative(place: str, roots: Sequence[Path]) -> str:
    """Return ``FILE:LINE`` relative to the upstream folder that holds the file."""
    root = next((root for root in roots if Path(place).is_relative_to(root)), None)
    return place if root is None else str(Path(place).relative_to(root))


def _traffic(traffic: communication.Traffic) -> tuple[GroupTraffic, ...]:
    return tuple(
        GroupTraffic(
            group.description, group.ranks, operation, calls, traffic.bytes[group, operation]
        )
        for (group, operation), calls in traffic.calls.items()
    )


def _races(traffic: communication.Traffic, roots: Sequence[Path]) -> tuple[SendRace, ...]:
    return tuple(
        SendRace(change, _relative(sent, roots), _relative(waited, roots), count)
        for (change, sent, waited), count in traffic.races.items()
    )


def _write(path: Path, report: RankReport) -> None:
    """Write a report whole, or not at all."""
    draft = path.with_suffix(".part")
    draft.write_text(json.dumps(dataclasses.asdict(report)))
    draft.replace(path)
