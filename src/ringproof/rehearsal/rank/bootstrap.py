"""One rank from start to end: prepare the interpreter, run the script, write the report."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import json
import os
import re
import runpy
import sys
import time
import traceback
import typing
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import typing_extensions

import ringproof
from ringproof.prove.listening import Listener
from ringproof.rehearsal.hollow import state_space as hollow_scans
from ringproof.rehearsal.protocol.board import Board
from ringproof.rehearsal.protocol.program import Program, Upstream
from ringproof.rehearsal.protocol.reports import (
    Failure,
    RankReport,
    SendRace,
)
from ringproof.rehearsal.rank import probe as probes
from ringproof.rehearsal.rank import weights
from ringproof.rehearsal.rank.memory import MemoryWatch
from ringproof.rehearsal.standins import (
    apex,
    communication,
    compiler,
    conversations,
    cuda,
    dataset_helpers,
    engine,
    extension,
    state_space,
)
from ringproof.rehearsal.standins.graphs import cuda_graph
from ringproof.rehearsal.standins.guard import StandInMissing
from ringproof.rehearsal.trace.recorder import FINALIZE, TraceRecorder

PRELOADED = "__ringproof_preload__"
MAX_DEVICES = 64
NOT_INSTALLED = re.compile(r"([\w.-]+) (?:is|are) not installed|pip3? install ([\w.\[\]-]+)")
NO_MEMORY = re.compile(r"can't allocate memory|not enough memory|Cannot allocate memory")


def prepare(
    upstream: Upstream, dtype: str, script: str = "", memory: MemoryWatch | None = None
) -> set[str]:
    """Put every stand-in in place and import what all ranks need; called once, before forks.

    Args:
        script: Script whose imports are made, too, without running it; empty for none.
        memory: Set to run at full size and watch the memory.

    Returns:
        Packages for which a stand-in computes, which gets their names when it does.
    """
    packages = set[str]()
    hidden = () if upstream.extra else upstream.hidden
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # `None` is for "absent"
    if not hasattr(typing, "override"):  # upstream imports it from where Python 3.12 has it
        vars(typing)["override"] = typing_extensions.override
    # Transformer Engine reads these when it is imported: no extension, no compiler.
    os.environ.setdefault("NVTE_PROJECT_BUILDING", "1")
    os.environ.setdefault("NVTE_TORCH_COMPILE", "0")
    # Devices first: modules of upstream ask for them, and take functions of torch, when imported.
    cuda.install(MAX_DEVICES)
    compiler.install()
    tapes = cuda_graph.install(MAX_DEVICES)
    wrap, fused = cuda_graph.one_operation_each(tapes), engine.COMPUTING
    if memory is not None:
        wrap, fused = memory.install()
        extension.install_apex(packages, wrap)
        apex.install(wrap)
        scans = state_space.COMPUTING if memory.computes else hollow_scans.SCANS
        state_space.install(packages, scans)
    else:
        extension.install_apex(packages)
        state_space.install(packages)
    engine.install(upstream.engine, upstream.engine_version, getattr(torch, dtype), wrap, fused)
    if memory is not None:
        memory.finish()
    sys.path[:0] = [str(upstream.megatron), *map(str, upstream.extra)]
    if upstream.helpers is not None:
        dataset_helpers.install(upstream.helpers)
    if script:
        runpy.run_path(str(upstream.program(script) or script), run_name=PRELOADED)
    return packages


def enter(program: Program, rank: int, port: int, folder: Path) -> None:
    """Set the variables that torchrun sets, and send output to the rank's log.

    Args:
        port: Port of the rendezvous on the loopback.
    """
    log = os.open(folder / f"rank-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(log, 1)
    os.dup2(log, 2)
    node = min(program.full_size.node if program.full_size else program.ranks, program.ranks)
    os.environ.update(
        program.environment,
        RANK=str(rank),
        LOCAL_RANK=str(rank % node),
        WORLD_SIZE=str(program.ranks),
        LOCAL_WORLD_SIZE=str(node),
        GROUP_RANK=str(rank // node),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        OMP_NUM_THREADS="1",
    )


def execute(
    program: Program, rank: int, folder: Path, packages: set[str], memory: MemoryWatch | None = None
) -> bool:
    """Run a script as one rank and write ``rank-N.json``; return whether it ran through.

    The variables that a launcher sets for a rank are set.

    Args:
        packages: What `prepare` returned.
        memory: What it was given.
    """
    packages.clear()
    torch.set_num_threads(1)
    started, devices = time.perf_counter(), int(os.environ["LOCAL_WORLD_SIZE"])
    # Upstream divides the ranks of a node by its devices.
    torch.cuda.device_count = lambda: devices
    probe, traffic = probes.RankProbe(), communication.Contributions()
    error, relative, listener = None, program.upstream.relative, Listener()
    recorder = _recorder(program, rank, folder, probe)
    try:
        if memory is None or memory.computes:
            communication.install(traffic, Board(folder / f"rank-{rank}.board"))
        else:
            memory.install_groups(traffic, rank, program, folder)
        probe.watch_attention()
        if memory is None:  # tokens take memory, and at full size they have no values
            probe.watch_models()
        probes.open_for(probe)
        sys.argv = [program.script, *program.arguments]
        _plant(program.faults)
        conversations.install(program.arguments)
        extension.leave_out_fused_kernels()
        _watch_training(probe, program, recorder)
        # Everything is in place before the script runs as its own program.
        for root in program.upstream.roots if program.listens else ():
            listener.listen(str(root))
        with _watched(program, memory, traffic):
            runpy.run_path(str(program.file), run_name="__main__")
    except BaseException as raised:  # a report is written whatever ended the script
        if not (isinstance(raised, SystemExit) and raised.code in (None, 0)):
            error = describe(raised, program.upstream, "raised", rank, program.file)
            traceback.print_exc()
    listener.close()
    report = RankReport(
        rank=rank,
        error=error,
        iterations=tuple(probe.iterations),
        evaluations=tuple(probe.evaluations),
        attention=tuple(probe.attention),
        traffic=traffic.totals(),
        races=_races(traffic, relative),
        graphs=tuple(torch.cuda.CUDAGraph.tapes.uses),
        seconds=time.perf_counter() - started,
        ran={root: listener.functions(root) for root in _imported(program)},
        results=probe.results,
        packages=tuple(sorted(packages)),
        memory=None if memory is None else memory.report(relative),
    )
    _write(report, folder, recorder)
    return error is None


def record(program: Program, rank: int, folder: Path) -> bool:
    """Run a script as one rank on GPUs and write its trace; return whether it ran through.

    The variables that a launcher sets for a rank are set. Nothing stands in for anything.
    """
    sys.path[:0] = [str(program.upstream.megatron)]
    sys.argv = [program.script, *program.arguments]
    runpy.run_path(str(program.file), run_name=PRELOADED)
    probe = probes.RankProbe()
    recorder, ended = _recorder(program, rank, folder, probe), False
    _watch_training(probe, program, recorder)
    try:
        runpy.run_path(str(program.file), run_name="__main__")
        ended = True
    except SystemExit as raised:
        ended = raised.code in (None, 0)
    finally:
        if recorder is not None:
            recorder.write(ended=ended)
    return ended


def _watched(
    program: Program, memory: MemoryWatch | None, traffic: communication.Contributions
) -> contextlib.AbstractContextManager[None]:
    if memory is None or program.full_size is None:
        return contextlib.nullcontext()
    return memory.watching(traffic, program.full_size)


def _races(
    traffic: communication.Contributions, relative: Callable[[str], str]
) -> tuple[SendRace, ...]:
    return tuple(
        SendRace(change, relative(sent), relative(waited), count)
        for (change, sent, waited), count in traffic.races.items()
    )


def _plant(faults: Iterable[str]) -> None:
    for fault in faults:
        module, _, name = fault.partition(":")
        getattr(importlib.import_module(module), name)()


def _recorder(
    program: Program, rank: int, folder: Path, probe: probes.RankProbe
) -> TraceRecorder | None:
    if program.trace is None:
        return None
    relative = program.upstream.relative
    return TraceRecorder(program.trace, folder, rank, lambda: probe.moment, relative)


def _write(report: RankReport, folder: Path, recorder: TraceRecorder | None) -> None:
    """Write a report whole, or not at all, after the trace."""
    if recorder is not None:
        # What ended the script can have left groups that a trace cannot be written with.
        with contextlib.suppress(*((Exception,) if report.error else ())):
            recorder.write(ended=report.error is None)
    draft = folder / f"rank-{report.rank}.part"
    draft.write_text(json.dumps(dataclasses.asdict(report)))
    draft.replace(folder / f"rank-{report.rank}.json")


def _imported(program: Program) -> list[str]:
    """Return the folders of upstream code from which a module was imported, if that is asked."""
    modules = (getattr(module, "__dict__", {}) for module in sys.modules.values())
    files = [str(names.get("__file__")) for names in modules]
    roots = map(str, program.upstream.roots if program.listens else ())
    return [root for root in roots if any(file.startswith(f"{root}/") for file in files)]


def _watch_training(
    probe: probes.RankProbe, program: Program, recorder: TraceRecorder | None = None
) -> None:
    """Watch the training loop that the script has imported: Megatron's or Bridge's."""
    training: Any = sys.modules.get("megatron.training.training")
    finish = probe.built = functools.partial(_finish, program, recorder)
    if recorder is not None and FINALIZE in sys.modules:
        recorder.watch_gradients()
    if training is not None:
        probe.watch_training(training, training)
        if program.same_weights:
            training.get_model = weights.wrap_get_model(training.get_model, finish)
            weights.wrap_builders(finish)
    loop = sys.modules.get("megatron.bridge.training.train")
    if loop is not None:
        probe.watch_training(loop, sys.modules["megatron.bridge.training.eval"])


def _finish(program: Program, recorder: TraceRecorder | None, model: torch.nn.Module) -> None:
    """Draw the weights of a model chunk again, and record the chunk where that is asked for."""
    if program.same_weights:
        weights.draw(model)
    if recorder is not None and program.trace is not None:
        if program.trace.disturbed:
            weights.disturb(model)
        recorder.watch(model)


def describe(
    raised: BaseException, upstream: Upstream, kind: str, rank: int, script: Path | None = None
) -> Failure:
    """Describe an exception by the innermost frame that is upstream's or the script's own."""
    place = ""
    message = str(raised)
    for frame, line in traceback.walk_tb(raised.__traceback__):
        path = Path(frame.f_code.co_filename)
        if any(path.is_relative_to(root) for root in upstream.roots):
            place = upstream.relative(f"{path}:{line}")
        elif path == script:
            place = f"{path.name}:{line}"
        if isinstance(raised, SystemExit) and (path.name, frame.f_code.co_name) == (
            "argparse.py", "error",
        ):  # fmt: skip
            message = str(frame.f_locals.get("message", message))  # printed before it exited
    text = "".join(traceback.format_exception(raised))
    symbol = raised.symbol if isinstance(raised, StandInMissing) else ""
    message = f"{type(raised).__name__}: {message}"
    raised_in = _raised_in(raised) if kind == "import" else ""
    if isinstance(raised, MemoryError) or NO_MEMORY.search(message):
        kind = "memory"
    return Failure(
        kind, rank, message, place, symbol, traceback=text, raised_in=raised_in,
        package=_absent_package(raised, upstream),
    )  # fmt: skip


def _absent_package(raised: BaseException, upstream: Upstream) -> str:
    """Name the package that an error misses on this machine; empty for an error of another kind.

    A module that upstream's own package should have is a defect of upstream.
    """
    name = raised.name if isinstance(raised, ImportError) else None
    if name is None:
        found = NOT_INSTALLED.search(str(raised))
        return next(filter(None, found.groups())) if found else ""
    top = name.partition(".")[0]
    return "" if any((root / top).exists() for root in upstream.roots) else top


def _raised_in(raised: BaseException) -> str:
    """Name torch or this package, and the line, if the innermost frame is theirs."""
    frames = [*traceback.walk_tb(raised.__traceback__)]
    if isinstance(raised, StandInMissing) or not frames:
        return ""
    path, line = Path(frames[-1][0].f_code.co_filename), frames[-1][1]
    owners = {
        Path(torch.__file__).parents[1]: f"torch {torch.__version__}",
        Path(ringproof.__file__).parents[1]: "the rehearsal's own code",
    }
    for folder, owner in owners.items():
        inside = path.is_relative_to(folder) and path.relative_to(folder).parts[0]
        if inside in ("torch", "ringproof"):
            return f"{owner} at {path.relative_to(folder)}:{line}"
    return ""
