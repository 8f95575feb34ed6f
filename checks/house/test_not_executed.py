"""docs/evidence.md names each statement about upstream that the records do not hold as executed."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_names_what_was_not_executed() -> None:
    found = [json.loads(path.read_text()) for path in (ROOT / "evidence").glob("*/*.json")]
    records = [record for record in found if "claims" in record]
    assert len(records) >= 3
    missing = {
        claim["id"]
        for record in records
        for claim in record["claims"]
        if claim["lines"]
        and claim["kind"] != "anchor"
        and (claim["evidence"] != "upstream executed" or claim["verdict"] != "proven")
    }
    page = (ROOT / "docs" / "evidence.md").read_text(encoding="utf-8")
    (section,) = re.findall(r"## What is not executed, and why\n(.*?)\n## ", page, re.DOTALL)
    assert set(re.findall(r"`([a-z][a-z0-9-]+)`", section)) == missing
