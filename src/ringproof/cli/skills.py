"""``ringproof skills``: list, print and install the skills."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from ringproof.cards import find_cards, load_card, statements
from ringproof.cli.options import SkillNames, command_of, folder_option, json_option, knowing_skills
from ringproof.cli.output import echo_text, write_result
from ringproof.errors import InputError, check_name, shown
from ringproof.files import read_input
from ringproof.installing import AGENTS, install, planned, refuse_changed
from ringproof.lint.skill import MAIN, MAX_BYTES, parse_frontmatter
from ringproof.options import option

app = typer.Typer(no_args_is_help=True)


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
    places = dict.fromkeys(AGENTS[name] for name in options.agent)
    names = find_cards(folder, options.skills)
    plans = [planned(folder / name, into / place / name) for place in places for name in names]
    if not options.force:
        refuse_changed(plans)
    for plan in plans:
        if plan.state != "same":
            install(plan)
    results = {"new": "installed", "changed": "replaced", "older": "updated"}
    results["same"] = "is there already"
    rows = [
        {"name": plan.source.name, "path": str(plan.target), "result": results[plan.state]}
        for plan in plans
    ]
    lines = (f"{row['path']}: {row['result']}" for row in rows)
    write_result({"version": 1, "skills": rows}, lines, options.json_path)


def _text(path: Path) -> str:
    data = read_input(path, MAX_BYTES, remedy="name a readable file")
    return data.decode("utf-8", errors="replace")
