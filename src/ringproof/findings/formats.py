"""A report as text, as data, as SARIF 2.1.0 and as GitHub annotations.

SARIF is in the form that GitHub's code scanning takes, with the fingerprint by which it
recognises a line that has moved. The algorithm is that of github/codeql-action
(``src/fingerprints.ts``), so that a report agrees with what its upload step computes: a
polynomial hash, base 37, modulo 2**64, of the 100 UTF-16 units that follow a line's start when
blanks and tabs are left out and line ends are LF.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ringproof import __version__
from ringproof.findings.finding import Finding, Report, Rule
from ringproof.findings.printable import showable
from ringproof.styles import ASIDE, BAD, DOUBT, GOOD, NOTE, shown_on


def finding_data(report: Report, finding: Finding) -> dict[str, Any]:
    """One finding; ``end_line`` and ``details`` only where there are any."""
    rule = report.rule(finding)
    data: dict[str, Any] = {
        "rule": rule.id,
        "name": rule.name,
        "level": rule.level,
        "path": finding.path,
        "line": finding.line,
        "message": finding.message,
    }
    if finding.end_line is not None:
        data["end_line"] = finding.end_line
    if finding.details:
        data["details"] = list(finding.details)
    return data


_STYLES = MappingProxyType({"error": BAD, "warning": DOUBT, "note": NOTE})


def print_report(report: Report, console: Console) -> None:
    """Print it, the verdict first. Lines are not cut, so ``PATH:LINE`` can be clicked."""
    for number, closing in enumerate(report.summary):
        verdict = BAD if report.failed else f"bold {GOOD}"
        _print(console, Text(_sayable(closing, console), "" if number else verdict))
    for item in report.findings:
        place = f"{showable(item.path, _LONGEST_PATH)}:{item.line}: "
        line = Text(_sayable(place, console))
        line.append(item.rule, _STYLES[report.rule(item).level])
        _print(console, line.append(_sayable(f" {item.message}", console)))
        for detail in item.details:
            _print(console, Text(_sayable(f"    {detail}", console)))
    if report.findings:
        console.print(_table(report))


def _print(console: Console, line: Text) -> None:
    console.print(shown_on(console, line), soft_wrap=True, highlight=False)


def _sayable(text: str, console: Console) -> str:
    """Text in which escapes stand for the characters that the console's encoding lacks."""
    return text.encode(console.encoding, "backslashreplace").decode(console.encoding)


def _table(report: Report) -> Table:
    table = Table(box=None, pad_edge=False, header_style=ASIDE)
    for name in ("rule", "level", "found"):
        table.add_column(name, no_wrap=True, justify="right" if name == "found" else "left")
    table.add_column("what", overflow="fold")
    for rule, count in report.counts.items():
        level = Text(rule.level, _STYLES[rule.level])
        table.add_row(rule.id, level, str(count), rule.name)
    return table


_COMMANDS = MappingProxyType({"error": "error", "warning": "warning", "note": "notice"})
_LONGEST_PATH = 4096


def as_github(report: Report) -> tuple[str, ...]:
    """One line each; nothing in a path or a message can start another command."""
    lines = []
    for item in report.findings:
        place = f"file={_encoded(showable(item.path, _LONGEST_PATH), ':,')},line={item.line}"
        if item.end_line is not None and item.end_line > item.line:
            place += f",endLine={item.end_line}"
        text = _encoded("\n".join((item.message, *item.details)))
        lines.append(f"::{_COMMANDS[report.rule(item).level]} {place},title={item.rule}::{text}")
    return tuple(lines)


def _encoded(text: str, more: str = "") -> str:
    """Encode what GitHub's runner would read as a part of a command."""
    return "".join(f"%{ord(one):02X}" if one in f"%\r\n{more}" else one for one in text)


WINDOW = 100
_BASE = 37
_MASK = 2**64 - 1
_END_OF_FILE = 0xFFFF


def line_fingerprints(text: str) -> Mapping[int, str]:
    """The fingerprint of every line by its 1-based number: ``HASH:n`` for the n-th such hash."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").replace(" ", "").replace("\t", "")
    data = lines.encode("utf-16-le", "surrogatepass")
    units = [*struct.unpack(f"<{len(data) // 2}H", data), _END_OF_FILE]
    starts = [0, *(index + 1 for index, unit in enumerate(units) if unit == ord("\n"))]
    units += [0] * WINDOW
    seen: Counter[str] = Counter()
    found: dict[int, str] = {}
    for number, start in enumerate(starts, 1):
        value = 0
        for unit in units[start : start + WINDOW]:
            value = (value * _BASE + unit) & _MASK
        name = f"{value:x}"
        seen[name] += 1
        found[number] = f"{name}:{seen[name]}"
    return found


SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
HOME = "https://github.com/OWNER/ringproof"
ROOT = "%SRCROOT%"

Fingerprints = Callable[[str], Mapping[int, str]]
"""The `line_fingerprints` of a file by its path; empty where it cannot be read."""


def as_sarif(report: Report, fingerprints: Fingerprints) -> dict[str, Any]:
    """One run with every rule and result; silenced findings are in it, as suppressed in source.

    Paths below the working directory are relative to ``%SRCROOT%``; no path of this machine is
    stored for it. A result that has an identity keeps it as ``ringproofIdentity/v1``.
    """
    driver = {
        "name": "ringproof",
        "version": __version__,
        "informationUri": HOME,
        "rules": [_rule(rule) for rule in report.rules],
    }
    results = [_result(report, item, fingerprints) for item in report.findings]
    silent = [_result(report, item, fingerprints) for item in report.silenced]
    results += [{**item, "suppressions": [{"kind": "inSource"}]} for item in silent]
    root = {"description": {"text": "The folder that ringproof was run in."}}
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": driver},
                "originalUriBaseIds": {ROOT: root},
                "columnKind": "unicodeCodePoints",
                "results": results,
            }
        ],
    }


def help_uri(rule: Rule) -> str:
    """Where a rule is explained: its heading on its page, as GitHub names it."""
    heading = f"{rule.id} {rule.name} {rule.level}".lower().replace(" ", "-")
    return f"{HOME}/blob/main/docs/{rule.page}.md#{heading}"


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.id,
        "name": "".join(part.capitalize() for part in rule.name.split("-")),
        "shortDescription": {"text": rule.what},
        "help": {"text": f"{rule.what} {rule.remedy}".strip()},
        "helpUri": help_uri(rule),
        "defaultConfiguration": {"level": rule.level},
    }


def _result(report: Report, finding: Finding, fingerprints: Fingerprints) -> dict[str, Any]:
    rule = report.rule(finding)
    region = {"startLine": finding.line}
    if finding.end_line is not None and finding.end_line > finding.line:
        region["endLine"] = finding.end_line
    place = {"artifactLocation": _artifact(finding.path), "region": region}
    result: dict[str, Any] = {
        "ruleId": rule.id,
        "ruleIndex": report.rules.index(rule),
        "level": rule.level,
        "message": {"text": "\n".join((finding.message, *finding.details))},
        "locations": [{"physicalLocation": place}],
    }
    prints = _prints(finding, fingerprints)
    return {**result, "partialFingerprints": prints} if prints else result


def _artifact(path: str) -> dict[str, str]:
    """Percent-encoded byte by byte, so any name is a valid URI: ``#``, ``?``, ``:``, not UTF-8."""
    uri = quote(os.fsencode(path))
    return {"uri": f"file://{uri}"} if path.startswith("/") else {"uri": uri, "uriBaseId": ROOT}


def _prints(finding: Finding, fingerprints: Fingerprints) -> dict[str, str]:
    prints = {}
    of_line = fingerprints(finding.path).get(finding.line)
    if of_line is not None:
        prints["primaryLocationLineHash"] = of_line
    if finding.identity:
        named = f"{finding.rule}\0{finding.identity}".encode("utf-8", "surrogateescape")
        prints["ringproofIdentity/v1"] = hashlib.sha256(named).hexdigest()[:32]
    return prints
