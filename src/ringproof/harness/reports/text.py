"""A report for a reader: one line per finding, a table of the rules, the closing lines."""

from __future__ import annotations

from types import MappingProxyType

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ringproof.harness.reports.model import Report
from ringproof.harness.reports.printable import showable

_STYLES = MappingProxyType({"error": "red", "warning": "yellow", "note": "cyan"})
_LONGEST_PATH = 4096


def print_report(report: Report, console: Console) -> None:
    """Print it. Lines are never cut or broken, so ``PATH:LINE`` can be clicked and searched."""
    for item in report.findings:
        place = f"{showable(item.path, _LONGEST_PATH)}:{item.line}: "
        line = Text(_sayable(place, console))
        line.append(item.rule, _STYLES[report.rule(item).level])
        _print(console, line.append(_sayable(f" {item.message}", console)))
        for detail in item.details:
            _print(console, Text(_sayable(f"    {detail}", console)))
    if report.findings:
        console.print(_table(report))
    for closing in report.summary:
        _print(console, Text(_sayable(closing, console), "bold"))


def _print(console: Console, line: Text) -> None:
    console.print(line, soft_wrap=True, highlight=False)


def _sayable(text: str, console: Console) -> str:
    """Text in which escapes stand for the characters that the console's encoding lacks."""
    return text.encode(console.encoding, "backslashreplace").decode(console.encoding)


def _table(report: Report) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("rule", "level", "found"):
        table.add_column(name, no_wrap=True, justify="right" if name == "found" else "left")
    table.add_column("what", overflow="fold")
    for rule, count in report.counts.items():
        level = Text(rule.level, _STYLES[rule.level])
        table.add_row(rule.id, level, str(count), rule.name)
    return table
