"""``ringproof skills``: list, print and install the skills."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ringproof.cards import find_cards, load_card, statements
from ringproof.cli.options import JsonOption, KnowingFolderOption, SkillsArgument
from ringproof.cli.output import write_result
from ringproof.errors import InputError, check_name, shown
from ringproof.files import read_input
from ringproof.installing import AGENTS, Installation, install, planned, refuse_changed
from ringproof.lint.skill import MAIN, MAX_BYTES, parse_frontmatter

app = typer.Typer(help="List, print and install the skills.", no_args_is_help=True)

_Agents = Annotated[
    list[str],
    typer.Option(
        "--agent",
        metavar="NAME",
        help=f"Agent that will read them: {', '.join(AGENTS)}. Can be given several times.",
    ),
]


@app.command("list")
def list_command(
    *, folder: KnowingFolderOption = Path("skills"), json_path: JsonOption = ""
) -> None:
    """List the skills, each with its title and the number of statements of its card.

    Example: ringproof skills list
    """
    rows = [_row(path, folder / name) for name, path in find_cards(folder).items()]
    lines = (f"{row['name']:<32}{row['statements']:>4} statements  {row['title']}" for row in rows)
    write_result({"version": 1, "skills": rows}, lines, json_path)


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
def show(
    skill: Annotated[str, typer.Argument(metavar="SKILL", help="Name of a skill.")],
    file: Annotated[
        str, typer.Argument(metavar="[FILE]", help="File of the skill to print.")
    ] = MAIN,
    *,
    folder: KnowingFolderOption = Path("skills"),
) -> None:
    """Print a skill as an agent reads it, or another of its files.

    Example: ringproof skills show dynamic-context-parallel references/pitfalls.md
    """
    find_cards(folder, (skill,))
    place = (folder / skill / file).resolve()
    if not place.is_relative_to((folder / skill).resolve()) or not place.is_file():
        there = (path for path in (folder / skill).rglob("*") if path.is_file())
        files = sorted(path.relative_to(folder / skill).as_posix() for path in there)
        sentence = f"{shown(file)} is not in the skill; choose from {', '.join(files)}"
        raise InputError("FILE", sentence)
    typer.echo(_text(place), nl=False)


@app.command("install")
def install_command(
    skills: SkillsArgument = None,
    *,
    agent: _Agents,
    into: Annotated[
        Path, typer.Option(metavar="DIR", help="Project in which to install, which must exist.")
    ] = Path(),
    force: Annotated[
        bool, typer.Option("--force", help="Replace installed skills that differ.")
    ] = False,
    folder: KnowingFolderOption = Path("skills"),
    json_path: JsonOption = "",
) -> None:
    """Copy skills into a project, to where an agent looks for them.

    A skill that is there with other contents is left alone, and then nothing is installed at all,
    unless --force is given. Example: ringproof skills install --agent claude --into ../project
    """
    if not into.is_dir():
        raise InputError("--into", f"{shown(into)} is not a folder; name that of the project")
    names = list(find_cards(folder, tuple(skills or ())))
    plans = [
        planned(folder / name, into / place / name) for place in _places(agent) for name in names
    ]
    if not force:
        refuse_changed(plans)
    for plan in plans:
        if plan.state != "same":
            install(plan)
    rows = [_installed(plan) for plan in plans]
    lines = (f"{row['path']}: {row['result']}" for row in rows)
    write_result({"version": 1, "skills": rows}, lines, json_path)


def _places(agents: Sequence[str]) -> list[str]:
    for name in agents:
        check_name("--agent", name, AGENTS)
    return list(dict.fromkeys(AGENTS[name] for name in agents))


def _installed(plan: Installation) -> dict[str, str]:
    result = {"new": "installed", "changed": "replaced", "same": "is there already"}[plan.state]
    return {"name": plan.source.name, "path": str(plan.target), "result": result}


def _text(path: Path) -> str:
    data = read_input(path, MAX_BYTES, remedy="name a readable file")
    return data.decode("utf-8", errors="replace")
