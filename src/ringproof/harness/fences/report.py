"""Checked mentions as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ringproof.harness.fences.model import JudgedMention


def as_json(findings: Sequence[JudgedMention]) -> dict[str, Any]:
    """``{"anchors": [...]}``; line numbers that do not apply are ``null``."""
    return {
        "anchors": [
            {
                "kind": finding.mention.kind,
                "file": finding.file,
                "path": finding.mention.path,
                "start": finding.mention.start,
                "end": finding.mention.end,
                "status": finding.placement.status,
                "new_start": finding.placement.new_start,
                "new_end": finding.placement.new_end,
            }
            for finding in findings
        ]
    }
