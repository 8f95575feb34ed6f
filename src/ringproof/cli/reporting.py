"""How every command that finds something says it: ``--format``, ``--json`` and ``--sarif``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import typer

from ringproof.cli.console import HarmlessConsole
from ringproof.cli.options import json_option
from ringproof.cli.output import write_json
from ringproof.errors import InputError
from ringproof.files import read_bounded
from ringproof.findings.finding import Report
from ringproof.findings.formats import as_github, as_sarif, line_fingerprints, print_report
from ringproof.options import option

MAX_BYTES = 5_000_000


class Format(str, Enum):
    """What is printed."""

    TEXT = "text"
    JSON = "json"
    SARIF = "sarif"
    GITHUB = "github"


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """Options that say where a run's findings go.

    Raises:
        InputError: Two things are to be printed at once.
    """

    shown: Format = option(Format.TEXT, "The form in which the findings are printed.", "--format")
    json_path: str = json_option()
    sarif_path: str = option(
        "", "Write findings as SARIF 2.1.0 to this file.", "--sarif", metavar="PATH"
    )

    def __post_init__(self) -> None:
        if self.sarif_path == "-":
            raise InputError("--sarif", "--sarif takes a file; to print it, use --format sarif")
        if self.json_path == "-" and self.shown in (Format.SARIF, Format.GITHUB):
            sentence = f"--json - does not go with --format {self.shown.value}; name a file"
            raise InputError("--json", sentence)

    def publish(self, report: Report, data: dict[str, Any], details: tuple[str, ...] = ()) -> None:
        """Write and print it; its text form ends with ``details``.

        Raises:
            InputError: A file cannot be written.
        """
        if self.json_path and self.json_path != "-":
            write_json(data, self.json_path)
        if self.sarif_path:
            write_json(as_sarif(report, _fingerprints), self.sarif_path, field="--sarif")
        if self.json_path == "-" or self.shown is Format.JSON:
            write_json(data, "-")
        elif self.shown is Format.SARIF:
            write_json(as_sarif(report, _fingerprints), "-")
        elif self.shown is Format.GITHUB:
            for line in as_github(report):
                typer.echo(line)
            for line in report.summary:
                typer.echo(line, err=True)
        else:
            print_report(report, HarmlessConsole())
            for line in details:
                typer.echo(line)


def _fingerprints(path: str) -> Mapping[int, str]:
    try:
        raw = read_bounded(Path(path), MAX_BYTES)
    except (OSError, ValueError):
        return {}
    return line_fingerprints(raw.decode("utf-8", "replace"))
