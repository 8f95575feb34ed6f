"""``ringproof card``: the schema of cards, for editors."""

from __future__ import annotations

from typing import Annotated

import typer

from ringproof.cards.schema import schema_text
from ringproof.cli.output import write_text

app = typer.Typer(no_args_is_help=True)


@app.command()
def schema(
    output: Annotated[
        str,
        typer.Option(
            "--output", "-o", metavar="FILE", help="File to write; - means standard output."
        ),
    ] = "-",
) -> None:
    """Print the JSON Schema of card.yaml, for editors.

    Example: ringproof card schema -o card.schema.json
    """
    write_text(schema_text(), output, field="--output")
