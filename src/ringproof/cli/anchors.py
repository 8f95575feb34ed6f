"""``ringproof anchors``: check, lock and compare the places in upstream's code that cards name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import typer

from ringproof.anchors.check import check_cards, check_report
from ringproof.anchors.drift import compare_cards, drift_data, drift_report
from ringproof.anchors.lock import LOCK_FILE, make_lock, read_lock
from ringproof.anchors.resolve import AnchorStatus, Resolution
from ringproof.cards import find_cards
from ringproof.cards.loading import LocatedCard, locate_card
from ringproof.cli import options
from ringproof.cli.reporting import Format, FormatOption, Outputs, SarifOption
from ringproof.errors import InputError, shown
from ringproof.files import write_atomically
from ringproof.findings.printable import LONGEST, showable
from ringproof.upstream.git import MissingSubmodule, SubmoduleSources, refuse_unused
from ringproof.upstream.sources import (
    UpstreamChoice,
    given_submodules,
    open_tree,
    parse_overrides,
)
from ringproof.upstream.tree import UpstreamError, UpstreamUnavailable

app = typer.Typer(
    help="Find and check the places in upstream's code that cards point to.", no_args_is_help=True
)

_FETCH = "run `ringproof upstream fetch`, or give its place with --upstream NAME=SPEC"
_Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="List the anchors without a finding, too.")
]


@app.command()
def check(
    skills: options.SkillsArgument = None,
    *,
    folder: options.FolderOption = Path("skills"),
    upstream: options.UpstreamOption = None,
    cache: options.CacheOption = None,
    offline: options.OfflineOption = False,
    verbose: _Verbose = False,
    output: FormatOption = Format.TEXT,
    json_path: options.JsonOption = "",
    sarif_path: SarifOption = "",
) -> None:
    """Look up every anchor of the cards and compare it with the lock.

    Exit code 1: an anchor does not hold, or its code is not the locked code; 2: a symbol is there
    several times, and the card does not say which.
    Example: ringproof anchors check --upstream NVIDIA/Megatron-LM=git:../Megatron-LM
    """
    outputs = Outputs(output, json_path, sarif_path)
    choice = UpstreamChoice(parse_overrides(upstream or []), options.cache_folder(cache), offline)
    paths = find_cards(folder, tuple(skills or ()))
    cards = _cards(paths, choice)
    read = {skill: read_lock(path.with_name(LOCK_FILE)) for skill, path in paths.items()}
    locks = {skill: lock for skill, lock in read.items() if lock is not None}
    checked = check_cards({skill: item.card for skill, item in cards.items()}, locks, choice)
    if checked and not any(item.was_looked_up for item in checked):
        problem = f"none can be opened: {checked[0].resolution.detail}"
        raise InputError("upstreams", f"{problem}; {_FETCH}")
    report = check_report(checked, cards, locks)
    lines = tuple(item.line() for item in checked) if verbose else ()
    anchors = [item.data() for item in checked]
    outputs.publish(report, {"version": 1, "pass": not report.failed, "anchors": anchors}, lines)
    for item in checked:
        if item.status == AnchorStatus.AMBIGUOUS_SYMBOL.value:
            raise _ambiguous(cards[item.skill], item.resolution)
    if report.failed:
        raise typer.Exit(1)


@app.command()
def lock(
    skills: options.SkillsArgument = None,
    *,
    folder: options.WrittenFolderOption = Path("skills"),
    upstream: options.UpstreamOption = None,
    cache: options.CacheOption = None,
    offline: options.OfflineOption = False,
) -> None:
    """Write where each anchor is into anchors.lock beside its card.

    Each anchor is looked up in its own upstream and in the card's others of the same repository.
    Exit code 1: an anchor does not hold in its own upstream; that lock is not written.
    Example: ringproof anchors lock --upstream NVIDIA/Megatron-LM=git:../Megatron-LM
    """
    choice = UpstreamChoice(parse_overrides(upstream or []), options.cache_folder(cache), offline)
    paths = find_cards(folder, tuple(skills or ()))
    broken = False
    for skill, located in _cards(paths, choice).items():
        try:
            made, failures = make_lock(located.card, choice)
        except MissingSubmodule:
            raise  # it says what to give
        except (UpstreamUnavailable, UpstreamError) as error:
            raise InputError(f"{skill}: upstreams", f"{error}; {_FETCH}") from error
        for failure in failures:
            said = f"{skill}: {failure.anchor}: {failure.status.value}: {failure.detail}"
            typer.echo(showable(said, LONGEST))
            if failure.status is AnchorStatus.AMBIGUOUS_SYMBOL:
                raise _ambiguous(located, failure)
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
    skills: options.SkillsArgument = None,
    *,
    old: Annotated[
        str, typer.Option("--from", metavar="SPEC", help="Earlier version, as SPEC of --upstream.")
    ],
    new: Annotated[
        str, typer.Option("--to", metavar="SPEC", help="Later version, as SPEC of --upstream.")
    ],
    folder: options.FolderOption = Path("skills"),
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Compare only the anchors of this upstream; can be given several times.",
        ),
    ] = None,
    upstream: options.UpstreamOption = None,
    cache: options.CacheOption = None,
    offline: options.OfflineOption = False,
    verbose: _Verbose = False,
    output: FormatOption = Format.TEXT,
    json_path: options.JsonOption = "",
    sarif_path: SarifOption = "",
) -> None:
    """Say what became of each anchor between two versions, and which statements depend on it.

    Anchors whose symbol is not in the earlier version are left out. Exit code 1: an anchor changed
    or is not where it was.
    Example: ringproof anchors drift --from git:../M@core_v0.16.1 --to git:../M@main
    """
    outputs = Outputs(output, json_path, sarif_path)
    paths = find_cards(folder, tuple(skills or ()))
    cards = {skill: locate_card(path) for skill, path in paths.items()}
    names = _chosen_upstreams(cards.values(), only or [])
    sources = _given_repositories(upstream or [])
    place = options.cache_folder(cache)
    trees = [
        open_tree(spec, cache=place, offline=offline, submodules=sources) for spec in (old, new)
    ]
    refuse_unused(sources, trees)
    compared = compare_cards(cards, names, *trees)
    found = [(skill, item) for skill, item in compared if item.before is not None]
    if not found:
        problem = "has none of the cards' anchors; name a version of a card's upstream"
        raise InputError("--from", f"{shown(old)} {problem}")
    report = drift_report(found, cards, left_out=len(compared) - len(found))
    anchors = [drift_data(skill, item, cards[skill].card) for skill, item in found]
    data = {"version": 1, "from": trees[0].origin, "to": trees[1].origin, "anchors": anchors}
    lines = (f"{skill}: {item.anchor.id}: {item.line()}" for skill, item in found if verbose)
    outputs.publish(report, data, tuple(showable(line, LONGEST) for line in lines))
    if report.failed:
        raise typer.Exit(1)


def _chosen_upstreams(cards: Iterable[LocatedCard], names: list[str]) -> frozenset[str]:
    """The upstreams that ``--only`` chooses; none means all."""
    known = frozenset(name for item in cards for name in item.card.upstreams)
    for name in sorted(set(names) - known):
        problem = f"is not an upstream of these cards; use one of {', '.join(sorted(known))}"
        raise InputError("--only", f"{shown(name)} {problem}")
    return frozenset(names)


def _given_repositories(entries: list[str]) -> SubmoduleSources:
    """The repositories of submodules: the versions themselves are given by --from and --to."""
    specs = parse_overrides(entries)
    sources = given_submodules(specs)
    for name in sorted(specs.keys() - sources.paths.keys()):
        problem = "is not the repository of a submodule; --from and --to name the versions"
        raise InputError("--upstream", f"{shown(name)} {problem}")
    return sources


def _cards(paths: Mapping[str, Path], choice: UpstreamChoice) -> Mapping[str, LocatedCard]:
    cards = {skill: locate_card(path) for skill, path in paths.items()}
    choice.refuse_unknown(item.card for item in cards.values())
    return MappingProxyType(cards)


def _ambiguous(card: LocatedCard, found: Resolution) -> InputError:
    """A card that does not say which of several symbols it means cannot be used."""
    where = f"{card.document.path}:{card.anchor_lines()[found.anchor][0]}: {found.anchor}"
    return InputError(where, showable(found.detail, 500))
