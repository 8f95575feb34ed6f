"""``ringproof card``: cards from elsewhere, and the schema for editors."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Annotated

import typer

from ringproof.cards.schema import schema_text
from ringproof.cli import options
from ringproof.cli.output import write_json, write_text
from ringproof.errors import InputError
from ringproof.importing.importer import as_json, as_text, convert, refuse_overlap, write
from ringproof.importing.roots import open_roots
from ringproof.upstream.sources import parse_overrides

app = typer.Typer(
    help="Import cards from elsewhere, and print the schema of cards.", no_args_is_help=True
)


@app.command("import")
def import_(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH...", help="Skills to import: folders with a SKILL.md."),
    ],
    *,
    output: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder below which DIR/<skill>/ is written.")
    ] = Path("skills"),
    upstream: options.UpstreamOption = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.")] = False,
    cache: options.CacheOption = None,
    offline: options.OfflineOption = False,
    json_path: options.JsonOption = "",
) -> None:
    """Turn skills with cards of NVIDIA's form into skills with cards of ours.

    Every statement is kept and marked unproven. Places in code that a skill points to become
    anchors where --upstream has that code and it is what the skill quotes.
    Example: ringproof card import ../Megatron-Bridge/skills/a-skill --output imported
    """
    folders = [path.resolve() if path.name in ("", "..") else path for path in paths]
    names = [folder.name for folder in folders]
    for place, name in enumerate(names):
        refuse_overlap(folders[place], output / name)
        if name in names[:place]:
            raise InputError("PATH", folders[place], "a second skill of that name", "name it once")
    specs = parse_overrides(upstream or [])
    roots = open_roots(specs, cache=options.cache_folder(cache), offline=offline)
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
        str, typer.Option("--output", "-o", metavar="FILE", help="File to write; - is stdout.")
    ] = "-",
) -> None:
    """Print the JSON Schema of card.yaml, for editors.

    Example: ringproof card schema -o card.schema.json
    """
    write_text(schema_text(), output, field="--output")
