"""``ringproof anchors``: do the code anchors hold, where are they, and what became of them?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import typer

from ringproof.cli.cache import default_cache
from ringproof.cli.reporting import Format, FormatOption, JsonOption, Outputs, SarifOption
from ringproof.errors import InputError
from ringproof.files import write_atomically
from ringproof.harness.anchors.check import check_cards
from ringproof.harness.anchors.drift import classify
from ringproof.harness.anchors.lock import LOCK_FILE, make_lock, read_lock
from ringproof.harness.anchors.resolve import AnchorStatus, Resolution
from ringproof.harness.cards import Anchor, Card, ProofKind, find_cards, statements
from ringproof.harness.cards.loading import LocatedCard, locate_card
from ringproof.harness.reports.anchors import check_data, check_lines, check_report
from ringproof.harness.reports.drift import Drifted, drift_data, drift_lines, drift_report
from ringproof.harness.reports.printable import showable
from ringproof.harness.upstreams.choice import UpstreamChoice, parse_overrides
from ringproof.harness.upstreams.specs import open_tree, split_git
from ringproof.harness.upstreams.submodules import MissingSubmodule, SubmoduleSources, refuse_unused
from ringproof.harness.upstreams.tree import UpstreamError, UpstreamUnavailable

app = typer.Typer(help="Places in upstream's code, found by symbol.", no_args_is_help=True)

_Skills = Annotated[
    list[str] | None, typer.Argument(metavar="SKILL", help="Skills; all when none named.")
]
_Folder = Annotated[Path, typer.Option("--skills", metavar="DIR", help="The skills.")]
_Upstreams = Annotated[
    list[str] | None,
    typer.Option(
        "--upstream",
        metavar="NAME=SPEC",
        help="Where an upstream of the card, or OWNER/NAME, is: git:PATH[@REF], "
        "pip:PACKAGE==VERSION, dir:PATH, installed:PACKAGE.",
    ),
]
_Cache = Annotated[
    Path | None, typer.Option(metavar="DIR", help="For upstream wheels; else ~/.cache/ringproof.")
]
_Offline = Annotated[bool, typer.Option("--offline", help="Never download.")]
_Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Also list the anchors without a finding.")
]


@app.command()
def check(
    skills: _Skills = None,
    *,
    folder: _Folder = Path("skills"),
    upstream: _Upstreams = None,
    fences: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Check line numbers in these documents instead."),
    ] = None,
    root: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SPEC",
            help="With --fences: the code below a path, or OWNER/NAME=git:PATH for the submodules "
            "of that name.",
        ),
    ] = None,
    fix: Annotated[bool, typer.Option("--fix", help="With --fences: correct the numbers.")] = False,
    cache: _Cache = None,
    offline: _Offline = False,
    verbose: _Verbose = False,
    output: FormatOption = Format.TEXT,
    json_path: JsonOption = "",
    sarif_path: SarifOption = "",
) -> None:
    """Look up every anchor of the cards and compare it with the lock.

    Exit code 1: an anchor does not hold, or its code is not the locked code; 2: a symbol is there
    several times, and the card does not say which.
    Example: ringproof anchors check --upstream NVIDIA/Megatron-LM=git:../Megatron-LM
    """
    outputs = Outputs(output, json_path, sarif_path)
    if fences is not None:
        if skills or upstream:
            raise InputError("--fences", fences, "takes neither SKILL nor --upstream", "use --root")
        code = _check_fences(fences, root or [], fix, _cache(cache), offline, outputs)
        raise typer.Exit(code)
    if fix or root:
        raise InputError("--fix" if fix else "--root", None, "needs --fences", "add --fences PATH")
    choice = UpstreamChoice(parse_overrides(upstream or []), _cache(cache), offline)
    paths = find_cards(folder, tuple(skills or ()))
    cards = _cards(paths, choice)
    read = {skill: read_lock(path.with_name(LOCK_FILE)) for skill, path in paths.items()}
    locks = {skill: lock for skill, lock in read.items() if lock is not None}
    checked = check_cards({skill: item.card for skill, item in cards.items()}, locks, choice)
    if checked and all(item.resolution is None for item in checked):
        remedy = "give its place with --upstream NAME=SPEC"
        raise InputError("upstreams", None, f"none can be opened: {checked[0].obstacle}", remedy)
    report = check_report(checked, cards, locks)
    lines = tuple(check_lines(checked)) if verbose else ()
    outputs.publish(report, check_data(checked, failed=report.failed), lines)
    for item in checked:
        if item.status == AnchorStatus.AMBIGUOUS_SYMBOL.value:
            raise _ambiguous(cards[item.skill], item.anchor.id, item.resolution)
    if report.failed:
        raise typer.Exit(1)


@app.command()
def lock(
    skills: _Skills = None,
    *,
    folder: _Folder = Path("skills"),
    upstream: _Upstreams = None,
    cache: _Cache = None,
    offline: _Offline = False,
) -> None:
    """Write where each anchor is into anchors.lock beside its card.

    Each anchor is looked up in its own upstream and in the card's others of the same repository.
    Exit code 1: an anchor does not hold in its own upstream; that lock is not written.
    Example: ringproof anchors lock --upstream NVIDIA/Megatron-LM=git:../Megatron-LM
    """
    choice = UpstreamChoice(parse_overrides(upstream or []), _cache(cache), offline)
    paths = find_cards(folder, tuple(skills or ()))
    broken = False
    for skill, located in _cards(paths, choice).items():
        try:
            made, failures = make_lock(located.card, choice)
        except MissingSubmodule:
            raise  # it says what to give
        except (UpstreamUnavailable, UpstreamError) as error:
            remedy = "give its place with --upstream NAME=SPEC"
            raise InputError(f"{skill}: upstreams", None, str(error), remedy) from error
        for failure in failures:
            said = f"{skill}: {failure.anchor}: {failure.status.value}: {failure.detail}"
            typer.echo(showable(said, 1000))
            if failure.status is AnchorStatus.AMBIGUOUS_SYMBOL:
                raise _ambiguous(located, failure.anchor, failure)
        broken = broken or bool(failures)
        if not failures:
            destination = paths[skill].with_name(LOCK_FILE)
            write_atomically(destination, made.text(), field=LOCK_FILE)
            typer.echo(
                f"{destination}: {len(made.anchors)} anchors, {len(made.upstreams)} versions"
            )
    if broken:
        raise typer.Exit(1)


@app.command()
def drift(
    skills: _Skills = None,
    *,
    old: Annotated[str, typer.Option("--from", metavar="SPEC", help="The earlier version.")],
    new: Annotated[str, typer.Option("--to", metavar="SPEC", help="The later version.")],
    folder: _Folder = Path("skills"),
    upstream: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Only anchors of these upstreams of the card; or OWNER/NAME=git:PATH, for the "
            "submodules of that name.",
        ),
    ] = None,
    cache: _Cache = None,
    offline: _Offline = False,
    verbose: _Verbose = False,
    output: FormatOption = Format.TEXT,
    json_path: JsonOption = "",
    sarif_path: SarifOption = "",
) -> None:
    """Say what became of each anchor between two versions, and what the cards hang on it.

    Anchors whose symbol is not in the earlier version are left out. Exit code 1: an anchor changed
    or is not where it was.
    Example: ringproof anchors drift --from git:../M@core_v0.16.1 --to git:../M@main
    """
    outputs = Outputs(output, json_path, sarif_path)
    paths = find_cards(folder, tuple(skills or ()))
    cards = {skill: locate_card(path) for skill, path in paths.items()}
    names, sources = _of_upstreams(cards.values(), upstream or [])
    place = _cache(cache)
    trees = [
        open_tree(spec, cache=place, offline=offline, submodules=sources) for spec in (old, new)
    ]
    refuse_unused(sources, trees)
    chosen = [
        (skill, anchor)
        for skill, item in cards.items()
        for anchor in item.card.anchors
        if not names or anchor.upstream in names
    ]
    fates = classify([anchor for _, anchor in chosen], trees[0], trees[1])
    found = [
        Drifted(skill, fate, _hanging(cards[skill].card, fate.anchor))
        for (skill, _), fate in zip(chosen, fates, strict=True)
        if fate.before is not None
    ]
    if not found:
        problem = "none of the cards' anchors is in this version"
        raise InputError("--from", old, problem, "name a version of a card's upstream")
    report = drift_report(found, cards, left_out=len(chosen) - len(found))
    data = drift_data(found, old=trees[0].origin, new=trees[1].origin)
    outputs.publish(report, data, tuple(drift_lines(found)) if verbose else ())
    if report.failed:
        raise typer.Exit(1)


def _of_upstreams(
    cards: Iterable[LocatedCard], entries: list[str]
) -> tuple[frozenset[str], SubmoduleSources]:
    """The upstreams that ``--upstream`` of ``drift`` chooses, and the submodules it gives."""
    specs = parse_overrides([entry for entry in entries if "=" in entry])
    sources = _submodules(specs, "--upstream")
    names = frozenset(entry for entry in entries if "=" not in entry)
    names |= specs.keys() - sources.paths.keys()
    known = frozenset(name for item in cards for name in item.card.upstreams)
    for name in sorted(names - known):
        remedy = f"choose from: {', '.join(sorted(known))}"
        raise InputError("--upstream", name, "is no upstream of these cards", remedy)
    return names, sources


def _cache(given: Path | None) -> Path:
    return given if given is not None else default_cache()


def _cards(paths: Mapping[str, Path], choice: UpstreamChoice) -> Mapping[str, LocatedCard]:
    cards = {skill: locate_card(path) for skill, path in paths.items()}
    choice.refuse_unknown(item.card for item in cards.values())
    return MappingProxyType(cards)


def _ambiguous(card: LocatedCard, anchor: str, found: Resolution | None) -> InputError:
    """A card that does not say which of several symbols it means cannot be used."""
    where = f"{card.document.path}:{card.anchor_lines()[anchor][0]}: {anchor}"
    detail = "the symbol is ambiguous" if found is None else found.detail
    return InputError(where, None, showable(detail, 500), "say which with #1, #2 behind the name")


def _submodules(specs: Mapping[str, str], option: str) -> SubmoduleSources:
    """The repositories among ``NAME=SPEC`` entries that are given without a ref."""
    found = {}
    for name, spec in specs.items():
        if spec.startswith("git:") and name.count("/") == 1:
            path, ref = split_git(spec[len("git:") :])
            if ref is None:
                found[name] = path
    return SubmoduleSources(found, option)


def _check_fences(
    path: Path, entries: list[str], fix: bool, cache: Path, offline: bool, outputs: Outputs
) -> int:
    # Only here: reading Markdown takes a moment to load.
    from ringproof.cli.fences import check_fences, open_roots

    specs = parse_overrides(entries, option="--root")
    sources = _submodules(specs, "--root")
    roots = open_roots(path, specs, sources, cache=cache, offline=offline)
    return check_fences(path, roots, fix=fix, outputs=outputs)


def _hanging(card: Card, anchor: Anchor) -> tuple[tuple[str, str], ...]:
    """Kind and id of the statements that name an anchor as proof."""
    return tuple(
        (statement.kind.value, statement.id)
        for statement in statements(card)
        if statement.id != anchor.id
        and any(p.kind is ProofKind.ANCHOR and p.target == anchor.id for p in statement.proofs)
    )
