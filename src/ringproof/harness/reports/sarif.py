"""A report as a SARIF 2.1.0 log (OASIS standard), in the form GitHub code scanning takes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from ringproof import __version__
from ringproof.harness.reports.model import Finding, Report, Rule

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
