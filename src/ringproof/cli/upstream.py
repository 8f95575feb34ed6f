"""``ringproof upstream``: bring the upstream code that cards name to this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from ringproof.cards import Card, find_cards, load_card
from ringproof.cli.console import HarmlessConsole
from ringproof.cli.options import SkillOptions, command_of, json_option
from ringproof.cli.output import write_result
from ringproof.errors import InputError, shown
from ringproof.options import option, seconds
from ringproof.prove.suite import ProveRequest
from ringproof.upstream.fetching import find_commit
from ringproof.upstream.releases import Archive, DamagedWheel
from ringproof.upstream.sources import parse_overrides
from ringproof.upstream.wanted import Provision, Wanted, pinned_beside, wanted_by

app = typer.Typer(no_args_is_help=True)

_PROVE_PATIENCE = 5.0
"""Seconds that `prove` waits for a server that does not answer."""
_SHOWN = 4
"""Names of missing versions that a line has before it counts the others."""


@dataclass(frozen=True, kw_only=True)
class NeedsCommand(SkillOptions):
    """The options of ``ringproof upstream list``."""

    json_path: str = json_option()


@dataclass(frozen=True, kw_only=True)
class FetchCommand(SkillOptions):
    """The options of ``ringproof upstream fetch``."""

    servers: tuple[str, ...] = option(
        (),
        "Where to fetch the repository OWNER/NAME from, as git takes it; "
        "https://github.com/OWNER/NAME by default. Can be given several times.",
        "--from",
        metavar="NAME=URL",
    )
    wheels: bool = option(False, "Fetch only wheels, and no repository.")
    branches: bool = option(
        False,
        "Fetch also the newest commit of each branch that a card names; it is then "
        "fetched:OWNER/NAME@newest/BRANCH.",
    )
    patience: float = seconds(30, "Seconds to wait for a server that does not answer.")


def _needs(folder: Path, skills: Sequence[str]) -> tuple[Mapping[str, Card], Wanted]:
    """Return the cards of skills, or of all without names, and all that they need.

    Raises:
        InputError: A skill is unknown, or its card or the list of wheels is invalid.
    """
    paths = find_cards(folder, tuple(skills))
    cards = {name: load_card(path) for name, path in paths.items()}
    return cards, wanted_by(cards, pinned_beside(paths.values()))


@app.command()
@command_of(FetchCommand)
def fetch(options: FetchCommand) -> None:
    """Fetch the commits that cards name, with all their files, and the wheels, by hash.

    What is there is not fetched again, and a run that was ended goes on where it was. All commands
    find these commits without --upstream. Needs git 2.29 or newer for repositories.
    Exit code 2: something could not be fetched. Example: ringproof upstream fetch
    """
    (_, wanted), cache = _needs(options.folder, options.skills), options.downloads
    if options.wheels:
        wanted = Wanted((), wanted.wheels)
    how: Any = {"urls": _parse_servers(options.servers, wanted), "patience": options.patience}
    provision = Provision(cache, HarmlessConsole(stderr=True), typer.echo, **how)
    short = provision.bring(wanted, branches=options.branches)
    if short:
        *others, last = _by_reason(short)
        for line in others:
            typer.echo(f"not fetched: {line}", err=True)
        raise InputError("upstream", f"not fetched: {last}")
    commits, number = {item.commit for item in wanted.commits}, len(wanted.wheels)
    typer.echo(f"all there: {len(commits)} commits and {number} wheels, in {cache}")


@app.command("list")
@command_of(NeedsCommand)
def list_command(options: NeedsCommand) -> None:
    """List the commits and wheels that cards and tests need, and which of them are here.

    Example: ringproof upstream list dynamic-context-parallel
    """
    (_, wanted), place = _needs(options.folder, options.skills), options.downloads
    rows = [
        {
            "name": item.repo,
            "version": item.commit,
            "ref": item.ref,
            "here": find_commit(place, item.repo, item.commit) is not None,
        }
        for item in wanted.commits
    ]
    for wheel in wanted.wheels:
        found = wheel.cached(place)
        here, damaged = isinstance(found, Archive), isinstance(found, DamagedWheel)
        row = {"name": wheel.package, "version": wheel.version, "here": here, "damaged": damaged}
        rows.append(row)
    data = {"version": 1, "cache": str(place), "upstreams": rows}
    write_result(data, map(_line, rows), options.json_path)


def _line(row: Mapping[str, Any]) -> str:
    state = "here" if row["here"] else "damaged" if row.get("damaged") else "missing"
    return f"{state:<8}{row['name']:<28}{str(row['version'])[:12]:<14}{row.get('ref', '')}"


def bring_missing(request: ProveRequest, console: Console) -> tuple[str, ...]:
    """Fetch what cards need and neither the user gave nor the cache has, without waiting long.

    Returns:
        What is missing after that, each with the reason.

    Raises:
        InputError: A skill is unknown, its card or the list of wheels is invalid, or a wheel in the
            cache is damaged and cannot be downloaded again.
    """
    (cards, needed), cache = _needs(request.skills, request.names), request.cache
    given = {
        (upstream.repo, upstream.commit)
        for card in cards.values()
        for name, upstream in card.upstreams.items()
        if name in request.upstreams or upstream.repo in request.upstreams
    }
    commits = (item for item in needed.commits if (item.repo, item.commit) not in given)
    wanted = Wanted(tuple(commits), needed.wheels).missing(cache)
    if request.offline:
        for wheel in wanted.wheels:
            if isinstance(damaged := wheel.cached(cache), DamagedWheel):
                raise damaged
        names = [*map(str, wanted.commits), *(wheel.spec for wheel in wanted.wheels)]
        return (f"{listed(names)}: not in the cache",) if names else ()
    say = partial(typer.echo, err=True)
    provision = Provision(cache, console, say, patience=_PROVE_PATIENCE, wait=_PROVE_PATIENCE)
    try:
        short = provision.bring(wanted)
    except InputError as error:  # no git, a full disk, or another run that fetches
        return (str(error),)
    for reason in short.values():
        if isinstance(reason, DamagedWheel):
            raise reason
    return _by_reason(short)


def _parse_servers(entries: Sequence[str], wanted: Wanted) -> Mapping[str, str]:
    """Parse ``NAME=URL`` entries; raise `InputError` for another form or an unknown name."""
    known = sorted({item.repo for item in wanted.commits})
    form, remedy = "NAME=URL", "write OWNER/NAME=URL"
    found = parse_overrides(entries, option="--from", form=form, remedy=remedy)
    for name, url in found.items():
        if url.startswith("-"):
            raise InputError("--from", f"{shown(f'{name}={url}')} is not {form}; {remedy}")
        if name not in known and known:
            sentence = f"{shown(name)} is not a repository of these cards"
            raise InputError("--from", f"{sentence}; choose from {', '.join(known)}")
    return found


def _by_reason(short: Mapping[str, InputError]) -> tuple[str, ...]:
    """Return one line for each reason why something is missing, with the first of what is."""
    found: dict[str, list[str]] = {}
    for what, error in short.items():
        found.setdefault(error.sentence, []).append(what)
    return tuple(f"{listed(names)}: {reason}" for reason, names in found.items())


def listed(names: Sequence[str]) -> str:
    """Return the first few names, and how many more there are."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
