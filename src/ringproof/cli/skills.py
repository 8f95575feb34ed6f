"""``ringproof skills``: list, print, install, update and remove the skills."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import typer

from ringproof.cards import find_cards, load_card, statements
from ringproof.cli.options import SkillNames, command_of, folder_option, json_option, knowing_skills
from ringproof.cli.output import echo_text, write_result
from ringproof.errors import InputError, check_name, shown
from ringproof.files import read_input
from ringproof.installing import (
    AGENTS,
    install,
    installed,
    planned,
    refuse_changed,
    remove,
)
from ringproof.lint.skill import MAIN, MAX_BYTES, parse_frontmatter
from ringproof.options import option

app = typer.Typer(no_args_is_help=True)

_RESULTS = MappingProxyType(
    {"new": "installed", "changed": "replaced", "older": "updated", "same": "is there already"}
)
"""What became of a skill, by the state of its installation before."""


@dataclass(frozen=True, kw_only=True)
class SkillsCommand:
    """The options of ``ringproof skills list`` and of its other commands."""

    folder: Path = folder_option(knowing_skills)
    json_path: str = json_option()


@dataclass(frozen=True, kw_only=True)
class ShowCommand:
    """The arguments of ``ringproof skills show``."""

    skill: str = option(..., "Name of a skill.", metavar="SKILL", argument=True)
    file: str = option(MAIN, "File of the skill to print.", metavar="[FILE]", argument=True)
    folder: Path = folder_option(knowing_skills)


@dataclass(frozen=True, kw_only=True)
class InstallCommand(SkillNames, SkillsCommand):
    """The options of ``ringproof skills install``."""

    agent: tuple[str, ...] = option(
        ...,
        f"Agent that will read them: {', '.join(AGENTS)}. Can be given several times.",
        metavar="NAME",
    )
    into: Path = option(Path(), "Project in which to install, which must exist.", metavar="DIR")
    force: bool = option(False, "Replace installed skills that differ.")


@dataclass(frozen=True, kw_only=True)
class UpdateCommand(SkillNames, SkillsCommand):
    """The options of ``ringproof skills update``."""

    into: Path = option(Path(), "Project in which skills were installed.", metavar="DIR")
    force: bool = option(False, "Replace what somebody changed.")


@dataclass(frozen=True, kw_only=True)
class RemoveCommand:
    """The options of ``ringproof skills remove``."""

    skills: tuple[str, ...] = option(
        (), "Names of skills; all that were installed by default.", metavar="[SKILL]...",
        argument=True,
    )  # fmt: skip
    into: Path = option(Path(), "Project in which skills were installed.", metavar="DIR")
    force: bool = option(False, "Remove also what somebody changed.")
    json_path: str = json_option()


@app.command("list")
@command_of(SkillsCommand)
def list_command(options: SkillsCommand) -> None:
    """List the skills, each with its title and the number of statements of its card.

    Example: ringproof skills list
    """
    folder = options.folder
    rows = [_row(path, folder / name) for name, path in find_cards(folder).items()]
    lines = (f"{row['name']:<32}{row['statements']:>4} statements  {row['title']}" for row in rows)
    write_result({"version": 1, "skills": rows}, lines, options.json_path)


def _row(card: Path, folder: Path) -> dict[str, Any]:
    text = _text(folder / MAIN)
    head = parse_frontmatter(text).data
    titles = (line.removeprefix("# ") for line in text.splitlines() if line.startswith("# "))
    return {
        "name": folder.name,
        "title": next(titles, folder.name),
        "description": str(head.get("description", "")),
        "statements": len(statements(load_card(card))),
        "folder": str(folder),
    }


@app.command()
@command_of(ShowCommand)
def show(options: ShowCommand) -> None:
    """Print a skill as an agent reads it, or another of its files.

    Example: ringproof skills show dynamic-context-parallel references/pitfalls.md
    """
    find_cards(options.folder, (options.skill,))
    folder = options.folder / options.skill
    place = (folder / options.file).resolve()
    if not place.is_relative_to(folder.resolve()) or not place.is_file():
        there = (path for path in folder.rglob("*") if path.is_file())
        files = sorted(path.relative_to(folder).as_posix() for path in there)
        sentence = f"{shown(options.file)} is not in the skill; choose from {', '.join(files)}"
        raise InputError("FILE", sentence)
    echo_text(_text(place))


@app.command("install")
@command_of(InstallCommand)
def install_command(options: InstallCommand) -> None:
    """Copy skills into a project, to where an agent looks for them.

    An older release is updated. A skill that somebody changed is left alone, and then nothing is
    installed at all, unless --force is given.

    Example: ringproof skills install --agent claude --into ../project
    """
    folder, into = options.folder, options.into
    if not into.is_dir():
        raise InputError("--into", f"{shown(into)} is not a folder; name that of the project")
    for name in options.agent:
        check_name("--agent", name, AGENTS)
    places = [_inside(into, AGENTS[name]) for name in dict.fromkeys(options.agent)]
    names = find_cards(folder, options.skills)
    plans = [
        planned(folder / name, place / name) for place in dict.fromkeys(places) for name in names
    ]
    if not options.force:
        refuse_changed(plans)
    for plan in plans:
        if plan.state != "same":
            install(plan)
    _write_results(((plan.target, _RESULTS[plan.state]) for plan in plans), options.json_path)


@app.command("update")
@command_of(UpdateCommand)
def update_command(options: UpdateCommand) -> None:
    """Bring the skills that were installed into a project to this release.

    What somebody changed is left alone unless --force is given. Exit code 1: something was. A skill
    that this release does not have is named and left alone, too.

    Example: ringproof skills update --into ../project
    """
    known = find_cards(options.folder, options.skills)
    targets = _installed(options.into, options.skills)
    gone = [place for place in targets if place.name not in known]
    plans = [planned(options.folder / place.name, place) for place in targets if place not in gone]
    left = [plan for plan in plans if plan.state == "changed" and not options.force]
    for plan in plans:
        if plan.state != "same" and plan not in left:
            install(plan)
    results = [
        (plan.target, "was changed and is left alone" if plan in left else _RESULTS[plan.state])
        for plan in plans
    ]
    results += [(place, "is not in this release and is left alone") for place in gone]
    _write_results(results, options.json_path, good=not left)


@app.command("remove")
@command_of(RemoveCommand)
def remove_command(options: RemoveCommand) -> None:
    """Remove the skills that were installed into a project, and nothing else.

    If somebody changed one of them, nothing is removed at all, unless --force is given.

    Example: ringproof skills remove --into ../project
    """
    targets = _installed(options.into, options.skills)
    remove(targets, force=options.force)
    _write_results(((place, "removed") for place in targets), options.json_path)


def _inside(into: Path, place: str) -> Path:
    """Return a folder of a project, which no link may lead out of it."""
    folder = into / place
    if not folder.resolve().is_relative_to(into.resolve()):
        raise InputError("--into", f"{shown(folder)} leads out of the project; replace the link")
    return folder


def _installed(into: Path, names: Sequence[str]) -> list[Path]:
    """Return the folders of the skills that were installed into a project.

    Raises:
        InputError: There are none, or none of one of the names.
    """
    folders = [_inside(into, place) for place in dict.fromkeys(AGENTS.values())]
    found = [folder / name for folder in folders for name in installed(folder)]
    missing = [name for name in names if name not in {place.name for place in found}]
    if missing or not found:
        what = f"{shown(missing[0])} was not" if missing else "no skill was"
        remedy = "name the project with --into, or use `ringproof skills install`"
        raise InputError("--into", f"{what} installed into {shown(into)}; {remedy}")
    return [place for place in found if not names or place.name in names]


def _write_results(
    results: Iterable[tuple[Path, str]], json_path: str, *, good: bool = True
) -> None:
    rows = [{"name": place.name, "path": str(place), "result": said} for place, said in results]
    lines = (f"{row['path']}: {row['result']}" for row in rows)
    write_result({"version": 1, "skills": rows}, lines, json_path, good=good, verdict_first=False)


def _text(path: Path) -> str:
    data = read_input(path, MAX_BYTES, remedy="name a readable file")
    return data.decode("utf-8", errors="replace")
