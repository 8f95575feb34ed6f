"""``ringproof logs``: what a run's logs prove, and where two training runs part."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Annotated, Any, BinaryIO

import typer

from ringproof.cli import logs_plots
from ringproof.cli.options import JsonOption
from ringproof.cli.output import write_result, write_text
from ringproof.errors import InputError, check_name
from ringproof.logs.diagnosis import output as diagnosis_output
from ringproof.logs.diagnosis.cause import diagnose as diagnose_logs
from ringproof.logs.groups.expectation import parse_expectation
from ringproof.logs.groups.judge import read_groups
from ringproof.logs.groups.output import as_json, as_text
from ringproof.logs.lines import STDIN
from ringproof.logs.training import output as parity_output
from ringproof.logs.training.compare import compare_logs
from ringproof.logs.training.formats import FORMATS
from ringproof.logs.training.quantities import parse_columns
from ringproof.logs.training.read import read_log

app = typer.Typer(help="Read what the logs of a run prove.", no_args_is_help=True)


_Columns = Annotated[
    str | None,
    typer.Option(
        metavar="NAME=COLUMN,...",
        help="Read quantities under these names, such as step=iter,loss=train/loss. A | separates "
        "names of which the first that a file has counts.",
    ),
]
_LogFormat = Annotated[
    str | None,
    typer.Option(
        "--log-format",
        help="Read both logs as jsonl, megatron, csv or text, whatever they look like.",
    ),
]


def _stdin() -> BinaryIO | None:
    return sys.stdin.buffer if sys.stdin else None


@app.command()
def groups(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="Log files of one run. A - means standard input; gzip is unpacked.",
        ),
    ],
    expect: Annotated[
        str | None,
        typer.Option(metavar="VERDICT", help="Expect this verdict: hierarchical, flat or none."),
    ] = None,
    hcp: Annotated[
        str | None,
        typer.Option(
            metavar="SIZES",
            help="Expect these level sizes of hierarchical CP, inner first, such as 2,4.",
        ),
    ] = None,
    json_path: JsonOption = "",
    require_traffic: Annotated[
        bool,
        typer.Option(
            "--require-traffic",
            help="Fail where the log does not show that context-parallel groups were used.",
        ),
    ] = False,
    dynamic: Annotated[
        str | None,
        typer.Option(metavar="SIZES", help="Expect these CP sizes of Dynamic CP, such as 1,2,4."),
    ] = None,
) -> None:
    """Say whether hierarchical, flat or no context parallelism was active in a run."""
    expectation = parse_expectation(expect, hcp, require_traffic, dynamic)
    report = read_groups(files, expectation, stdin=_stdin())
    _show(as_json(report), as_text(report), json_path, good=report.as_expected)


@app.command(epilog="Example: ringproof logs diagnose logs/*.log nccl_trace_rank_*")
def diagnose(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="LOG...",
            help="Logs of one failed or slow run, and dumps of PyTorch's flight recorder. A - "
            "means standard input; gzip is unpacked.",
        ),
    ],
    json_path: JsonOption = "",
) -> None:
    """Find the first cause of a failure in the logs of all ranks, and the pitfall that explains it.

    Exit code 1: something was found, or lines that look like errors were not understood; 0: nothing
    was; 2: a log cannot be read.
    """
    diagnosis = diagnose_logs(files, stdin=_stdin())
    data, lines = diagnosis_output.as_json(diagnosis), diagnosis_output.as_text(diagnosis)
    _show(data, lines, json_path, good=not (diagnosis.found or diagnosis.unread))


def _show(
    data: dict[str, Any],
    lines: Iterator[str],
    json_path: str,
    *,
    good: bool | None,
    silent: bool = False,
) -> None:
    """Write a result as JSON, print its lines, and end the command.

    Args:
        good: Whether the result is good, which gives the first line its colour and the command its
            exit code; ``None`` where nothing was expected.
        silent: Whether standard output is that of another file.
    """
    shown = () if silent else lines
    write_result(data, shown, json_path, good=good)


@app.command(
    epilog="Example: ringproof logs parity single.jsonl parallel.jsonl --tol 1e-9 --html runs.html"
)
def parity(
    a: Annotated[
        str,
        typer.Argument(
            metavar="A",
            help="The first log: JSON lines, CSV, or lines of text with a step and a loss, such as "
            "Megatron's. A - means standard input.",
        ),
    ],
    b: Annotated[str, typer.Argument(metavar="B", help="The log to compare with it.")],
    *,
    tol: Annotated[
        float,
        typer.Option(metavar="R", help="Accept relative differences up to R; 0 means bitwise."),
    ] = 1e-9,
    series: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="Compare these quantities. [default: loss,grad_norm]"),
    ] = None,
    columns: _Columns = None,
    format_name: _LogFormat = None,
    json_path: JsonOption = "",
    html: Annotated[
        str | None,
        typer.Option(
            metavar="PATH", help="Write the curves as an HTML page to this file; - is stdout."
        ),
    ] = None,
) -> None:
    """Compare loss and grad norm of two training logs: first divergence, drift or jump.

    Exit code 1: some step is beyond the tolerance; 2: the logs cannot be compared.
    """
    if not (math.isfinite(tol) and tol >= 0):
        raise InputError("--tol", f"{tol} is not a number from 0; give one such as 1e-9, or 0")
    if format_name is not None:
        check_name("--log-format", format_name, FORMATS)
    wanted = parse_columns(series, columns)
    if a == b == STDIN:
        raise InputError("A, B", "both logs are standard input; name a file for one of them")
    one, other = (
        read_log(path, role, wanted, format_name=format_name, stdin=_stdin())
        for path, role in ((a, "A"), (b, "B"))
    )
    result = compare_logs(one, other, wanted.series, tol)
    if html is not None:
        write_text(logs_plots.page(result), html, field="--html")
    data, lines = parity_output.as_json(result), parity_output.as_text(result)
    _show(data, lines, json_path, good=result.within, silent=html == STDIN)
