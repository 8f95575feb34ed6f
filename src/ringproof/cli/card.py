"""``ringproof card``: cards from elsewhere, and the schema for editors."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Annotated

import typer

from ringproof.cli.cache import default_cache
from ringproof.cli.output import write_json
from ringproof.errors import InputError
from ringproof.files import write_atomically
from ringproof.harness.cards.schema import schema_text
from ringproof.harness.importing import (
    as_json,
    as_text,
    convert,
    open_roots,
    refuse_overlap,
    write,
)
from ringproof.harness.upstreams.choice import parse_overrides

app = typer.Typer(help="Cards from elsewhere, and the schema of cards.", no_args_is_help=True)


@app.command("import")
def import_(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH...", help="Skills: folders with a SKILL.md.")
    ],
    *,
    output: Annotated[
        Path, typer.Option(metavar="DIR", help="Where DIR/<skill>/ is written.")
    ] = Path("skills"),
    root: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SPEC",
            help="The code the skills speak of: OWNER/NAME=git:PATH@REF, or "
            "NAME=pip:PACKAGE==VERSION, NAME=installed:PACKAGE.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
    cache: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="For upstream wheels; else ~/.cache/ringproof."),
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Never download.")] = False,
    json_path: Annotated[
        str, typer.Option("--json", metavar="PATH", help="Write JSON; - is stdout.")
    ] = "",
) -> None:
    """Turn skills with cards of NVIDIA's form into skills with cards of ours.

    Every statement is kept and marked unproven. Places in code that a skill points to become
    anchors where --root has that code and it is what the skill quotes.
    Example: ringproof card import ../Megatron-Bridge/skills/a-skill --output imported
    """
    folders = [path.resolve() if path.name in ("", "..") else path for path in paths]
    names = [folder.name for folder in folders]
    for place, name in enumerate(names):
        refuse_overlap(folders[place], output / name)
        if name in names[:place]:
            raise InputError("PATH", folders[place], "a second skill of that name", "name it once")
    specs = parse_overrides(root or [], option="--root")
    where = cache if cache is not None else default_cache()
    roots = open_roots(specs, cache=where, offline=offline)
    today = datetime.datetime.now(tz=datetime.timezone.utc).date()
    imported = [convert(folder, roots, today=today) for folder in folders]
    for item in imported:
        target = write(item, output, force=force)
        if json_path != "-":
            for line in as_text(item):
                typer.echo(line)
            typer.echo(f"  written to {target}")
    if json_path:
        write_json(as_json(imported), json_path)


@app.command()
def schema(
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="Where; - is stdout.")
    ] = "-",
) -> None:
    """Print the JSON Schema of card.yaml, for editors.

    Example: ringproof card schema -o card.schema.json
    """
    if output == "-":
        typer.echo(schema_text(), nl=False)
    else:
        write_atomically(Path(output), schema_text(), field="--output")
