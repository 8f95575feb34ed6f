"""The rehearsal of a launch: shrink it, run it, run it without context parallelism, compare."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ringproof.budget import Estimate, EstimatePart, Machine
from ringproof.errors import InputError, shown
from ringproof.files import make_folder, make_new_folder
from ringproof.launch.flags import Flags
from ringproof.launch.reading import Launch
from ringproof.launch.small.reference import reference, undivided
from ringproof.launch.small.shrink import SmallProgram, shrink
from ringproof.rehearsal.locate.locating import Run, locate
from ringproof.rehearsal.locate.result import WrongPlace
from ringproof.rehearsal.protocol.program import Program, Upstream, calling
from ringproof.rehearsal.runs.outcome import Outcome, UpstreamFails
from ringproof.rehearsal.runs.server import Servers
from ringproof.rehearsal.runs.upstreams import open_engine, open_upstream, without_unused
from ringproof.rehearsal.verdict.agreement import INCOMPARABLE, NO_STEPS, Agreement, compare
from ringproof.rehearsal.verdict.path import read_path
from ringproof.rehearsal.verdict.refusal import refusal_of
from ringproof.rehearsal.verdict.variant import Rehearsal, Variant
from ringproof.upstream.sources import RELEASE

Progress = Callable[[str, str], None]
OPTIONS_SECONDS = 120.0
SPECS = ("git:", "pip:", "fetched:")
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
        against: Another Megatron-LM, ``te=SPEC`` for another Transformer Engine, or
            ``FLAG=VALUE``; empty for nothing.
        skills: Folder of skills whose pitfalls are searched; ``None`` for none.
        timeout: Longest time of one program, in seconds.
        machine: What the ranks may use; ``None`` to start any number of them.
        locates: Whether the first wrong tensor is looked for where the run does not agree.
        keeps: Folder in which the traces of all runs are kept, also of those that agree; ``None``
            for no folder.
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
    locates: bool = False
    keeps: Path | None = None


def rehearse(request: Request, progress: Progress) -> Rehearsal:
    """Run a launch in small, and its variant where one is asked for.

    Args:
        progress: Called with a phase and a line of text now and then.

    Raises:
        InputError: The launch, an upstream or an option cannot be used.
    """
    started = time.monotonic()
    changed, option = changed_by_against(request)
    progress("open", "Megatron-LM and Transformer Engine")
    upstream = open_one(request, "--upstream")
    changed_upstream = open_other(upstream, request, changed)
    for one in (upstream, changed_upstream):
        find_script(request.launch, one)
    variables = request.launch.environment.items()
    imported = {name: at for name, at in variables if name.startswith(IMPORT_VARIABLES)}
    make_folder(request.folder, field="--out")
    if request.keeps is not None:
        make_new_folder(request.keeps, field="--keep-trace")
    with Servers(request.folder, environment=imported, import_seconds=request.timeout) as servers:
        runs = _Runs(request, servers, option, progress)
        name = "launch" if changed.megatron == request.megatron else request.megatron
        variants = [runs.variant(name, request.launch, upstream, "launch")]
        if request.against:
            name = f"{option} {request.against.partition('=')[2]}" if option else request.against
            variants.append(runs.variant(name, changed.launch, changed_upstream, "against"))
        opened = zip((upstream, changed_upstream), variants, strict=False)
        programs = [runs.program(at, one.small) for at, one in opened if one.small]
        return rehearsal_of(request, variants, started, runs.start, programs)


UNTRACED = WrongPlace(None, "a program of your own is not traced")


def rehearsal_of(
    request: Request, variants: Sequence[Variant], started: float, run: Run | None = None,
    programs: Sequence[Program] = (),
) -> Rehearsal:  # fmt: skip
    """Put one or two variants together, and compare them where both have losses.

    Args:
        variants: The launch, and what it is compared with.
        started: When the rehearsal began, by the monotonic clock.
        run: Runs a program with traces; ``None`` for those of people's own, of which there are
            none.
        programs: Those of the variants.
    """
    if request.locates and run is None:
        variants = [
            dataclasses.replace(one, located=UNTRACED) if one.agreement.agrees is False else one
            for one in variants
        ]
    main, against = variants[0], variants[1] if len(variants) > 1 else None
    between = None if against is None else _between(main, against)
    located, first = None, between and between.first
    if request.locates and run and first and not any(one.located for one in variants):
        made, expected = reversed(programs)
        located = locate(run, made, expected, first.moment, request.folder / "between")
    return Rehearsal(main, against, between, time.monotonic() - started, located)


def traced(
    request: Request, variant: Variant, run: Run, program: Callable[[SmallProgram], Program],
    folder: Path,
) -> Variant:  # fmt: skip
    """Trace a variant that does not agree with its reference, or of which traces are kept.

    Args:
        run: Runs a program in a folder.
        program: Makes it.
        folder: Folder of the variant.
    """
    first, keeps = variant.agreement.first, request.keeps
    looks = request.locates and first is not None
    assert variant.small and variant.reference and variant.reference_outcome
    if variant.reference_outcome.failure is not None or (keeps is None and not looks):
        return variant
    pair = program(variant.small), program(variant.reference)
    step = min(2, request.iterations) if first is None else first.moment
    kept = keeps and keeps / folder.name
    found = locate(run, *pair, step, folder / "trace", kept, before=variant.outcome)
    shows = looks or (request.locates and found.culprit is not None)
    return dataclasses.replace(variant, located=found if shows else None, traces=kept)


def stopped(
    request: Request, variant: Variant, run: Run, program: Callable[[SmallProgram], Program],
    folder: Path, expected: Callable[[], SmallProgram],
) -> Variant:  # fmt: skip
    """Trace a variant that computed attention and ended with an error, up to there; see `traced`.

    Args:
        expected: Makes its reference.
    """
    outcome, small = variant.outcome, variant.small
    computed = outcome and any(one.attention for one in outcome.ranks)
    if not (outcome and small and computed and request.locates):
        return variant
    if not variant.path.requested.parallel:
        return variant
    try:
        variant = dataclasses.replace(variant, reference=(reference := expected()))
    except InputError:
        return variant
    step = len(outcome.losses) + 1
    if step > request.iterations:
        step = -len(outcome.evaluations) - 1
    found = locate(run, program(small), program(reference), step, folder / "trace")
    shows = found.culprit is not None or found.compared
    return dataclasses.replace(variant, located=found if shows else None)


def _between(main: Variant, against: Variant) -> Agreement | None:
    if not (main.losses and against.losses):
        return None
    assert main.outcome is not None and against.outcome is not None
    return compare(main.outcome, against.outcome, main.dtype)


def open_one(request: Request, option: str) -> Upstream:
    """Open the upstream of a request, whose Megatron-LM an option names."""
    return open_upstream(
        request.megatron,
        request.engine,
        cache=request.cache,
        offline=request.offline,
        option=option,
    )  # fmt: skip


def open_other(upstream: Upstream, request: Request, changed: Request) -> Upstream:
    """Return the upstream of a request that ``--against`` has changed.

    Args:
        upstream: That of the request as it was.
    """
    if changed.engine == request.engine:
        same = changed.megatron == request.megatron
        return upstream if same else open_one(changed, "--against")
    try:
        root, version = open_engine(changed.engine, cache=request.cache, offline=request.offline)
    except InputError as error:
        raise InputError("--against", error.sentence) from error
    return dataclasses.replace(upstream, engine=root, engine_version=version)


def find_script(launch: Launch, upstream: Upstream, *, own: bool = True) -> str:
    """Return the launch's script as a path that `Program` takes.

    A script is looked for in the checkout first, by as much of its path as exists there, and then
    where the launch names it.

    Args:
        own: Whether it may be a script that is not upstream's.

    Raises:
        InputError: There is no such script.
    """
    parts = Path(launch.script).parts
    for start in range(len(parts)):
        candidate = Path(*parts[start:])
        if not candidate.is_absolute() and upstream.program(str(candidate)) is not None:
            return str(candidate)
    named = Path(launch.script)
    if own and named.is_file():
        return str(named.resolve())
    sentence = (
        f"{upstream.megatron_name} does not have the program {shown(launch.script)}; name a "
        "checkout that has it (for a wheel there is only pretrain_gpt.py, from 0.17 on)"
    )
    raise InputError("SCRIPT", sentence)


def option_names(outcome: Outcome, script: str) -> frozenset[str]:
    """Return the names of options that ``known_options`` found in a script's own parser.

    Raises:
        InputError: The script has none.
    """
    names = outcome.ranks[0].results if outcome.ranks else None
    if not names:
        said = "" if outcome.failure is None else f" ({outcome.failure.message})"
        sentence = f"{shown(script)} does not parse a command line of Megatron-LM{said}"
        raise InputError("SCRIPT", f"{sentence}; name a training script of Megatron-LM")
    return frozenset(names)


def changed_by_against(request: Request) -> tuple[Request, str]:
    """Return the request of the variant that ``--against`` names, itself where it names none.

    Returns:
        Also the option of upstream that is changed; empty where none is.

    Raises:
        InputError: It is none of what ``--against`` can name.
    """
    text = request.against
    if not text:
        return request, ""
    if text.startswith(SPECS) or RELEASE.fullmatch(text) or Path(text).is_dir():
        return dataclasses.replace(request, megatron=text), ""
    name, equals, value = text.partition("=")
    if _names_engine(text):
        return dataclasses.replace(request, engine=value), ""
    if equals and re.fullmatch(r"(--)?[A-Za-z][A-Za-z0-9_-]*", name):
        name = f"--{name.removeprefix('--')}"
        return dataclasses.replace(request, launch=with_option(request.launch, name, value)), name
    repository, at, _ = request.megatron.rpartition("@")
    if not equals and at and repository.startswith(("git:", "fetched:")):
        return dataclasses.replace(request, megatron=f"{repository}@{text}"), ""
    sentence = (
        f"{shown(text)} is neither a checkout nor FLAG=VALUE; give a folder, git:PATH@REF, "
        "te=SPEC, or an option such as cp-comm-type=a2a"
    )
    raise InputError("--against", sentence)


def changed_by_override(request: Request, reader: str) -> tuple[Request, tuple[str, ...]]:
    """Return the request of a framework's variant that ``--against`` names, and its arguments.

    Args:
        reader: What reads the launch's overrides.

    Raises:
        InputError: It is neither an override nor a Transformer Engine.
    """
    text, words = request.against, request.launch.arguments
    if _names_engine(text):
        return dataclasses.replace(request, engine=text.partition("=")[2]), words
    if text and ("=" not in text or text.startswith("-")):
        sentence = f"{shown(text)} is not an override; write KEY=VALUE as {reader} reads it"
        raise InputError("--against", f"{sentence}, or te=SPEC")
    return request, (*words, text) if text else words


def _names_engine(text: str) -> bool:
    return text.removeprefix("--").startswith("te=")


def with_option(launch: Launch, name: str, value: str) -> Launch:
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


class _Runs:
    """Runs of a request; two variants with the same reference share its run.

    Args:
        option: Option that ``--against`` changes; empty for none.
    """

    def __init__(self, request: Request, servers: Servers, option: str, progress: Progress) -> None:
        self._request, self._servers = request, servers
        self._option, self._progress = option, progress
        self._options: dict[Upstream, frozenset[str]] = {}
        self._done: dict[tuple[object, ...], Outcome] = {}

    def variant(self, name: str, launch: Launch, upstream: Upstream, folder: str) -> Variant:
        """Shrink a launch, run it, and run its reference where it starts."""
        request = self._request
        launch = dataclasses.replace(launch, script=find_script(launch, upstream))
        upstream = without_unused(upstream, launch.script, launch.arguments)
        variant = Variant(
            name=name,
            launch=launch,
            megatron=upstream.megatron_name,
            engine=upstream.engine_name,
            mended=upstream.lacks,
            dtype=request.dtype,
            path=read_path(launch.arguments, (), finished=False),
        )
        try:
            if upstream not in self._options:
                place = request.folder / folder / "options"
                self._options[upstream] = self._known_options(upstream, launch.script, place)
        except UpstreamFails as failed:
            refusal = refusal_of(failed.failure, (), request.skills)
            return dataclasses.replace(variant, refusal=refusal)
        small = shrink(
            launch,
            options=self._options[upstream],
            max_ranks=request.max_ranks,
            iterations=request.iterations,
            dtype=request.dtype,
        )
        if request.machine is not None:
            estimate(small.ranks, request.max_ranks).check(request.machine)
        outcome = self._run(upstream, small, name, request.folder / folder / "program")
        failure = outcome.failure
        path = read_path(small.arguments, outcome.ranks, finished=failure is None)
        variant = dataclasses.replace(variant, small=small, outcome=outcome, path=path)
        if failure is not None:
            feature = path.requested.feature
            refusal = refusal_of(failure, outcome.ranks, request.skills, feature)
            variant = dataclasses.replace(variant, refusal=refusal)
            own = functools.partial(reference, small, self._options[upstream])
            make = functools.partial(self.program, upstream)
            return stopped(request, variant, self.start, make, request.folder / folder, own)
        return self._compared(variant, outcome, small, upstream, request.folder / folder)

    def _compared(
        self, variant: Variant, outcome: Outcome, small: SmallProgram, upstream: Upstream,
        folder: Path,
    ) -> Variant:  # fmt: skip
        """Return a variant that ran to its end with the verdict against its reference."""
        if not outcome.losses:
            return dataclasses.replace(variant, agreement=Agreement(False, NO_STEPS))
        if not variant.path.requested.parallel:
            return dataclasses.replace(variant, agreement=Agreement(None, INCOMPARABLE))
        try:
            small = reference(small, self._options[upstream])
        except InputError as error:
            why = Agreement(False, f"No reference without context parallelism exists: {error}")
            return dataclasses.replace(variant, agreement=why)
        expected = self._run(upstream, small, "reference", folder / "reference")
        judge = functools.partial(compare, evaluated="--sft" not in small.arguments)
        variant = variant.compared(small, expected, judge)
        if expected.failure is None:
            make = functools.partial(self.program, upstream)
            return traced(self._request, variant, self.start, make, folder)
        smaller = undivided(small, self._options[upstream])
        if smaller.ranks == small.ranks:
            return variant
        # What ended the reference can depend on the other degrees, which it has from the launch.
        last = self._run(upstream, smaller, "reference without TP and PP", folder / "undivided")
        # Each rank of a TP group counts the tokens that its group trains on.
        count = Flags(small.arguments).integer("--tensor-model-parallel-size", 1)
        last = dataclasses.replace(last, ranks=last.ranks * count)
        return variant.compared(smaller, last, judge)

    def start(self, program: Program, folder: Path) -> Outcome:
        """Run a program with traces."""
        ends = self._request.timeout, self._progress
        return self._servers.announced("trace", program, program.script, folder, *ends)

    def program(self, upstream: Upstream, small: SmallProgram) -> Program:
        """Return a program on an upstream."""
        return Program(
            upstream, small.script, small.arguments, small.ranks, small.environment,
            self._request.dtype,
        )  # fmt: skip

    def _known_options(self, upstream: Upstream, script: str, folder: Path) -> frozenset[str]:
        """Return the option names that the training script's own parser knows.

        Raises:
            InputError: The script does not parse a command line of Megatron-LM, or its parser does
                not know the option of ``--against``.
        """
        engine = upstream.engine_version
        self._progress("import", f"{upstream.megatron_name} and Transformer Engine {engine}")
        function = "ringproof.rehearsal.rank.calling:known_options"
        program = calling(
            upstream, function, str(upstream.program(script) or script), dtype=self._request.dtype
        )
        outcome = self._servers.run(program, script, folder, limit_seconds=OPTIONS_SECONDS)
        names = option_names(outcome, script)
        if self._option and self._option not in names:
            near = difflib.get_close_matches(self._option, names, n=1, cutoff=0.75)
            meant = f"did you mean {near[0].removeprefix('--')}?" if near else "check its name"
            raise InputError("--against", f"upstream has no option {shown(self._option)}; {meant}")
        return names

    def _run(self, upstream: Upstream, small: SmallProgram, name: str, folder: Path) -> Outcome:
        """Run a program, or return what became of the same program before."""
        key = (upstream, small.arguments, small.ranks)
        if key not in self._done:
            given = (name, self.program(upstream, small), small.script, folder)
            ends = self._request.timeout, self._progress
            self._done[key] = self._servers.announced(*given, *ends)
        return self._done[key]


def estimate(ranks: int, value: object, option: str = "--max-ranks") -> Estimate:
    """Estimate what the ranks of a rehearsal need; with ``option`` the user can lower them."""
    held = EstimatePart(option, value, ranks * _HELD_BYTES)
    return Estimate(ranks, (held,), option, value)
