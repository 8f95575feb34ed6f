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
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import typing_extensions

from ringproof.rehearsal.program import (
    GroupTraffic,
    RankError,
    RankReport,
    SendRace,
    Upstream,
)
from ringproof.rehearsal.rank import handing, weights
from ringproof.rehearsal.rank.board import Board
from ringproof.rehearsal.rank.probe import Probe
from ringproof.rehearsal.standins import (
    apex,
    communication,
    cuda,
    dataset_helpers,
    engine,
    state_space,
)
from ringproof.rehearsal.standins.graphs import cuda_graph
from ringproof.rehearsal.standins.guard import StandInMissing

PRELOADED = "__ringproof_preload__"
MAX_DEVICES = 64


@dataclasses.dataclass(frozen=True)
class Seat:
    """One rank's place in a run.

    Attributes:
        rank: Which.
        world: Number of ranks.
        port: Port of the rendezvous on the loopback.
        folder: Where its board, its log and its report go.
    """

    rank: int
    world: int
    port: int
    folder: Path


def prepare(upstream: Upstream, dtype: str) -> None:
    """Put every stand-in in place and import what all ranks need; called once, before forks."""
    if not hasattr(typing, "override"):  # upstream imports it from where Python 3.12 has it
        vars(typing)["override"] = typing_extensions.override
    # Transformer Engine reads these when it is imported: no extension, no compiler.
    os.environ.setdefault("NVTE_PROJECT_BUILDING", "1")
    os.environ.setdefault("NVTE_TORCH_COMPILE", "0")
    cuda.install(cuda.Gpu(), MAX_DEVICES)
    apex.install()
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


def run(upstream: Upstream, program: Mapping[str, Any], seat: Seat) -> bool:
    """Run a script as one rank and write ``rank-N.json``; return whether it ran through.

    Args:
        upstream: What was prepared.
        program: ``script``, ``arguments``, ``environment``, ``faults`` and ``same_weights`` of a
            `Program`.
        seat: Which rank.
    """
    started = time.perf_counter()
    _enter(program, seat)
    probe, traffic = Probe(), communication.Traffic()
    board = Board(seat.folder / f"rank-{seat.rank}.board")
    error = None
    results = handing.Results(step=probe.step, evaluation=probe.evaluations.append)
    try:
        communication.install(traffic, board)
        probe.watch_attention()
        handing.open_for(results)
        for fault in program["faults"]:
            module, _, name = fault.partition(":")
            getattr(importlib.import_module(module), name)()
        _watch_training(probe, program)
        script = str(upstream.megatron / program["script"])
        sys.argv = [program["script"], *program["arguments"]]
        runpy.run_path(script, run_name="__main__")
    except BaseException as raised:  # a report is written whatever ended the script
        if not (isinstance(raised, SystemExit) and raised.code in (None, 0)):
            error = describe(raised, upstream.roots)
            traceback.print_exc()
    report = RankReport(
        rank=seat.rank,
        error=error,
        iterations=tuple(probe.iterations),
        evaluations=tuple(probe.evaluations),
        attention=tuple(probe.attention),
        traffic=_traffic(traffic),
        races=_races(traffic, upstream.roots),
        graphs=tuple(torch.cuda.CUDAGraph.tapes.uses),
        seconds=time.perf_counter() - started,
        results=results.value,
    )
    _write(seat.folder / f"rank-{seat.rank}.json", report)
    return error is None


def _enter(program: Mapping[str, Any], seat: Seat) -> None:
    """Take a seat: variables as torchrun sets them, output into the rank's log."""
    log = os.open(seat.folder / f"rank-{seat.rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(program["environment"])
    os.environ.update(
        RANK=str(seat.rank),
        LOCAL_RANK=str(seat.rank),
        WORLD_SIZE=str(seat.world),
        LOCAL_WORLD_SIZE=str(seat.world),
        GROUP_RANK="0",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(seat.port),
        OMP_NUM_THREADS="1",
    )
    torch.set_num_threads(1)
    torch.cuda.device_count = lambda: seat.world


def _watch_training(probe: Probe, program: Mapping[str, Any]) -> None:
    """Watch the training loop that the script has imported: Megatron's or Bridge's."""
    training: Any = sys.modules.get("megatron.training.training")
    if training is not None:
        probe.watch_training(training, training)
        if program["same_weights"]:
            training.get_model = weights.wrap_get_model(training.get_model)
            weights.wrap_builders()
    loop = sys.modules.get("megatron.bridge.training.train")
    if loop is not None:
        probe.watch_training(loop, sys.modules["megatron.bridge.training.eval"])


def describe(raised: BaseException, roots: Sequence[Path]) -> RankError:
    """Describe an exception by the innermost frame that is upstream's."""
    place = ""
    for root, path, line in _frames(raised.__traceback__, roots):
        place = f"{path.relative_to(root)}:{line}"
    text = "".join(traceback.format_exception(raised))
    symbol = raised.symbol if isinstance(raised, StandInMissing) else ""
    message = _parser_message(raised) or str(raised)
    return RankError(type(raised).__name__, message, place, symbol, text)


def _parser_message(raised: BaseException) -> str:
    """What argparse printed before it exited; empty for other exceptions."""
    trace = raised.__traceback__ if isinstance(raised, SystemExit) else None
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_name == "error" and Path(code.co_filename).name == "argparse.py":
            return str(trace.tb_frame.f_locals.get("message", ""))
        trace = trace.tb_next
    return ""


def _frames(
    trace: TracebackType | None, roots: Sequence[Path]
) -> typing.Iterator[tuple[Path, Path, int]]:
    while trace is not None:
        path = Path(trace.tb_frame.f_code.co_filename)
        for root in roots:
            if path.is_relative_to(root):
                yield root, path, trace.tb_lineno
        trace = trace.tb_next


def _traffic(traffic: communication.Traffic) -> tuple[GroupTraffic, ...]:
    return tuple(
        GroupTraffic(
            group.description, group.ranks, operation, calls, traffic.bytes[group, operation]
        )
        for (group, operation), calls in traffic.calls.items()
    )


def _races(traffic: communication.Traffic, roots: Sequence[Path]) -> tuple[SendRace, ...]:
    def shorter(place: str) -> str:
        path = Path(place)
        root = next((root for root in roots if path.is_relative_to(root)), None)
        return place if root is None else str(path.relative_to(root))

    return tuple(
        SendRace(change, shorter(sent), shorter(waited), count)
        for (change, sent, waited), count in traffic.races.items()
    )


def _write(path: Path, report: RankReport) -> None:
    """Write a report whole, or not at all."""
    draft = path.with_suffix(".part")
    draft.write_text(json.dumps(dataclasses.asdict(report)))
    draft.replace(path)
