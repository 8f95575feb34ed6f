"""A report as GitHub annotations: workflow commands, one line each."""

from __future__ import annotations

from types import MappingProxyType

from ringproof.harness.reports.model import Report
from ringproof.harness.reports.printable import showable

_COMMANDS = MappingProxyType({"error": "error", "warning": "warning", "note": "notice"})
_LONGEST_PATH = 4096


def as_github(report: Report) -> tuple[str, ...]:
    """One line each; nothing in a path or a message can start another command."""
    lines = []
    for item in report.findings:
        place = f"file={_property(showable(item.path, _LONGEST_PATH))},line={item.line}"
        if item.end_line is not None and item.end_line > item.line:
            place += f",endLine={item.end_line}"
        text = _data("\n".join((item.message, *item.details)))
        lines.append(f"::{_COMMANDS[report.rule(item).level]} {place},title={item.rule}::{text}")
    return tuple(lines)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
