"""``ringproof anchors``: check, lock and compare the places in upstream's code that cards name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from ringproof.anchors.check import check_cards, check_report
from ringproof.anchors.drift import compare_cards, drift_data, drift_report
from ringproof.anchors.lock import LOCK_FILE, make_lock, read_lock
from ringproof.anchors.resolve import AnchorStatus, Resolution
from ringproof.cards import find_cards
from ringproof.cards.loading import LocatedCard, locate_card
from ringproof.cli.options import (
    SkillOptions,
    UpstreamOptions,
    command_of,
    folder_option,
)
from ringproof.cli.reporting import Outputs
from ringproof.errors import InputError, shown
from ringproof.files import write_atomically
from ringproof.findings.printable import LONGEST, showable
from ringproof.options import option
from ringproof.upstream.git import MissingSubmodule, SubmoduleSources, refuse_unused
from ringproof.upstream.sources import (
    UpstreamChoice,
    given_submodules,
    open_tree,
    parse_overrides,
)
from ringproof.upstream.tree import UpstreamError, UpstreamUnavailable

app = typer.Typer(no_args_is_help=True)

_FETCH = "run `ringproof upstream fetch`, or give its place with --upstream NAME=SPEC"


@dataclass(frozen=True, kw_only=True)
class AnchorOptions(SkillOptions, UpstreamOptions):
    """Which anchors are looked up, and where."""

    def cards(self) -> Mapping[str, LocatedCard]:
        """Return the cards by the names of their skills."""
        paths = find_cards(self.folder, self.skills)
        return {skill: locate_card(path) for skill, path in paths.items()}

    def choice(self, cards: Mapping[str, LocatedCard]) -> UpstreamChoice:
        """Return the upstreams that were given, each of which one of the cards has to name."""
        choice = UpstreamChoice(parse_overrides(self.upstream), self.downloads, self.offline)
        choice.refuse_unknown(item.card for item in cards.values())
        return choice


@dataclass(frozen=True, kw_only=True)
class CheckCommand(Outputs, AnchorOptions):
    """The options of ``ringproof anchors check``."""

    verbose: bool = option(False, "List the anchors without a finding, too.", "--verbose", "-v")


@dataclass(frozen=True, kw_only=True)
class LockCommand(AnchorOptions):
    """The options of ``ringproof anchors lock``, which writes beside the cards."""

    folder: Path = folder_option()


@dataclass(frozen=True, kw_only=True)
class DriftCommand(CheckCommand):
    """The options of ``ringproof anchors drift``."""

    old: str = option(..., "Earlier version, as SPEC of --upstream.", "--from", metavar="SPEC")
    new: str = option(..., "Later version, as SPEC of --upstream.", "--to", metavar="SPEC")
    only: tuple[str, ...] = option(
        (),
        "Compare only the anchors of this upstream; can be given several times.",
        metavar="NAME",
    )


@app.command()
@command_of(CheckCommand)
def check(options: CheckCommand) -> None:
    """Look up every anchor of the cards and compare it with the lock.

    Exit code 1: an anchor does not hold, or its code is not the locked code; 2: a symbol is there
    several times, and the card does not say which.
    Example: ringproof anchors check --upstream NVIDIA/Megatron-LM=git:../Megatron-LM
    """
    cards = options.cards()
    choice = options.choice(cards)
    read = {skill: read_lock(_lock_path(item)) for skill, item in cards.items()}
    locks = {skill: lock for skill, lock in read.items() if lock is not None}
    checked = check_cards({skill: item.card for skill, item in cards.items()}, locks, choice)
    if checked and not any(item.was_looked_up for item in checked):
        problem = f"none can be opened: {checked[0].resolution.detail}"
        raise InputError("upstreams", f"{problem}; {_FETCH}")
    report = check_report(checked, cards, locks)
    lines = tuple(item.line() for item in checked) if options.verbose else ()
    anchors = [item.data() for item in checked]
    options.publish(report, {"version": 1, "pass": not report.failed, "anchors": anchors}, lines)
    for item in checked:
        if item.status == AnchorStatus.AMBIGUOUS_SYMBOL.value:
            raise _ambiguous(cards[item.skill], item.resolution)
    if report.failed:
        raise typer.Exit(1)


@app.command()
@command_of(LockCommand)
def lock(options: LockCommand) -> None:
    """Write where each anchor is into anchors.lock beside its card.

    Each anchor is looked up in its own upstream and in the card's others of the same repository.
    Exit code 1: an anchor does not hold in its own upstream; that lock is not written.
    Example: ringproof anchors lock --upstream NVIDIA/Megatron-LM=git:../Megatron-LM
    """
    cards, broken = options.cards(), False
    choice = options.choice(cards)
    for skill, located in cards.items():
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
            destination = _lock_path(located)
            write_atomically(destination, made.text(), field=LOCK_FILE)
            typer.echo(
                f"{destination}: {len(made.anchors)} anchors, {len(made.upstreams)} versions"
            )
    if broken:
        raise typer.Exit(1)


@app.command()
@command_of(DriftCommand)
def drift(options: DriftCommand) -> None:
    """Say what became of each anchor between two versions, and which statements depend on it.

    Anchors whose symbol is not in the earlier version are left out. Exit code 1: an anchor changed
    or is not where it was.
    Example: ringproof anchors drift --from git:../M@core_v0.16.1 --to git:../M@main
    """
    cards = options.cards()
    names = _chosen_upstreams(cards.values(), options.only)
    sources = _given_repositories(options.upstream)
    how = {**options.source, "submodules": sources}
    trees = [open_tree(spec, **how) for spec in (options.old, options.new)]
    refuse_unused(sources, trees)
    compared = compare_cards(cards, names, *trees)
    found = [(skill, item) for skill, item in compared if item.before is not None]
    if not found:
        problem = "has none of the cards' anchors; name a version of a card's upstream"
        raise InputError("--from", f"{shown(options.old)} {problem}")
    report = drift_report(found, cards, left_out=len(compared) - len(found))
    anchors = [drift_data(skill, item, cards[skill].card) for skill, item in found]
    data = {"version": 1, "from": trees[0].origin, "to": trees[1].origin, "anchors": anchors}
    lines = (
        f"{skill}: {item.anchor.id}: {item.line()}" for skill, item in found if options.verbose
    )
    options.publish(report, data, tuple(showable(line, LONGEST) for line in lines))
    if report.failed:
        raise typer.Exit(1)


def _chosen_upstreams(cards: Iterable[LocatedCard], names: Sequence[str]) -> frozenset[str]:
    """The upstreams that ``--only`` chooses; none means all."""
    known = frozenset(name for item in cards for name in item.card.upstreams)
    for name in sorted(set(names) - known):
        problem = f"is not an upstream of these cards; use one of {', '.join(sorted(known))}"
        raise InputError("--only", f"{shown(name)} {problem}")
    return frozenset(names)


def _given_repositories(entries: Sequence[str]) -> SubmoduleSources:
    """The repositories of submodules: the versions themselves are given by --from and --to."""
    specs = parse_overrides(entries)
    sources = given_submodules(specs)
    for name in sorted(specs.keys() - sources.paths.keys()):
        problem = "is not the repository of a submodule; --from and --to name the versions"
        raise InputError("--upstream", f"{shown(name)} {problem}")
    return sources


def _lock_path(card: LocatedCard) -> Path:
    return card.document.path.with_name(LOCK_FILE)


def _ambiguous(card: LocatedCard, found: Resolution) -> InputError:
    """A card that does not say which of several symbols it means cannot be used."""
    where = f"{card.document.path}:{card.anchor_lines()[found.anchor][0]}: {found.anchor}"
    return InputError(where, showable(found.detail, 500))
