"""``ringproof logs parity``: where two training runs part, and how."""

from __future__ import annotations

import math
import sys
from typing import Annotated

import typer

from ringproof.cli.options import JsonOption
from ringproof.cli.output import write_json
from ringproof.errors import InputError
from ringproof.harness.logs.opening import STDIN
from ringproof.harness.logs.training.comparison import Comparison, as_json, compare_logs
from ringproof.harness.logs.training.log import TrainingLog, read_log
from ringproof.harness.logs.training.series import Columns, parse_columns
from ringproof.harness.logs.training.source import FORMATS

EXAMPLE = "Example: ringproof logs parity single.jsonl parallel.jsonl --tol 1e-9 --html runs.html"


def parity(
    a: Annotated[
        str,
        typer.Argument(
            metavar="A", help="First log: JSON lines, Megatron's text log or CSV. - is stdin."
        ),
    ],
    b: Annotated[str, typer.Argument(metavar="B", help="Log to compare with it. - is stdin.")],
    *,
    tol: Annotated[
        float,
        typer.Option(metavar="R", help="Largest relative difference to accept. 0 means bitwise."),
    ] = 1e-9,
    series: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="Quantities to compare. [default: loss,grad_norm]"),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="NAME=COLUMN,...",
            help="Names in the files, such as step=iter,loss=train/loss; | stands between "
            "alternatives.",
        ),
    ] = None,
    format_name: Annotated[
        str | None,
        typer.Option("--log-format", help="jsonl, megatron or csv. [default: recognised]"),
    ] = None,
    json_path: JsonOption = "",
    html: Annotated[
        str | None,
        typer.Option(
            metavar="PATH", help="Write the curves as an HTML page to this file; - is stdout."
        ),
    ] = None,
    png: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Draw the curves into this PNG file (needs matplotlib)."),
    ] = None,
) -> None:
    """Compare loss and grad norm of two training logs: first divergence, drift or jump.

    Exit code 1: some step is beyond the tolerance; 2: the logs cannot be compared.
    """
    _refuse(tol, format_name, {"--json": json_path or None, "--html": html, "--png": png})
    result = _compared(a, b, parse_columns(series, columns), tol, format_name)
    if json_path:
        write_json(as_json(result), json_path)
    _draw(result, html, png)
    if STDIN not in (json_path, html):
        _print(result)
    if not result.within:
        raise typer.Exit(1)


def _refuse(tol: float, format_name: str | None, places: dict[str, str | None]) -> None:
    if not (math.isfinite(tol) and tol >= 0):
        raise InputError("--tol", tol, "not a number from 0", "such as 1e-9, or 0 for bitwise")
    if format_name is not None and format_name not in FORMATS:
        raise InputError(
            "--log-format", format_name, "no such format", f"one of {', '.join(FORMATS)}"
        )
    if places["--png"] == STDIN:
        raise InputError("--png", STDIN, "is a picture, not text", "name a file")
    given = [place for place in places.values() if place is not None]
    if len(set(given)) < len(given):
        remedy = "name another file for each"
        raise InputError(", ".join(places), given[0], "write to the same place", remedy)


def _compared(a: str, b: str, columns: Columns, tol: float, format_name: str | None) -> Comparison:
    if a == b == STDIN:
        raise InputError("A, B", STDIN, "both are stdin", "name a file for one of them")

    def read(path: str, role: str) -> TrainingLog:
        stdin = sys.stdin.buffer if path == STDIN and sys.stdin else None
        return read_log(path, role, columns, format_name=format_name, stdin=stdin)

    return compare_logs(read(a, "A"), read(b, "B"), columns.series, tol)


def _draw(result: Comparison, html: str | None, png: str | None) -> None:
    if html is not None:
        from ringproof.cli.logs_parity_page import page
        from ringproof.cli.page import write_page

        write_page(page(result), html)
    if png is not None:
        from ringproof.cli.logs_parity_picture import write_picture

        write_picture(result, png)


def _print(result: Comparison) -> None:
    from rich.console import Console

    from ringproof.cli.logs_parity_text import print_comparison

    print_comparison(result, Console())
