"""The page that says what was proven where, and the plots of committed results."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from docs.making.plots import PLOTS
from docs.making.skills import Skill, evidence_rows
from docs.making.templating import filled

_STATES = ("agrees", "differs", "other path", "refused", "not offered", "races", "hung")


def plots(root: Path) -> dict[str, bytes]:
    """The plots, by file name."""
    return {name: draw(root / "benchmarks") for name, draw in PLOTS.items()}


def proven_page(skills: Sequence[Skill], root: Path) -> str:
    """Evidence by environment, conformance of versions, and planted faults."""
    records = [
        (path.parent.name, json.loads(path.read_text("utf-8")))
        for path in sorted((root / "evidence").glob("*/*.json"))
    ]
    conform = [_conformance(*item) for item in records if "cases" in item[1] and "name" in item[1]]
    engine = [row for _, record in records for row in record.get("planted", ())]
    trained = json.loads(
        (root / "benchmarks" / "training" / "results" / "faults.json").read_text("utf-8")
    )
    return filled(
        "proven.md.jinja",
        rows=evidence_rows(skills),
        states=_STATES,
        conform=conform,
        engine=engine,
        falling=sum(bool(row["falls"]) for row in engine),
        seen=sum(row["seen"]["by"] != "nothing" for row in engine),
        trained=trained,
    )


def _conformance(environment: str, record: dict[str, Any]) -> dict[str, Any]:
    counts = Counter(case["status"] for case in record["cases"])
    return {
        "environment": environment,
        "name": record["name"],
        "engine": record["engine"],
        "counts": counts,
        "cases": len(record["cases"]),
    }
