"""``logs diagnose`` on logs of public threads, each with a key that was written before it was read.

A report is solved where the first finding is the one of the key, is explained or named as unknown
as the key allows, and the restart advice and the rank, where the key names one, are right. It is
helped where the right line is shown with less, and unread where the lines are only named as errors.
Anything else is wrong, or silent, which no report may be.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from ringproof.logs.diagnosis.cause import Diagnosis, diagnose
from ringproof.logs.diagnosis.shared import SharedError
from ringproof.logs.diagnosis.symptoms import load_index

FOLDER = Path(__file__).parent / "reports"
KEYS: list[dict[str, Any]] = YAML(typ="safe", pure=True).load(FOLDER / "keys.yaml")
INDEX = load_index()
ALLOWED = {"solved", "helped", "unread"}


def said(one: SharedError) -> str:
    """Everything that a finding shows of the log."""
    texts = (event.text for event in one.evidence)
    return " ".join((one.first.error, one.first.message, *texts, *one.waits))


def judged(report: Diagnosis, key: dict[str, Any]) -> str:
    """Return the verdict on a diagnosis."""
    advice, allowed = report.restart.advice, key["restart"]
    contrary = advice not in ("unknown", *allowed)
    found = [*([report.cause] if report.cause else []), *report.follow_ups]
    if not found:
        return "unread" if report.unread and not report.found else "silent"
    right = re.search(key["shows"], said(found[0])) is not None
    symptom = found[0].symptom.id if found[0].symptom else "unknown"
    who = found[0].who if right and "rank" in key else {key.get("rank")}
    others = {one for one in who if one and one.startswith("rank ")} - {key.get("rank")}
    if contrary or (report.cause and not right) or others:
        return "wrong"
    if right and symptom in key["symptoms"] and advice in allowed and who == {key.get("rank")}:
        return "solved"
    if right and symptom not in ("unknown", *key["symptoms"]):
        return "wrong"
    return "helped"


@cache
def verdict(name: str) -> str:
    key = next(one for one in KEYS if one["name"] == name)
    return judged(diagnose([str(FOLDER / f"{name}.log")], index=INDEX), key)


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key["name"])
def test_a_report_keeps_its_verdict(key: dict[str, Any]) -> None:
    assert key["verdict"] in ALLOWED
    assert verdict(key["name"]) == key["verdict"]


def test_no_report_is_wrong_and_the_documents_count_them() -> None:
    counts = Counter(verdict(key["name"]) for key in KEYS)
    assert counts.keys() <= ALLOWED
    page = Path(__file__).parents[2] / "docs" / "diagnose.md"
    sentence = f"Of {len(KEYS)} reports {counts['solved']} are solved and {counts['helped']} helped"
    assert sentence in " ".join(page.read_text(encoding="utf-8").split())


def test_every_log_has_a_key() -> None:
    assert {path.stem for path in FOLDER.glob("*.log")} == {key["name"] for key in KEYS}


def test_another_first_cause_is_wrong() -> None:
    key = next(one for one in KEYS if one["name"] == "dated-rank-memory")
    report = diagnose([str(FOLDER / "rich-ecc.log")], index=INDEX)
    assert judged(report, key) == "wrong"
