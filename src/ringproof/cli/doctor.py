"""``ringproof doctor``: is this configuration right for that upstream?"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import typer

from ringproof.budget import Machine
from ringproof.cards.card import CardLines
from ringproof.cli.console import HarmlessConsole
from ringproof.cli.options import (
    SourceOptions,
    command_of,
    folder_option,
    json_option,
    knowing_skills,
)
from ringproof.cli.output import echo_text, write_json
from ringproof.cli.rehearse import (
    VERL_PACKAGES,
    assignment,
    brief,
    rank_progress,
    require_packages,
    set_option,
)
from ringproof.doctor import checked, composed, rehearsed, validated
from ringproof.doctor.examine import Examination, examine
from ringproof.doctor.lines import (
    RELEASES,
    VERSIONS,
    Stack,
    known_stacks,
    load_cards,
    release_of,
    stack_named,
    stack_of,
    upstream_of,
    with_stored_options,
)
from ringproof.doctor.reading import read_settings
from ringproof.doctor.repair import (
    launchable,
    repaired,
    with_checked_remedies,
    written_again,
)
from ringproof.doctor.report import data, lines, table
from ringproof.doctor.settings import Settings
from ringproof.errors import InputError
from ringproof.launch.reading import Launch
from ringproof.options import option
from ringproof.stack.pairs import PAIRS, core_of
from ringproof.stack.products import BRIDGE, ENGINE, MEGATRON, Product, find_products
from ringproof.upstream.sources import open_tree

EXAMPLE = "Example: ringproof doctor train.sh --upstream ../Megatron-LM --set NNODES=8"

REHEARSED_STEPS = 2
NOT_CACHED = "the cache has no release of this line, or torch is missing; name one with --line"
VERL = "verl"
NEWEST_VERL = "pip:verl==0.9.1"
FRAMEWORKS = ("bridge", VERL)
FRAMEWORK_SECONDS = 30.0
"""Longest time of their checks where nothing asks for them; what they import takes long."""
EXTRAS = "rehearsal,bridge"
NO_CORE = "no code of Megatron-LM is known for this line; name it with --upstream"
NO_BRIDGE = "no release of Megatron-Bridge is known for this line; name one with --upstream"


@dataclass(frozen=True, kw_only=True)
class DoctorCommand(SourceOptions):
    """The options of ``ringproof doctor``."""

    words: tuple[str, ...] = option(
        (),
        "Launch script, YAML file, Bridge recipe, log that starts with the arguments, "
        "overrides such as model.context_parallel_size=4, or a launch command.",
        metavar="CONFIG | -- COMMAND...",
        argument=True,
    )
    upstream: tuple[str, ...] = option(
        (),
        "The upstream that will run: a checkout, a wheel, git:PATH@REF or "
        "pip:PACKAGE==VERSION. Give the option once for each package.",
        metavar="SPEC",
    )
    line: str = option(
        "",
        "The version that will run, by its series or branch, such as r0.19 or dev.",
        metavar="NAME",
    )
    to: str = option("", "Translate to another line: --line NAME --fix.", metavar="NAME")
    verl: str = option(
        "",
        "The verl that will run: a folder, git:PATH@REF or pip:verl==VERSION.  "
        f"[default: {NEWEST_VERL}]",
        metavar="SPEC",
    )
    sets: tuple[str, ...] = set_option()
    ranks: int | None = option(None, "World size, where the configuration has none.", least=1)
    blackwell: bool = option(False, "The GPUs are Blackwell or newer, not Hopper.")
    ampere: bool = option(False, "The GPUs are A100s or others before Hopper.")
    fix: bool = option(False, "Print the corrected configuration and nothing else.")
    rehearse: bool = option(
        False,
        "Also train a launch for two steps in small, with the checkout that --upstream "
        "names and no GPU, and compare.",
    )
    checks: bool = option(
        False,
        "Wait for upstream's own program at full size, with the code that --upstream or "
        "--line names and no GPU: its parser, its checks and its model. Without this "
        f"option it is given {checked.QUICK_SECONDS:g} seconds.",
    )
    quick: bool = option(False, "Leave upstream's own program out.")
    folder: Path = folder_option(knowing_skills)
    json_path: str = json_option()

    def __post_init__(self) -> None:
        if sum(map(bool, (self.upstream, self.line, self.to))) > 1:
            raise InputError("--line", "give only one of --upstream, --line and --to")
        if self.rehearse and not self.upstream:
            raise _no_checkout("--rehearse")
        if self.ampere and self.blackwell:
            raise InputError("--ampere", "--ampere and --blackwell exclude each other; give one")
        if self.checks and self.quick:
            raise InputError("--quick", "--quick and --checks exclude each other; give one")
        if self.rehearse and self.fix:
            remedy = "save what --fix prints, and rehearse that"
            raise InputError("--rehearse", f"--rehearse does not go with --fix; {remedy}")

    def newest_of(self, lines: Iterable[str]) -> str:
        """Return the line whose code is run: the newest release among several."""
        names = list(lines)
        return RELEASES[-1] if RELEASES[-1] in names else names[0]

    def products(self) -> Sequence[tuple[str, Product]]:
        """Return the products that were given or, without any, those installed here."""
        return find_products(self.upstream, **self.source)


@command_of(DoctorCommand)
def doctor(options: DoctorCommand) -> None:
    """Examine the configuration of a training job before it starts.

    The configuration is read, and no script of yours is executed. The rules of the skills are
    applied to it as they hold on the version of upstream that will run: what is refused, fails
    later, trains wrong or has no effect, with the remedy. Upstream's own checks and its own program
    are run on a launch of Megatron-LM as well, those of Megatron-Bridge on its recipes, and those
    of verl on its launches: those that --upstream, --line or --verl name, or of the newest release
    that the skills know, where the cache has it.

    Exit code 0: nothing that should stop it from being started; 1: something should, on one of
    the lines that were examined, or the rehearsal does not pass or contradicts the findings; 2:
    bad input, a configuration that no rule is about ("not examined"), or one that cannot be
    rehearsed. Without --line, --upstream and installed packages, all lines are examined.
    """
    values = dict(assignment(entry) for entry in options.sets)
    settings = read_settings(
        options.words, values, ranks=options.ranks, blackwell=options.blackwell,
        ampere=options.ampere,
    )  # fmt: skip
    stacks = _stacks(load_cards(options.folder), options)
    examined = {
        name: with_checked_remedies(examine(settings, stack)) for name, stack in stacks.items()
    }
    first = options.newest_of(examined)
    ran = _rehearsed(examined[first], options) if options.rehearse else None
    asked = _asked(examined[first], options)
    if asked is not None:
        examined[first] = checked.settled(examined[first], asked)
    refused = asked is not None and asked.accepted is False
    pairs = [(one, repaired(one)) for one in examined.values()]
    if asked is not None and refused and options.checks:
        of_first = examined[first], repaired(examined[first])
        asked = replace(asked, changed=_asked_again(*of_first, options))
    if options.json_path:
        extra = {} if ran is None else {"rehearsal": rehearsed.data(ran)}
        extra |= {} if asked is None else {"checks": checked.data(asked)}
        write_json({**data(pairs), **extra}, options.json_path)
    wanted = options.fix or options.to
    if wanted:
        _fix(settings, pairs, options.words, values)
    elif options.json_path != "-":
        said = [
            *(table(examined, first if refused else "") if len(pairs) > 1 else lines(*pairs[0])),
            *(() if asked is None else checked.lines(asked, examined[first])),
            *(() if ran is None else rehearsed.lines(ran)),
        ]
        if ran is None and not (refused and len(pairs) > 1):  # the table says that in its line
            said[0] += checked.told(asked)
        HarmlessConsole().say(said, good=_good(examined, asked, ran))
    final = {name: pair[bool(wanted)].bad for name, pair in zip(examined, pairs, strict=True)}
    final[first] |= refused
    if not refused and all(one.not_examined for one in examined.values()):
        raise typer.Exit(2)
    if any(final.values()) or (ran is not None and not ran.good):
        raise typer.Exit(1)


def _good(
    examined: Mapping[str, Examination],
    asked: checked.Checked | None,
    ran: rehearsed.Rehearsed | None,
) -> bool | None:
    """Whether the verdict is good; ``None`` where nothing was examined."""
    if any(one.not_examined for one in examined.values()):
        return None
    refused = asked is not None and asked.accepted is False
    return not (refused or any(one.bad for one in examined.values()) or (ran and not ran.good))


def _no_checkout(option: str) -> InputError:
    sentence = f"{option} needs a checkout of Megatron-LM; give --upstream PATH or git:PATH@REF"
    return InputError(option, sentence)


def _asked(examination: Examination, options: DoctorCommand) -> checked.Checked | None:
    """What upstream's own program says; ``None`` where it is not run.

    Raises:
        InputError: --checks is given, and it cannot be run.
    """
    if options.checks:
        return _checked(examination, options)
    left = options.quick or options.rehearse or options.fix or options.to
    settings = examination.settings
    known = settings.script if settings.program == "megatron" else settings.program in FRAMEWORKS
    if left or not known:
        return None
    try:
        given = _given(options, examination.stack, settings.program)
        named = options.upstream or options.line or options.verl
        if not named and not _cached(given, options):
            return checked.Checked("", None, why_not=NOT_CACHED)
        longer = FRAMEWORK_SECONDS if settings.program in FRAMEWORKS else checked.QUICK_SECONDS
        return _checked(examination, options, longer)
    except InputError as error:
        return checked.Checked("", None, why_not=str(error))


def _cached(given: Mapping[str, str], options: DoctorCommand) -> bool:
    """Whether the cache has some upstreams, and packages are here that run them."""
    try:
        require_packages("doctor")
        for spec in given.values():
            open_tree(spec, cache=options.downloads, offline=True)
    except InputError:
        return False
    return bool(given)


def _asked_again(
    before: Examination, after: Examination, options: DoctorCommand
) -> checked.Checked | None:
    """What upstream's own program says of the launch with the changes that are proposed."""
    settings = launchable(before.settings, after.settings)
    if settings.program != "megatron" or settings.arguments == before.settings.arguments:
        return None
    return _checked(examine(settings, after.stack), options)


def _given(options: DoctorCommand, stack: Stack, program: str) -> dict[str, str]:
    """Return what was named of each product; of a line, and where nothing was, its code."""
    beside = {VERL: options.verl or NEWEST_VERL} if program == VERL else {}
    if options.upstream:
        return {**beside, **{product.repo: name for name, product in options.products()}}
    line = options.line or release_of(stack)
    if line and program == "bridge":
        core = f"pip:megatron-core=={VERSIONS[line]}" if line in RELEASES else ""
        if core not in PAIRS:
            raise InputError("--line", NO_BRIDGE)
        return {MEGATRON: core, BRIDGE: PAIRS[core]}
    return {**beside, MEGATRON: upstream_of(line, load_cards(options.folder))} if line else {}


def _checked(
    examination: Examination, options: DoctorCommand, limit: float | None = None
) -> checked.Checked:
    """Run upstream's own program on the launch.

    Args:
        limit: Seconds after which it is ended, without those of a download.

    Raises:
        InputError: The configuration is no launch, no checkout is given, or torch is missing.
    """
    given = _given(options, examination.stack, examination.settings.program)
    if examination.settings.program in FRAMEWORKS:
        return _validated(examination.settings, given, options, limit)
    launch = checked.launch_to_check(examination)
    if MEGATRON not in given:
        raise _no_checkout("--checks")
    require_packages("doctor --checks")
    return _from_cache(options, lambda offline, folder, progress: checked.ask(
        launch, given[MEGATRON], given.get(ENGINE), cache=options.downloads, folder=folder,
        offline=offline, limit=limit, progress=progress, blackwell=examination.facts.blackwell,
    ))  # fmt: skip


def _from_cache(
    options: DoctorCommand, ask: Callable[[bool, Path, Callable[[str, str], None]], checked.Checked]
) -> checked.Checked:
    """Ask with what the cache has, and where that does not suffice, with what can be fetched.

    Args:
        ask: Called with whether it is offline, a folder for logs that is removed afterwards, and
            what reports the progress.

    Raises:
        InputError: An upstream is not there, or cannot be used.
    """
    scratch = tempfile.TemporaryDirectory(prefix="ringproof-doctor-", ignore_cleanup_errors=True)
    with scratch as folder, rank_progress(HarmlessConsole(stderr=True)) as shown:

        def progress(phase: str, line: str) -> None:
            shown(phase, brief(line))

        try:
            return ask(True, Path(folder), progress)
        except InputError as error:
            if options.offline or "offline" not in str(error):
                raise
            return ask(False, Path(folder), progress)


def _validated(
    settings: Settings, given: Mapping[str, str], options: DoctorCommand, limit: float | None
) -> checked.Checked:
    """Let Megatron-Bridge or verl check a configuration of theirs.

    Raises:
        InputError: It cannot be asked about, a package is missing, or an upstream cannot be opened.
    """
    megatron, of_verl = given.get(MEGATRON, ""), settings.program == VERL
    if not (megatron if of_verl else BRIDGE in given):
        raise InputError("--upstream", NO_CORE if of_verl else NO_BRIDGE)
    asked = (composed if of_verl else validated).request_of(settings)
    packages = (VERL_PACKAGES, "rehearsal,verl") if of_verl else (validated.PACKAGES, EXTRAS)
    require_packages("doctor --checks", *packages)
    if of_verl:
        ask = partial(composed.ask, asked, given[VERL], named=bool(options.verl))
    else:
        ask = partial(validated.ask, asked, given[BRIDGE])
        megatron = megatron or core_of(
            next(one.version for _, one in options.products() if one.repo == BRIDGE)
        )
    return _from_cache(options, lambda offline, folder, progress: ask(
        megatron, given.get(ENGINE), cache=options.downloads, folder=folder, offline=offline,
        limit=limit, progress=progress,
    ))  # fmt: skip


def _name(launch: Launch) -> str:
    return re.sub(r"[^\w.-]", "_", Path(launch.source.partition(":")[0]).stem) or "launch"


def _rehearsed(examination: Examination, options: DoctorCommand) -> rehearsed.Rehearsed:
    """Train the launch for two steps in small, and compare what happens with the findings.

    Raises:
        InputError: The configuration is no launch, no checkout is given, or torch is missing.
    """
    given = {product.repo: name for name, product in options.products()}
    launch = rehearsed.launch_of(examination.settings)
    if MEGATRON not in given:
        raise _no_checkout("--rehearse")
    require_packages("doctor --rehearse")
    from ringproof.rehearsal.rehearsing import Request, rehearse

    request = Request(
        launch=launch,
        megatron=given[MEGATRON],
        engine=given.get(ENGINE),
        against="",
        folder=Path("build/rehearsal") / f"doctor-{_name(launch)}",
        cache=options.downloads,
        skills=options.folder if options.folder.is_dir() else None,
        iterations=REHEARSED_STEPS,
        offline=options.offline,
        machine=Machine.here(),
    )
    with rank_progress(HarmlessConsole(stderr=True)) as progress:
        result = rehearse(request, progress)
    return rehearsed.judge(examination, result.main)


def _stacks(cards: Mapping[str, CardLines], options: DoctorCommand) -> dict[str, Stack]:
    if name := options.line or options.to:
        found = stack_named(name, cards, "--line" if options.line else "--to")
        return {name: with_stored_options(found)}
    try:
        products = options.products()
    except InputError:
        if options.upstream:
            raise
        known = known_stacks(cards)
        return {name: with_stored_options(stack) for name, stack in known.items()}
    stack = with_stored_options(stack_of(products, cards))
    return {stack.name: stack}


def _fix(
    settings: Settings,
    pairs: Sequence[tuple[Examination, Examination]],
    words: Sequence[str],
    sets: Mapping[str, str],
) -> None:
    if len(pairs) != 1:
        sentence = "--fix needs the upstream that will run; give --upstream SPEC or --line NAME"
        raise InputError("--fix", sentence)
    path = Path(words[0]) if len(words) == 1 and Path(words[0]).is_file() else None
    after = pairs[0][1]
    echo_text(written_again(settings, after.settings, path, sets).rstrip("\n") + "\n")
    for finding in after.findings:
        HarmlessConsole(stderr=True).say((f"left: {finding.says}; {finding.remedy}",))
