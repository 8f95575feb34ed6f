"""``ringproof doctor``: is this configuration right for that upstream?"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ringproof.budget import Machine
from ringproof.cards.card import Card
from ringproof.cli import options
from ringproof.cli.output import write_json
from ringproof.cli.rehearse import SetOption, assignment, rank_progress, require_packages
from ringproof.doctor import rehearsed
from ringproof.doctor.examine import Examination, examine
from ringproof.doctor.lines import Stack, known_stacks, load_cards, stack_named, stack_of
from ringproof.doctor.reading import read_settings
from ringproof.doctor.repair import repaired, written_again
from ringproof.doctor.report import data, lines, table
from ringproof.doctor.settings import Settings
from ringproof.errors import InputError
from ringproof.stack.products import ENGINE, MEGATRON, find_products

EXAMPLE = "Example: ringproof doctor train.sh --upstream ../Megatron-LM --set NNODES=8"

REHEARSED_STEPS = 2

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="CONFIG | -- COMMAND...",
        help="Launch script, YAML file, Bridge recipe, log that starts with the arguments, "
        "overrides such as model.context_parallel_size=4, or a launch command.",
    ),
]
UpstreamOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="SPEC",
        help="The upstream that will run: a checkout, a wheel, git:PATH@REF or "
        "pip:PACKAGE==VERSION. Give the option once for each package.",
    ),
]
LineOption = Annotated[
    str, typer.Option(metavar="NAME", help="A line that the skills know, such as dev.")
]
ToOption = Annotated[
    str, typer.Option(metavar="NAME", help="Translate to another line: --line NAME --fix.")
]
RanksOption = Annotated[
    int | None, typer.Option(min=1, help="World size, where the configuration has none.")
]
BlackwellOption = Annotated[
    bool, typer.Option("--blackwell", help="The GPUs are Blackwell or newer, not Hopper.")
]
FixOption = Annotated[
    bool, typer.Option("--fix", help="Print the corrected configuration and nothing else.")
]
RehearseOption = Annotated[
    bool,
    typer.Option(
        "--rehearse",
        help="Also train a launch for two steps in small, with the checkout that --upstream "
        "names and no GPU, and compare.",
    ),
]


def doctor(
    words: Words = None,
    *,
    upstream: UpstreamOption = None,
    line: LineOption = "",
    to: ToOption = "",
    sets: SetOption = None,
    ranks: RanksOption = None,
    blackwell: BlackwellOption = False,
    fix: FixOption = False,
    rehearse: RehearseOption = False,
    folder: options.KnowingFolderOption = Path("skills"),
    cache: options.CacheOption = None,
    offline: options.OfflineOption = False,
    json_path: options.JsonOption = "",
) -> None:
    """Examine the configuration of a training job before it starts.

    The configuration is read, and executed only by --rehearse. The rules of the skills are applied
    to it as they hold on the line of upstream that will run: what is refused, fails later, trains
    wrong or has no effect, with the remedy.

    Exit code 0: nothing that should stop it from being started, on one line at least; 1: something
    should, on every line that was examined, or the rehearsal does not pass or contradicts
    the findings; 2: bad input, or a configuration that cannot be rehearsed.
    """
    given = [bool(upstream), bool(line), bool(to)]
    if sum(given) > 1:
        raise InputError("--line", "give only one of --upstream, --line and --to")
    _check_rehearse(rehearse, upstream, fix=fix)
    values = dict(assignment(entry) for entry in sets or ())
    settings = read_settings(words or (), values, ranks=ranks, blackwell=blackwell)
    source = (options.cache_folder(cache), offline)
    stacks = _stacks(load_cards(folder), upstream, line, to, source)
    examined = {name: examine(settings, stack) for name, stack in stacks.items()}
    pairs = [(one, repaired(one)) for one in examined.values()]
    ran = _rehearsed(pairs[0][0], upstream or (), source, folder) if rehearse else None
    if json_path:
        extra = {} if ran is None else {"rehearsal": rehearsed.data(ran)}
        write_json({**data(pairs), **extra}, json_path)
    if fix or to:
        _fix(settings, pairs, words or (), values)
    elif json_path != "-":
        for text in table(examined) if len(pairs) > 1 else lines(*pairs[0]):
            typer.echo(text)
        for text in () if ran is None else rehearsed.lines(ran):
            typer.echo(text)
    final = [after if fix or to else before for before, after in pairs]
    if all(one.bad for one in final) or (ran is not None and not ran.good):
        raise typer.Exit(1)


def _check_rehearse(rehearse: bool, upstream: Sequence[str] | None, *, fix: bool) -> None:
    if not rehearse:
        return
    if not upstream:
        raise _no_checkout()
    if fix:
        sentence = "--rehearse does not go with --fix; save what --fix prints, and rehearse that"
        raise InputError("--rehearse", sentence)


def _no_checkout() -> InputError:
    sentence = "--rehearse needs a checkout of Megatron-LM; give --upstream PATH or git:PATH@REF"
    return InputError("--rehearse", sentence)


def _rehearsed(
    examination: Examination, upstream: Sequence[str], source: tuple[Path, bool], skills: Path
) -> rehearsed.Rehearsed:
    """Train the launch for two steps in small, and compare what happens with the findings.

    Raises:
        InputError: The configuration is no launch, no checkout is given, or torch is missing.
    """
    cache, offline = source
    products = find_products(tuple(upstream), cache=cache, offline=offline)
    launch = rehearsed.launch_of(examination.settings)
    given = {product.repo: name for name, product in products}
    if MEGATRON not in given:
        raise _no_checkout()
    require_packages("doctor --rehearse")
    from ringproof.rehearsal.rehearsing import Request, rehearse

    name = re.sub(r"[^\w.-]", "_", Path(launch.source.partition(":")[0]).stem) or "launch"
    request = Request(
        launch=launch,
        megatron=given[MEGATRON],
        engine=given.get(ENGINE),
        against="",
        folder=Path("build/rehearsal") / f"doctor-{name}",
        cache=cache,
        skills=skills if skills.is_dir() else None,
        iterations=REHEARSED_STEPS,
        offline=offline,
        machine=Machine.here(),
    )
    with rank_progress(Console(stderr=True)) as progress:
        result = rehearse(request, progress)
    return rehearsed.judge(examination, result.main)


def _stacks(
    cards: Mapping[str, Card],
    upstream: Sequence[str] | None,
    line: str,
    to: str,
    source: tuple[Path, bool],
) -> dict[str, Stack]:
    cache, offline = source
    if line or to:
        option = "--line" if line else "--to"
        return {line or to: stack_named(line or to, cards, option)}
    try:
        products = find_products(tuple(upstream or ()), cache=cache, offline=offline)
    except InputError:
        if upstream:
            raise
        return known_stacks(cards)
    stack = stack_of(products, cards)
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
    typer.echo(written_again(settings, after.settings, path, sets).rstrip("\n"))
    for finding in after.findings:
        typer.echo(f"left: {finding.says}; {finding.rule.remedy}", err=True)
