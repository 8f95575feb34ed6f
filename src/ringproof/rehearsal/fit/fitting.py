"""Run a launch at full size, one rank for each kind of pipeline stage, and measure its memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ringproof.budget import Machine
from ringproof.errors import InputError, shown
from ringproof.files import make_folder
from ringproof.launch.flags import Flags
from ringproof.launch.full.size import FullProgram, full_size
from ringproof.launch.reading import Launch
from ringproof.rehearsal.fit.gpus import Gpu
from ringproof.rehearsal.fit.ranks import (
    check_crowded,
    check_room,
    of_the_stage,
    ranks_of_interest,
    unmeasured_stages,
)
from ringproof.rehearsal.fit.result import Fit, RankMemory
from ringproof.rehearsal.fit.shallow import depths, extended, with_layers
from ringproof.rehearsal.protocol.program import ROUTINGS, FullSize, Program, Upstream, calling
from ringproof.rehearsal.protocol.reports import MISSING, Failure, RankReport
from ringproof.rehearsal.rehearsing import (
    IMPORT_VARIABLES,
    OPTIONS_SECONDS,
    find_script,
    option_names,
)
from ringproof.rehearsal.runs.outcome import Outcome, UpstreamFails
from ringproof.rehearsal.runs.server import Servers
from ringproof.rehearsal.runs.upstreams import open_upstream, without_unused

Progress = Callable[[str, str], None]
CHECKED = "checked"
"""Phase of the progress that says that upstream's checks accept the launch."""
RANK_BYTES = 2 << 30
"""Memory of this machine that a rank is taken to need; 1.3 GB is the most that was seen."""
DTYPE = "float16"  # upstream's own choice of attention, see `engine.install`


@dataclass(frozen=True)
class FitRequest:
    """What is to be measured, and how.

    Attributes:
        megatron: Megatron-LM, as `open_upstream` takes it.
        engine: Transformer Engine, as `open_upstream` takes it; ``None`` for the newest release.
        gpu: What the launch shall fit on; ``None`` to measure only.
        vocabulary: Entries of the tokenizer's vocabulary; ``None`` where the launch says it.
        ranks: Ranks that are run; empty for one of each kind of pipeline stage.
        routing: One of `ROUTINGS`.
        whole_batch: Whether all DP and CP ranks of a stage run, so that each has the lengths of
            sequences that a batch gives it. What is returned is the one with the highest peak.
        timeout: Longest time of one rank, in seconds.
        limit: Longest time of everything, in seconds; ``None`` for no limit.
        own_script: Whether the launch may name a script that is not upstream's.
        checks: Whether upstream's parser and its checks judge the launch first, as it is. Nobody
            asks for the memory then.
        blackwell: Whether its GPUs are Blackwell, for these checks.
    """

    launch: Launch
    megatron: str
    engine: str | None
    folder: Path
    cache: Path
    gpu: Gpu | None = None
    vocabulary: int | None = None
    ranks: tuple[int, ...] = ()
    routing: str = ROUTINGS[0]
    whole_batch: bool = False
    timeout: float = 600.0
    limit: float | None = None
    offline: bool = False
    own_script: bool = True
    checks: bool = False
    blackwell: bool = False


class Refused(InputError):
    """Upstream refuses a launch, or it cannot be measured on this machine."""

    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        super().__init__("the launch", _why(failure))

    @property
    def by_upstream(self) -> bool:
        """Whether upstream's own exception refuses the launch."""
        failure = self.failure
        missing = failure.ours or MISSING.search(failure.message)
        return failure.kind == "raised" and not missing


def _highest(ranks: Sequence[RankMemory]) -> RankMemory:
    """Return the rank of a batch that has the highest peak, and say of how many it is one."""
    tokens = sorted(one.tokens for one in ranks)
    spread = f"of {len(ranks)} ranks with {tokens[0]} to {tokens[-1]} tokens at most"
    found = max(ranks, key=lambda one: one.peak)
    return replace(found, role=f"{found.role}; {spread}, the one with the highest peak")


def _why(failure: Failure) -> str:
    """Return why a launch was not measured; only upstream's own exceptions are its refusals."""
    where = f" (at {failure.place})" if failure.place else ""
    if failure.kind == "timeout":
        return f"it was {failure.message}; give a larger --timeout"
    if failure.kind == "memory":
        return "the memory of this machine ran out; measure it where more is free"
    if failure.symbol:
        return (
            f"cannot be said here: upstream calls {failure.symbol}, which cannot be followed "
            f"without a GPU{where}; leave the option out that asks for it"
        )
    if failure.package:
        return f"cannot be said here: upstream needs the package {failure.package}; install it"
    if failure.kind != "raised":
        who = f"rank {failure.rank}: " if failure.rank >= 0 else ""
        return f"cannot be said here: {who}{failure.message}{where}; see the logs of the rank"
    return f"upstream refuses it: {failure.message}{where}; change the launch"


def fit(request: FitRequest, progress: Progress) -> Fit:
    """Measure the memory of a launch.

    Args:
        progress: Called with a phase and a line of text now and then.

    Raises:
        InputError: The launch or an upstream cannot be used.
        Refused: Upstream refuses the launch.
    """
    with Fitting(request, progress) as fitting:
        if request.checks:
            fitting.check(request.launch)
        return fitting.fit(fitting.prepare(request.launch))


@dataclass(frozen=True)
class Prepared:
    """A launch that can be measured.

    Attributes:
        roles: Ranks that are run, each with its role for people.
    """

    launch: Launch
    program: FullProgram
    roles: Mapping[int, str]


class Fitting:
    """An upstream that is open, and measures one launch after the other; a context manager."""

    def __init__(self, request: FitRequest, progress: Progress) -> None:
        self._request, self._progress = request, progress
        progress("open", "Megatron-LM and Transformer Engine")
        self._upstream = open_upstream(
            request.megatron, request.engine, cache=request.cache, offline=request.offline
        )
        self._script = find_script(request.launch, self._upstream, own=request.own_script)
        words = request.launch.arguments
        self._upstream = without_unused(self._upstream, self._script, words)
        make_folder(request.folder, field="--out")
        variables = request.launch.environment.items()
        imported = {name: at for name, at in variables if name.startswith(IMPORT_VARIABLES)}
        self._ends = None if request.limit is None else time.monotonic() + request.limit
        self._servers = Servers(
            request.folder, environment=imported, import_seconds=self._left(request.timeout)
        )
        self._known: frozenset[str] | None = None
        self._runs = 0

    def __enter__(self) -> Fitting:
        self._servers.__enter__()
        return self

    def __exit__(self, *given: object) -> None:
        self._servers.__exit__(*given)  # type: ignore[arg-type]

    def prepare(self, launch: Launch, ranks: Sequence[int] = ()) -> Prepared:
        """Return what is to be run of a launch.

        Args:
            ranks: Ranks that are run, in place of those of the request.

        Raises:
            InputError: The launch cannot be read, or a rank cannot be run.
            Refused: Upstream cannot be imported.
        """
        request, launch = self._request, replace(launch, script=self._script)
        program = full_size(
            launch, options=self._options(), vocabulary=request.vocabulary, alike=request.checks
        )
        roles = self._roles(program, ranks or request.ranks)
        if request.routing != ROUTINGS[0]:
            check_crowded(roles, program.layout, Flags(program.arguments))
        return Prepared(launch, program, roles)

    def check(self, launch: Launch) -> None:
        """Let upstream's parser, argument checks and configuration classes judge a launch.

        Raises:
            Refused: They refuse it, or upstream cannot be imported.
        """
        request, function = self._request, "ringproof.rehearsal.rank.arguments:check"
        asked = {"arguments": launch.arguments, "world": launch.ranks,
                 "environment": dict(launch.environment),
                 "blackwell": request.blackwell}  # fmt: skip
        outcome = self._called(function, asked, "checks", request.timeout)
        if outcome.failure is not None:
            raise Refused(outcome.failure)
        self._progress(CHECKED, "upstream's parser and its checks accept the launch")

    def fit(self, prepared: Prepared) -> Fit:
        """Measure a launch; see the function `fit`."""
        return self._shown(self._measured(prepared), prepared)

    def _measured(self, prepared: Prepared) -> Fit:
        """Measure a launch, with all ranks that were run."""
        request, started = self._request, time.monotonic()
        launch, program, roles = prepared.launch, prepared.program, prepared.roles
        machine = Machine.here()
        several = max(1, min(int(machine.cores), machine.free // RANK_BYTES))
        several = 1 if request.whole_batch else several
        parts = ([*roles][at : at + several] for at in range(0, len(roles), several))
        measured = [one for ranks in parts for one in self._ranks(prepared, ranks)]
        upstream: Upstream = self._upstream
        missing = unmeasured_stages(roles, program.layout, Flags(program.arguments))
        return Fit(
            launch, program, upstream.megatron_name, upstream.engine_version, request.gpu,
            tuple(measured), time.monotonic() - started, upstream.lacks, missing, request.routing,
            request.whole_batch,
        )  # fmt: skip

    def extended(self, prepared: Prepared) -> Fit:
        """Return what follows for a launch from two with fewer layers, or measure it in full."""
        launch = prepared.launch
        shallow = depths(prepared.program.arguments, launch.ranks)
        if shallow is None:
            return self.fit(prepared)
        fewer = (self.prepare(with_layers(launch, count)) for count in shallow)
        low, high = (self._measured(replace(one, roles=prepared.roles)) for one in fewer)
        return self._shown(extended(launch, prepared.program, low, high), prepared)

    def _shown(self, fit: Fit, prepared: Prepared) -> Fit:
        """Return a measurement that has, of each stage of a whole batch, only the highest rank."""
        if not fit.whole_batch:
            return fit
        each = len(fit.ranks) // len(prepared.roles)
        stages = (fit.ranks[at : at + each] for at in range(0, len(fit.ranks), each))
        return replace(fit, ranks=tuple(map(_highest, stages)))

    def _roles(self, program: FullProgram, ranks: Sequence[int]) -> dict[int, str]:
        if not ranks:
            return ranks_of_interest(program.layout, Flags(program.arguments))
        for rank in ranks:
            if not 0 <= rank < program.ranks:
                sentence = f"there is no rank {rank}; give ranks from 0 to {program.ranks - 1}"
                raise InputError("--ranks", sentence)
            if rank % program.layout.tensor:
                first = rank - rank % program.layout.tensor
                sentence = (
                    f"rank {rank} gets its data from rank {first} of its tensor parallel group, "
                    f"which does not run beside it; give {first}, whose memory stands for both"
                )
                raise InputError("--ranks", sentence)
        return dict.fromkeys(ranks, "as asked for")

    def _ranks(self, prepared: Prepared, ranks: Sequence[int]) -> list[RankMemory]:
        """Measure some ranks at the same time."""
        self._runs += 1
        launch, program, roles = prepared.launch, prepared.program, prepared.roles
        node = min(launch.ranks_per_node, launch.ranks)
        whole, flags = self._request.whole_batch, Flags(program.arguments)
        run_ranks = of_the_stage(ranks[0], program.layout, flags) if whole else tuple(ranks)
        if whole:
            check_room(len(run_ranks), Machine.here().free)
        size = FullSize(
            run_ranks, node, whole, routing=self._request.routing, first=program.first_microbatches
        )
        run = Program(
            self._upstream, program.script, program.arguments, program.ranks, program.environment,
            DTYPE, same_weights=False, full_size=size,
        )  # fmt: skip
        folder = self._request.folder / f"run-{self._runs}"
        named = f"rank {', '.join(map(str, ranks))} of {program.ranks}"
        outcome = self._servers.run(
            run, program.script, folder, limit_seconds=self._left(self._request.timeout),
            progress=lambda line: self._progress(named, line),
        )  # fmt: skip
        if outcome.failure is not None:
            raise Refused(outcome.failure)
        role = roles[ranks[0]]
        return [
            self._trained(one, roles.get(one.rank, role), program.ranks, folder)
            for one in outcome.ranks
        ]

    @staticmethod
    def _trained(report: RankReport, role: str, ranks: int, folder: Path) -> RankMemory:
        """Return the memory of a rank that has trained."""
        rank = report.rank
        if report.memory is None or not report.memory.steps:
            log = shown(folder / f"rank-{rank}.log")
            raise InputError("the launch", f"rank {rank} of {ranks} trained no step; see {log}")
        trained = (call.tokens for call in report.attention if call.phase == "train")
        return RankMemory(rank, role, report.memory, report.seconds, max(trained, default=0))

    def _left(self, seconds: float) -> float:
        """Return the seconds that a run may take."""
        left = seconds if self._ends is None else self._ends - time.monotonic()
        return max(min(seconds, left), 0.0)

    def _called(self, function: str, argument: Any, name: str, seconds: float) -> Outcome:
        """Call ``module:function`` where upstream can be imported."""
        program = replace(calling(self._upstream, function, argument, dtype=DTYPE),
                          full_size=FullSize())  # fmt: skip
        try:
            return self._servers.run(
                program, self._script, self._request.folder / name,
                limit_seconds=self._left(seconds),
            )  # fmt: skip
        except UpstreamFails as failed:
            raise Refused(failed.failure) from failed

    def _options(self) -> frozenset[str]:
        """Return the option names that the script's own parser knows."""
        if self._known is None:
            upstream = self._upstream
            self._progress("import", f"{upstream.megatron_name} and Transformer Engine")
            function = "ringproof.rehearsal.rank.calling:known_options"
            script = str(upstream.program(self._script) or self._script)
            outcome = self._called(function, script, "options", OPTIONS_SECONDS)
            if outcome.failure is not None and outcome.failure.kind == "timeout":
                raise Refused(outcome.failure)
            self._known = option_names(outcome, self._script)
        return self._known
