"""The HTML report: one self-contained file, written from the evidence records."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import PackageLoader, StrictUndefined
from jinja2.sandbox import SandboxedEnvironment

from ringproof.harness.proofs.verdicts import Verdict


def render_report(
    records: Sequence[Mapping[str, Any]], problems: Sequence[str], stale: Sequence[str]
) -> str:
    """Render the page.

    Args:
        records: Records from `evidence.skill_record`, at least one.
        problems: Reasons why the run failed; empty if it did not.
        stale: Committed records that are stale.
    """
    environment = SandboxedEnvironment(
        loader=PackageLoader("ringproof.harness.proofs"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["spread"] = _spread
    environment.filters["brief"] = _brief
    totals = {
        verdict.value: sum(record["totals"][verdict.value] for record in records)
        for verdict in Verdict
    }
    return environment.get_template("report.html.j2").render(
        records=records,
        problems=problems,
        stale=stale,
        totals=totals,
        verdicts=[verdict.value for verdict in Verdict],
        run=records[0],
    )


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def _brief(text: str) -> str:
    """Shorten hashes for reading; the records have them in full."""
    return re.sub(r"\b([0-9a-f]{12})[0-9a-f]{52}\b", r"\1", text)


def _spread(spread: Mapping[str, float]) -> str:
    low, high = _number(spread["min"]), _number(spread["max"])
    return low if low == high else f"{low} to {high}"
