"""Runs the conformance matrix on one upstream: a server per program, a reference per training."""

from __future__ import annotations

import functools
import importlib.metadata
import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from ringproof import __version__
from ringproof.launch.small.reference import reference as without_cp
from ringproof.launch.small.shrink import SmallProgram
from ringproof.rehearsal.conform.cases import BASE, DATA, GPT, HYBRID, MODELS, Case
from ringproof.rehearsal.conform.record import CaseResult, ConformanceRecord, Status
from ringproof.rehearsal.locate import saying
from ringproof.rehearsal.locate.locating import locate
from ringproof.rehearsal.locate.result import WrongPlace
from ringproof.rehearsal.protocol.program import Program, Upstream
from ringproof.rehearsal.protocol.reports import Failure
from ringproof.rehearsal.runs.outcome import Outcome, UpstreamFails
from ringproof.rehearsal.runs.server import Servers
from ringproof.rehearsal.runs.upstreams import without_unused
from ringproof.rehearsal.standins import conversations
from ringproof.rehearsal.verdict.agreement import TOLERANCES, compare

OLD_HYBRID = "pretrain_mamba.py"
LIBRARY = str(Path(__file__).parents[1] / "library" / "train.py")
CONVERSATIONS = f"{conversations.__name__}:install_readers"
LIMIT_SECONDS = 240.0
NO_OPTION = ("unrecognized arguments", "invalid choice", "expected one argument")
ARGUMENT_ERROR = re.compile(r"^\S+\.py: error: (.+)$", re.MULTILINE)
NO_PACKAGE = ("ModuleNotFoundError", "ImportError", "AttributeError: module 'torch")
IMPORT_FAILS = "upstream cannot be imported"
MESSAGE_LENGTH = 300
SPECS = MappingProxyType({
    HYBRID: "--spec megatron.core.models.hybrid.hybrid_layer_specs hybrid_stack_spec",
    OLD_HYBRID: "--spec megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec",
})  # fmt: skip
CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"

Runner = Callable[[Program, str, Path], Outcome]
Progress = Callable[[ConformanceRecord, str], None]
"""Gets the record so far, without cases at first, and a line on the last case."""


def script_of(upstream: Upstream, name: str) -> str | None:
    """Return the program of a version; ``None`` where it has none that does the same.

    A package without training programs is driven by our own script through its library.
    """
    if upstream.program(name) is not None:
        return name
    if name == HYBRID and upstream.program(OLD_HYBRID) is not None:
        return OLD_HYBRID
    return LIBRARY if name == GPT else None


def training(
    upstream: Upstream, case: Case, script: str, iterations: int, folder: Path,
    *, dtype: str = "float32", faults: tuple[str, ...] = (), reference: bool = False,
) -> Program:  # fmt: skip
    """Return the program of a case, or of the reference on one rank it is compared with."""
    data = DATA[case.data]
    own = data.reference if reference else case.arguments
    wider = f"--dtype {dtype}" if dtype != "float32" else ""
    text = " ".join((
        BASE, MODELS[case.model], data.arguments, case.both, own,
        f"--train-iters {iterations}", SPECS.get(script, ""), wider,
    ))  # fmt: skip
    read = data.conversations and script != LIBRARY  # our own script reads them itself
    return Program(
        upstream,
        script,
        tuple(word.replace("{folder}", str(folder)) for word in text.split()),
        1 if reference else case.ranks,
        environment={CONNECTIONS: str(1 if reference else case.connections)},
        dtype=dtype,
        faults=((CONVERSATIONS,) if read else ()) + faults,
    )


class Matrix:
    """Cases of one upstream, with references kept between them.

    Args:
        run: Runs a program, given the script whose imports are shared.
        dtype: ``float32``; ``float64`` only for packages without programs, which our own script
            trains.
        locates: Whether the first wrong tensor of a case that differs is looked for.
    """

    def __init__(
        self, upstream: Upstream, folder: Path, run: Runner, iterations: int, *,
        dtype: str = "float32", locates: bool = False,
    ) -> None:  # fmt: skip
        self._locates = locates
        self._upstream, self._folder, self._run = upstream, folder, run
        self._iterations, self._dtype = iterations, dtype
        self._references: dict[tuple[str, ...], Outcome] = {}
        folder.mkdir(parents=True, exist_ok=True)
        conversations.write(folder / "conversations.jsonl")

    def run(self, case: Case, faults: tuple[str, ...] = ()) -> CaseResult:
        """Run a case, and its reference if that has not run yet."""
        script = script_of(self._upstream, case.script)
        if script is None:
            return CaseResult(case.id, Status.NOT_OFFERED, f"there is no {case.script}")
        upstream = without_unused(self._upstream, script)
        make = functools.partial(
            training, upstream, case, script, self._iterations, self._folder,
            dtype=self._dtype,
        )  # fmt: skip
        try:
            outcome = self._started(make(faults=faults), case.id)
            reference = None
            if outcome.failure is None:
                reference = self._reference(make(reference=True), f"{case.model}-{case.data}")
        except UpstreamFails as error:
            failure = error.failure
            status = Status.CANNOT_RUN if failure.ours or failure.raised_in else Status.REFUSED
            fault = f" (raised in {failure.raised_in})" if failure.raised_in else ""
            message = f"{IMPORT_FAILS}{fault}: {failure.message}"
            return CaseResult(case.id, status, message, failure.place, failure.symbol)
        result = judge(case, outcome, reference, self._iterations)
        if not self._locates or result.status is not Status.DIFFERS or reference is None:
            return result
        first = compare(outcome, reference, case.dtype, evaluated=case.evaluates).first
        if first is None:
            return result
        return with_place(result, self._located(make(faults=faults), case.id, first.moment))

    def _located(self, program: Program, name: str, step: int) -> WrongPlace:
        """Find the first wrong tensor of a case, against the same layout of ranks without CP."""
        if program.script == LIBRARY:
            return WrongPlace(None, "a package without training programs is not traced")
        small = SmallProgram(
            program.script, program.arguments, program.environment, program.ranks, (), self._dtype
        )
        expected = without_cp(small, {word for word in small.arguments if word.startswith("--")})
        other = replace(
            program,
            arguments=expected.arguments,
            ranks=expected.ranks,
            faults=tuple(fault for fault in program.faults if fault == CONVERSATIONS),
        )

        def run(one: Program, folder: Path) -> Outcome:
            return self._run(one, one.script, folder)

        return locate(run, program, other, step, self._folder / f"{name}-trace")

    def _reference(self, program: Program, name: str) -> Outcome:
        key = (program.script, *program.arguments)
        if key not in self._references:
            name = f"reference-{len(self._references)}-{name}"
            self._references[key] = self._started(program, name)
        return self._references[key]

    def _started(self, program: Program, name: str) -> Outcome:
        preload = "" if program.script == LIBRARY else program.script
        return self._run(program, preload, self._folder / name)


def with_place(result: CaseResult, place: WrongPlace) -> CaseResult:
    """Return a result with what was located."""
    said = filter(None, [saying.sentence(place), saying.places(place)])
    return replace(result, located="; ".join(said), culprit=place.culprit)


def run_matrix(
    upstream: Upstream, cases: Sequence[Case], folder: Path, *, iterations: int, name: str = "",
    locates: bool = False, progress: Progress | None = None,
) -> ConformanceRecord:  # fmt: skip
    """Run cases one after the other; one that hangs or fails does not stop the others."""
    with Servers(folder) as servers:
        run = functools.partial(servers.run, limit_seconds=LIMIT_SECONDS)
        matrix = Matrix(upstream, folder, run, iterations, locates=locates)
        return recorded(
            upstream, cases, matrix.run, origin=upstream.megatron_name, iterations=iterations,
            name=name, progress=progress,
        )  # fmt: skip


def recorded(
    upstream: Upstream,
    cases: Sequence[Case],
    run: Callable[[Case], CaseResult],
    *,
    origin: str,
    iterations: int,
    name: str,
    progress: Progress | None,
) -> ConformanceRecord:
    """Run cases with a function, and return their results and seconds.

    Args:
        origin: Versions of what is run.
        name: Short name of it; empty for the versions.
    """
    started = time.monotonic()
    tell = progress or (lambda *_: None)
    record = ConformanceRecord(
        name=name or origin,
        megatron=origin,
        engine=upstream.engine_version,
        torch=importlib.metadata.version("torch"),
        ringproof=__version__,
        dtype="float32",
        iterations=iterations,
        seconds=0.0,
        cases=(),
    )
    tell(record, "")
    for number, case in enumerate(cases, 1):
        begun = time.monotonic()
        result = run(case)
        now = time.monotonic()
        result = replace(result, seconds=round(now - begun, 1))
        record = replace(
            record, seconds=round(now - started, 1), cases=(*record.cases, result)
        )  # fmt: skip
        tell(record, _line(number, len(cases), result))
    return record


def _line(number: int, total: int, result: CaseResult) -> str:
    difference = result.largest_difference
    detail = "" if difference is None else f" {difference:.1e}"
    message = f": {result.message[:110]}" if result.message else ""
    return (
        f"[{number:2}/{total}] {result.id:28} {result.seconds:5.1f} s  "
        f"{result.status.value}{detail}{message}"
    )


def judge(case: Case, outcome: Outcome, reference: Outcome | None, iterations: int) -> CaseResult:
    """Return the verdict on a case.

    Args:
        reference: Result of the same training on one rank; ``None`` if it did not run.
    """
    base = CaseResult(
        case.id, Status.STARTS, tolerance=TOLERANCES[case.dtype].loss, path=paths_of(outcome),
        iterations=len(outcome.losses), seconds=round(outcome.seconds, 1),
    )  # fmt: skip
    if outcome.failure is not None:
        return _failed(base, outcome, outcome.failure)
    if len(outcome.losses) < iterations:
        message = f"{len(outcome.losses)} of {iterations} steps have losses"
        return replace(base, status=Status.DIFFERS, message=message)
    if reference is None:
        return replace(base, message="no reference")
    if reference.failure is not None:
        return replace(base, message=f"the reference fails: {_short(reference.failure.message)}")
    return _compared(base, case, outcome, reference)


def paths_of(outcome: Outcome) -> tuple[str, ...]:
    """Return the attention paths of a run as ``TYPE:SIZE``, without the local ones."""
    found = {
        f"{call.comm_type}:{'x'.join(map(str, call.sizes))}"
        for report in outcome.ranks
        for call in report.attention
        if call.comm_type != "none"
    }
    return tuple(sorted(found))


def _failed(base: CaseResult, outcome: Outcome, failure: Failure) -> CaseResult:
    message, status = failure.message, Status.REFUSED
    if message.startswith("SystemExit"):
        log = (outcome.folder / f"rank-{failure.rank}.log").read_text(errors="replace")
        found = ARGUMENT_ERROR.findall(log)
        message = found[-1].strip() if found else message
    if any(sign in message for sign in NO_OPTION):
        status = Status.NOT_OFFERED
    elif failure.ours or message.startswith(NO_PACKAGE):
        status = Status.CANNOT_RUN
    elif failure.kind in ("hung", "timeout"):
        status = Status.HUNG
    return replace(
        base, status=status, message=_short(message), place=failure.place, symbol=failure.symbol,
        rank=failure.rank,
    )  # fmt: skip


def _short(message: str) -> str:
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return " ".join(lines)[:MESSAGE_LENGTH]


def _compared(base: CaseResult, case: Case, outcome: Outcome, reference: Outcome) -> CaseResult:
    agreement = compare(outcome, reference, case.dtype, evaluated=case.evaluates)
    largest: dict[str, float] = {}
    for item in agreement.differences:
        largest[item.kind] = max(largest.get(item.kind, 0.0), item.relative)
    if case.evaluates and "evaluation" not in largest:
        largest["evaluation"] = math.inf
    result = replace(
        base,
        loss_difference=largest.get("loss"),
        norm_difference=largest.get("norm"),
        evaluation_difference=largest.get("evaluation"),
    )
    # A step for which only one of the runs has numbers is a difference, too.
    losses = outcome.losses.keys() ^ reference.losses.keys()
    parted = min(losses | (outcome.grad_norms.keys() ^ reference.grad_norms.keys()), default=0)
    if parted or agreement.first is not None or math.inf in largest.values():
        first = 0 if agreement.first is None else agreement.first.iteration
        return replace(result, status=Status.DIFFERS, since=first or parted)
    if agreement.other_tokens:
        return replace(result, status=Status.DIFFERS, message=agreement.reason)
    missing = [path for path in case.path if path not in base.path]
    if missing:
        seen = ", ".join(base.path) or "no communication"
        message = f"{' and '.join(missing)} did not run; seen: {seen}"
        return replace(result, status=Status.OTHER_PATH, message=message)
    if outcome.races:
        message = "; ".join(map(str, outcome.races))
        return replace(result, status=Status.RACES, message=message)
    return replace(result, status=Status.AGREES)
