"""The rehearsal of a launch: shrink it, run it, run it without context parallelism, compare."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import itertools
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ringproof.budget import Estimate, EstimatePart, Machine
from ringproof.errors import InputError, shown
from ringproof.launch.flags import Flags
from ringproof.launch.reading import Launch
from ringproof.launch.small.reference import reference
from ringproof.launch.small.shrink import SmallProgram, shrink
from ringproof.rehearsal.protocol.program import Program, Upstream, calling
from ringproof.rehearsal.protocol.reports import Failure
from ringproof.rehearsal.runs.outcome import Outcome, UpstreamFails
from ringproof.rehearsal.runs.server import Server
from ringproof.rehearsal.runs.upstreams import open_upstream
from ringproof.rehearsal.verdict.agreement import Agreement, compare
from ringproof.rehearsal.verdict.path import read_path
from ringproof.rehearsal.verdict.refusal import refusal_of
from ringproof.rehearsal.verdict.variant import Rehearsal, Variant

Progress = Callable[[str, str], None]
OPTIONS_SECONDS = 120.0
_HELD_BYTES = 120 << 20
"""Memory that a rank of a shrunk GPT takes, apart from what any rank takes: 8 and 16 ranks of a
launch peaked at 1.5 and 2.7 GB together."""
IMPORT_VARIABLES = "NVTE_"  # prefix of variables that Transformer Engine reads while imported


@dataclass(frozen=True)
class Request:
    """What is to be rehearsed, and how.

    Attributes:
        megatron: Megatron-LM, as `open_upstream` takes it.
        engine: Transformer Engine, as `open_upstream` takes it; ``None`` for the newest release.
        against: Another Megatron-LM, or ``FLAG=VALUE``; empty for nothing.
        skills: Folder of skills whose pitfalls are searched; ``None`` for none.
        timeout: Longest time of one program, in seconds.
        machine: What the ranks may use; ``None`` to start any number of them.
    """

    launch: Launch
    megatron: str
    engine: str | None
    against: str
    folder: Path
    cache: Path
    skills: Path | None
    iterations: int = 5
    dtype: str = "float32"
    max_ranks: int = 32
    timeout: float = 600.0
    offline: bool = False
    machine: Machine | None = None


@dataclass(frozen=True)
class _Attempt:
    """One variant before it runs."""

    name: str
    launch: Launch
    upstream: Upstream
    folder: Path


def rehearse(request: Request, progress: Progress) -> Rehearsal:
    """Run a launch in small, and its variant where one is asked for.

    Args:
        progress: Called with a phase and a line of text now and then.

    Raises:
        InputError: The launch, an upstream or an option cannot be used.
    """
    started = time.monotonic()
    other, option = _split_against(request)
    changed = None if option is None else _with_option(request.launch, *option)
    progress("open", "Megatron-LM and Transformer Engine")
    upstream = _opened(request, request.megatron, "--upstream")
    name = "launch" if other is None else request.megatron
    attempts = [_Attempt(name, request.launch, upstream, request.folder / "launch")]
    folder = request.folder / "against"
    if other is not None:
        found = _opened(request, other, "--against")
        attempts.append(_Attempt(request.against, request.launch, found, folder))
    if option is not None and changed is not None:
        attempts.append(_Attempt(" ".join(option), changed, upstream, folder))
    variants: list[Variant] = []
    for _, group in itertools.groupby(attempts, key=lambda attempt: attempt.upstream):
        variants += _variants(request, list(group), option, progress)
    main, against = variants[0], variants[1] if len(variants) > 1 else None
    between = None
    if against is not None and main.losses and against.losses:
        assert main.outcome is not None and against.outcome is not None
        between = compare(main.outcome, against.outcome, main.dtype)
    return Rehearsal(main, against, between, time.monotonic() - started)


def _opened(request: Request, megatron: str, option: str) -> Upstream:
    """Open an upstream that has the script of the launch."""
    found = open_upstream(
        megatron, request.engine, cache=request.cache, offline=request.offline, option=option
    )
    find_script(request.launch, found)
    return found


def find_script(launch: Launch, upstream: Upstream) -> str:
    """Return the launch's script as a path that `Program` takes.

    A script is looked for in the checkout first, by as much of its path as exists there, and then
    where the launch names it.

    Raises:
        InputError: There is no such script.
    """
    parts = Path(launch.script).parts
    for start in range(len(parts)):
        candidate = Path(*parts[start:])
        if not candidate.is_absolute() and (upstream.megatron / candidate).is_file():
            return str(candidate)
    own = Path(launch.script)
    if own.is_file():
        return str(own.resolve())
    sentence = (
        f"{upstream.megatron_name} does not have the program {shown(launch.script)}; name a "
        "checkout that has it (a wheel has no programs)"
    )
    raise InputError("SCRIPT", sentence)


def _split_against(request: Request) -> tuple[str | None, tuple[str, str] | None]:
    """Return the other Megatron-LM or the changed option that ``--against`` names.

    Raises:
        InputError: It is neither.
    """
    text = request.against
    if not text:
        return None, None
    if text.startswith(("git:", "pip:")) or Path(text).is_dir():
        return text, None
    name, equals, value = text.partition("=")
    if equals and re.fullmatch(r"(--)?[A-Za-z][A-Za-z0-9_-]*", name):
        return None, (f"--{name.removeprefix('--')}", value)
    repository, at, _ = request.megatron.rpartition("@")
    if not equals and at and repository.startswith("git:"):
        return f"{repository}@{text}", None
    sentence = (
        f"{shown(text)} is neither a checkout nor FLAG=VALUE; give a folder, git:PATH@REF, or an "
        "option such as cp-comm-type=a2a"
    )
    raise InputError("--against", sentence)


def _with_option(launch: Launch, name: str, value: str) -> Launch:
    """Return a launch with one option changed; an empty value removes the option."""
    flags = Flags(launch.arguments)
    if not value and not flags.has(name):
        sentence = f"the launch has no option {name} to be removed; name an option of the launch"
        raise InputError("--against", sentence)
    words = () if value.lower() == "true" else value.split()
    changed = flags.with_(name, *words) if value else flags.without(name)
    if changed == flags:
        sentence = f"the launch has {shown(f'{name}={value}')} already; name another value"
        raise InputError("--against", sentence)
    return dataclasses.replace(launch, arguments=changed.words)


def _variants(
    request: Request,
    attempts: Sequence[_Attempt],
    option: tuple[str, str] | None,
    progress: Progress,
) -> list[Variant]:
    """Run the attempts of one upstream on one server."""
    first, upstream = attempts[0], attempts[0].upstream
    script = find_script(first.launch, upstream)
    variables = first.launch.environment.items()
    progress("import", f"{upstream.megatron_name} and Transformer Engine {upstream.engine_version}")
    server = Server(
        upstream,
        script,
        environment={name: at for name, at in variables if name.startswith(IMPORT_VARIABLES)},
        dtype=request.dtype,
        log=made_folder(first.folder) / "server.log",
    )
    runs = _Runs(request, server, script, progress)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(server)
        except UpstreamFails as failed:
            return [runs.described(attempt, failed.failure) for attempt in attempts]
        runs.options = _known_options(server, upstream, script, first.folder / "options")
        if option is not None and option[0] not in runs.options:
            near = difflib.get_close_matches(option[0], runs.options, n=1, cutoff=0.75)
            meant = f"did you mean {near[0].removeprefix('--')}?" if near else "check its name"
            raise InputError("--against", f"upstream has no option {shown(option[0])}; {meant}")
        return [runs.variant(attempt) for attempt in attempts]


def _known_options(server: Server, upstream: Upstream, script: str, folder: Path) -> frozenset[str]:
    """Return the option names that the training script's own parser knows.

    Raises:
        InputError: The script does not parse a command line of Megatron-LM.
    """
    function = "ringproof.rehearsal.rank.calling:known_options"
    program = calling(upstream, function, str(upstream.megatron / script))
    outcome = server.run(program, folder, limit_seconds=OPTIONS_SECONDS)
    names = outcome.ranks[0].results if outcome.ranks else None
    if not names:
        said = "" if outcome.failure is None else f" ({outcome.failure.message})"
        sentence = (
            f"{shown(script)} does not parse a command line of Megatron-LM{said}; name a training "
            "script of Megatron-LM"
        )
        raise InputError("SCRIPT", sentence)
    return frozenset(names)


class _Runs:
    """Runs of one server, so that two variants with the same reference share its run."""

    def __init__(self, request: Request, server: Server, script: str, progress: Progress) -> None:
        self._request, self._server = request, server
        self._script, self._progress = script, progress
        self._done: dict[tuple[object, ...], Outcome] = {}
        self.options: frozenset[str] = frozenset()

    def described(
        self, attempt: _Attempt, failure: Failure | None, small: SmallProgram | None = None,
        outcome: Outcome | None = None,
    ) -> Variant:  # fmt: skip
        """Return a variant before it is compared with its reference."""
        launch, request = attempt.launch, self._request
        reports = () if outcome is None else outcome.ranks
        arguments = launch.arguments if small is None else small.arguments
        path = read_path(arguments, reports, finished=failure is None)
        refusal = None
        if failure is not None:
            feature = "" if small is None else path.requested.feature
            refusal = refusal_of(failure, reports, request.skills, feature)
        return Variant(
            name=attempt.name,
            source=launch.source,
            script=self._script,
            ranks=launch.ranks,
            megatron=attempt.upstream.megatron_name,
            engine=attempt.upstream.engine_version,
            dtype=request.dtype,
            path=path,
            agreement=Agreement(None, "It did not start, so no reference was run."),
            small=small,
            outcome=outcome,
            refusal=refusal,
            notes=launch.notes,
        )

    def variant(self, attempt: _Attempt) -> Variant:
        """Shrink a launch, run it, and run its reference where it starts."""
        request = self._request
        small = shrink(
            dataclasses.replace(attempt.launch, script=self._script),
            options=self.options,
            max_ranks=request.max_ranks,
            iterations=request.iterations,
            dtype=request.dtype,
        )
        if request.machine is not None:
            estimate(small.ranks, request.max_ranks).check(request.machine)
        outcome = self._run(attempt, small, attempt.name, "program")
        variant = self.described(attempt, outcome.failure, small, outcome)
        if outcome.failure is not None:
            return variant
        if not variant.path.requested.parallel:
            nothing = "It uses no context parallelism, so there is nothing to compare with."
            return dataclasses.replace(variant, agreement=Agreement(None, nothing))
        try:
            small = reference(small, self.options)
        except InputError as error:
            why = Agreement(False, f"No reference without context parallelism exists: {error}")
            return dataclasses.replace(variant, agreement=why)
        expected = self._run(attempt, small, "reference", "reference")
        if expected.failure is None:
            evaluated = "--sft" not in small.arguments
            agreement = compare(outcome, expected, variant.dtype, evaluated=evaluated)
        else:
            said = refusal_of(expected.failure, expected.ranks).message
            agreement = Agreement(False, f"The reference without CP did not run: {said}")
        return dataclasses.replace(
            variant, reference=small, reference_outcome=expected, agreement=agreement
        )

    def _run(self, attempt: _Attempt, small: SmallProgram, name: str, folder: str) -> Outcome:
        """Run a program, or return what became of the same program before."""
        key = (small.arguments, small.ranks, tuple(sorted(small.environment.items())))
        if key not in self._done:
            phase = f"{name}, {small.ranks} ranks"
            self._progress(phase, "starts")
            program = Program(
                attempt.upstream, self._script, small.arguments, small.ranks, small.environment,
                self._request.dtype,
            )  # fmt: skip
            self._done[key] = self._server.run(
                program,
                made_folder(attempt.folder / folder),
                limit_seconds=self._request.timeout,
                progress=lambda line: self._progress(phase, line),
            )
        return self._done[key]


def estimate(ranks: int, value: object, option: str = "--max-ranks") -> Estimate:
    """Estimate what the ranks of a rehearsal need; with ``option`` the user can lower them."""
    held = EstimatePart(option, value, ranks * _HELD_BYTES)
    return Estimate(ranks, (held,), option, value)


def made_folder(folder: Path) -> Path:
    """Return a folder, made where it is missing.

    Raises:
        InputError: The folder cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        why = error.strerror or error
        sentence = f"{shown(folder)} cannot be written ({why}); name a writable folder"
        raise InputError("--out", sentence) from error
    return folder
